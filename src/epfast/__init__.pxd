"""Types for Cython code that plugs into epfast.

A function of one of these types, wrapped by ``scipy.LowLevelCallable.from_cython``, is a loss:
``fit_linear(X, y, loss=LowLevelCallable.from_cython(module, "name"))``. It runs without the GIL.
"""

# the loss at a margin
ctypedef double (*loss_value)(double m) noexcept nogil
ctypedef double (*loss_value_with_data)(double m, void *user) noexcept nogil

# out: n rows of value, slope and curvature at the n margins m; non-zero on failure
ctypedef int (*loss_triple)(int n, double *m, double *out, void *user) noexcept nogil

# a scalar site of its own: out holds n rows of lZ, dlZ and d2lZ at n cavities of the margin
ctypedef int (*site_moments)(int n, double *m, double *v, double *out, void *user) noexcept nogil
