"""Threads that share out the parts of a piece of work; see part_queue.pyx."""


cdef class PartQueue:
    cdef long long left             # parts that nobody has begun
    cdef long long done             # parts that are finished
    cdef long long offered
    cdef long long shut, stopped
    cdef void offer(self, ptrdiff_t parts) noexcept nogil
    cdef ptrdiff_t claim(self) noexcept nogil
    cdef void finish(self) noexcept nogil
    cdef void halt(self) noexcept nogil
    cdef bint halted(self) noexcept nogil
    cdef void wait(self) noexcept nogil
    cdef ptrdiff_t next(self) noexcept nogil
