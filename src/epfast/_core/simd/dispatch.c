/* Which of the compiled kernel tables this CPU can run. */
#include "vector.h"

extern const epf_kernels epf_kernels_baseline;
#ifdef EPF_HAVE_AVX2
extern const epf_kernels epf_kernels_avx2;
#endif
#ifdef EPF_HAVE_AVX512
extern const epf_kernels epf_kernels_avx512;
#endif

/* __builtin_cpu_supports also asks the operating system (XGETBV), by feature: names of whole
 * levels or makers ("x86-64-v3", "haswell") are matched differently by gcc and clang. */
int epf_kernels_count(void)
{
    int count = 1;
#ifdef EPF_HAVE_AVX2
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) {
        count = 2;
#  ifdef EPF_HAVE_AVX512
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")
            && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")
            && __builtin_cpu_supports("avx512cd"))
            count = 3;
#  endif
    }
#endif
    return count;
}

const epf_kernels *epf_kernels_get(int i)
{
#ifdef EPF_HAVE_AVX512
    if (i == 2) return &epf_kernels_avx512;
#endif
#ifdef EPF_HAVE_AVX2
    if (i == 1) return &epf_kernels_avx2;
#endif
    (void)i;
    return &epf_kernels_baseline;
}
