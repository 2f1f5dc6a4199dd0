"""Threads that share the parts of a piece of work."""

#: a part of a piece of work; it may run in any thread, beside others
ctypedef void (*Task)(void *what, ptrdiff_t part) noexcept nogil

cdef extern from "pythread.h" nogil:
    ctypedef void *PyThread_type_lock

cdef enum:
    MOST = 64                   # threads at most


cdef class ThreadPool:
    cdef readonly int threads
    cdef PyThread_type_lock mutex, done
    cdef PyThread_type_lock wake[MOST]
    cdef bint asleep[MOST]
    cdef Task task
    cdef void *what
    cdef ptrdiff_t parts, next, left
    cdef bint waits, ends
    cdef int workers, depth
    cdef list members
    cdef readonly list errors   # of Python's work
    cdef void run(self, Task task, void *what, ptrdiff_t parts) noexcept nogil
    cdef void share(self) noexcept nogil
    cdef void serve(self, int number) noexcept nogil


cdef bint is_at_work(ThreadPool pool) noexcept nogil
cdef ptrdiff_t part_size(ThreadPool pool, ptrdiff_t n, ptrdiff_t least) noexcept nogil
