"""What modules that have more factors need of messages to categories."""

# least log of what is possible, below that of the largest
cdef double POSSIBLE

cdef void level(ptrdiff_t K, double power, double possible, double *message) noexcept nogil
