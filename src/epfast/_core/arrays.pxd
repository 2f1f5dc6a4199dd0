"""Numbers of NumPy arrays at the price of a buffer, for calls where a typed memoryview is dear."""

from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)


cdef enum:
    MOST_VIEWS = 8


ctypedef struct Views:          # arrays at hand, to be released
    Py_buffer[MOST_VIEWS] view
    int count


cdef inline bint take(object x, type ndarray, bint writable, Views *views) except -1:
    """Whether x is an aligned C-contiguous array of float64; its view is the last then."""
    cdef Py_buffer *view = &views.view[views.count]
    if type(x) is not ndarray:
        return False
    try:
        PyObject_GetBuffer(
            x, view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (PyBUF_WRITABLE if writable else 0)
        )
    except (BufferError, ValueError):
        return False
    # where memory is shared by hand, an array may begin anywhere
    if view.format[0] == c"d" and view.format[1] == 0 and <size_t> view.buf % sizeof(double) == 0:
        views.count += 1
        return True
    PyBuffer_Release(view)
    return False


cdef inline double *numbers(Views *views, int i) noexcept nogil:
    return <double *> views.view[i].buf


cdef inline bint is_shaped(Views *views, int i, ptrdiff_t rows, ptrdiff_t columns) noexcept nogil:
    """Whether array i is (rows, columns), or (rows,) where there is one column."""
    cdef Py_buffer *view = &views.view[i]
    if view.ndim == 1:
        return columns == 1 and view.shape[0] == rows
    return view.ndim == 2 and view.shape[0] == rows and view.shape[1] == columns


cdef inline bint is_apart(Views *views, int begin, int end) noexcept nogil:
    """Whether arrays begin to end - 1, to be written to, share no memory with any other."""
    cdef int i, j
    cdef char *first
    cdef char *other
    for i in range(begin, end):
        first = <char *> views.view[i].buf
        for j in range(views.count):
            other = <char *> views.view[j].buf
            if i != j and first < other + views.view[j].len and other < first + views.view[i].len:
                return False
    return True


cdef inline bint is_vector(Views *views, int i, ptrdiff_t n) noexcept nogil:
    return views.view[i].ndim == 1 and views.view[i].shape[0] == n


cdef inline void release(Views *views) noexcept:
    cdef int i
    for i in range(views.count):
        PyBuffer_Release(&views.view[i])
