"""Threads that share out the parts of a piece of work, many times within a sweep, without the GIL.

One leads: it offers so many parts, claims some itself, and waits until all are finished. The others
claim what is left, and wait for the next offer. A part goes to who comes first; who is late, or was
never there, costs nothing. What a part is may depend on its number alone, so that results do not
depend on who did it. Waiting is by looking: an offer comes within a fraction of a millisecond. Who
has looked for long in vain goes.
"""

cdef extern from *:
    """
    #if defined(_MSC_VER) && !defined(__clang__)
    #  include <intrin.h>
    static long long epf_load(long long *p) { return _InterlockedOr64(p, 0); }
    static void epf_store(long long *p, long long v) { _InterlockedExchange64(p, v); }
    static void epf_add(long long *p) { _InterlockedIncrement64(p); }
    static int epf_swap(long long *p, long long old, long long v)
    { return _InterlockedCompareExchange64(p, v, old) == old; }
    static void epf_pause(void) { _mm_pause(); }
    #else
    static long long epf_load(long long *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
    static void epf_store(long long *p, long long v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
    static void epf_add(long long *p) { __atomic_fetch_add(p, 1, __ATOMIC_ACQ_REL); }
    static int epf_swap(long long *p, long long old, long long v)
    { return __atomic_compare_exchange_n(p, &old, v, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE); }
    #  if defined(__x86_64__) || defined(__i386__)
    static void epf_pause(void) { __builtin_ia32_pause(); }
    #  else
    static void epf_pause(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
    #  endif
    #endif
    #include <time.h>
    static double epf_seconds(void)
    {
        struct timespec now;
        timespec_get(&now, TIME_UTC);
        return now.tv_sec + 1e-9 * now.tv_nsec;
    }
    #ifdef _WIN32
    __declspec(dllimport) int __stdcall SwitchToThread(void);
    static void epf_yield(void) { SwitchToThread(); }
    #else
    #  include <sched.h>
    static void epf_yield(void) { sched_yield(); }
    #endif
    """
    long long epf_load(long long *p) noexcept nogil
    void epf_store(long long *p, long long v) noexcept nogil
    void epf_add(long long *p) noexcept nogil
    bint epf_swap(long long *p, long long old, long long v) noexcept nogil
    void epf_pause() noexcept nogil
    void epf_yield() noexcept nogil
    double epf_seconds() noexcept nogil

cdef enum:
    LOOKS = 1000            # before another thread may have the core

cdef double PATIENCE = 5e-3     # seconds without an offer


cdef class PartQueue:
    """Closed at first. Only its leader opens, offers and waits; anyone may close it."""

    def __cinit__(self):
        self.left = self.done = self.offered = self.stopped = 0
        self.shut = 1

    def open(self):
        """From now on others wait for offers."""
        epf_store(&self.shut, 0)

    def close(self):
        """Let the others go, after the parts that they have begun."""
        epf_store(&self.shut, 1)

    cdef void offer(self, ptrdiff_t parts) noexcept nogil:
        """Offer parts; all of the last offer are finished."""
        self.offered = parts
        epf_store(&self.stopped, 0)
        epf_store(&self.done, 0)
        epf_store(&self.left, parts)

    cdef ptrdiff_t claim(self) noexcept nogil:
        """The number of a part that nobody has begun; -1: there is none."""
        cdef long long left = epf_load(&self.left)
        while left > 0:
            if epf_swap(&self.left, left, left - 1):
                return <ptrdiff_t> (left - 1)
            left = epf_load(&self.left)
        return -1

    cdef void finish(self) noexcept nogil:
        """A part that was claimed is finished."""
        epf_add(&self.done)

    cdef void halt(self) noexcept nogil:
        """What else is to be done of this offer does not count."""
        epf_store(&self.stopped, 1)

    cdef bint halted(self) noexcept nogil:
        return epf_load(&self.stopped) != 0

    cdef void wait(self) noexcept nogil:
        """Until all parts of the offer are finished; the caller has none in hand, and none is left.
        """
        cdef int looks = 0
        while epf_load(&self.done) < self.offered:
            looks += 1
            if looks < LOOKS:
                epf_pause()
            else:
                epf_yield()

    cdef ptrdiff_t next(self) noexcept nogil:
        """The next part for one who does not lead; -1: it is closed, or there is no offer."""
        cdef ptrdiff_t part
        cdef int looks = 0
        cdef double since = 0.0, waited
        while not epf_load(&self.shut):
            part = self.claim()
            if part >= 0:
                return part
            looks += 1
            if looks < LOOKS:
                epf_pause()
                continue
            if looks == LOOKS:
                since = epf_seconds()
            epf_yield()
            waited = epf_seconds() - since
            if not 0.0 <= waited < PATIENCE:
                break
        return -1
