"""Sequential minimal optimisation: a quadratic program with a box and one sum, a pair at a time.

    minimise  b'K b / 2 + q'b   over   lower <= b <= upper   with   sum b   as at the start

The dual of the C-SVM is this with b_i = y_i alpha_i, q_i = -y_i and a box from 0 to y_i C; of a
chunk of it, with q_i = f_i - y_i, where f_i is what the others' b give: their linear term. The
state is b and the gradient g = K b + q, which the caller owns. With g_i the least of those whose
b_i may grow and g_j the largest of those whose b_j may shrink, no pair is left to move when
g_j - g_i <= tol: the violation of the Karush-Kuhn-Tucker conditions. The pair of a step is that i
and the j that promises most, (g_j - g_i)^2 / (K_ii + K_jj - 2 K_ij) (Fan, Chen & Lin 2005, WSS 2).
"""

from libc.math cimport INFINITY, fmax, fmin

from epfast._core.kernel_rows cimport KernelRows, RowCache

cdef double FLAT = 1e-12                # stands in for a curvature that is not positive

cdef enum Outcome:
    MORE, CONVERGED, STALLED


cdef class Smo:
    """The program of the variables first to first + count; all others stay as they are.

    The arrays are of that length; beta and gradient are updated in place, q is not needed. size:
    bytes for kernel rows.
    """

    cdef RowCache cache
    cdef ptrdiff_t count
    cdef double[::1] beta, gradient, diagonal
    cdef const double[::1] lower, upper
    cdef readonly ptrdiff_t iterations
    cdef readonly double violation
    cdef readonly bint converged, stalled

    def __init__(
        self, KernelRows source not None, ptrdiff_t first, double size, double[::1] beta not None,
        double[::1] gradient not None, const double[::1] lower not None,
        const double[::1] upper not None
    ):
        self.count = beta.shape[0]
        self.cache = RowCache(source, first, self.count, size)
        self.beta, self.gradient, self.lower, self.upper = beta, gradient, lower, upper
        self.diagonal = source.diagonal[first:first + self.count]

    @property
    def evaluations(self):
        """Entries of the kernel matrix computed so far."""
        return self.cache.computed * self.count

    cdef ptrdiff_t steepest(self) noexcept nogil:
        """The i of a step, and the violation: -infinity where nothing may grow or shrink."""
        cdef ptrdiff_t k, i = -1
        cdef double least = INFINITY, largest = -INFINITY, g
        for k in range(self.count):
            g = self.gradient[k]
            if g < least and self.beta[k] < self.upper[k]:
                least, i = g, k
            if g > largest and self.beta[k] > self.lower[k]:
                largest = g
        self.violation = largest - least
        return i

    cdef ptrdiff_t partner(self, ptrdiff_t i, const double *row) noexcept nogil:
        """The j of a step, by second-order information."""
        cdef ptrdiff_t k, j = -1
        cdef double most = 0.0, away, gain, g = self.gradient[i], own = self.diagonal[i]
        for k in range(self.count):
            away = self.gradient[k] - g
            if away > 0.0 and self.beta[k] > self.lower[k]:
                gain = away * away / fmax(FLAT, own + self.diagonal[k] - 2.0 * row[k])
                if gain > most:
                    most, j = gain, k
        return j

    cdef Outcome step(self, double tol) noexcept nogil:
        """One pair, O(count) and at most two rows of the kernel."""
        cdef ptrdiff_t i = self.steepest(), j, k
        cdef const double *row_i
        cdef const double *row_j
        cdef double change, up, down, old_i, old_j
        if not self.violation > tol:
            return CONVERGED
        row_i = self.cache.row(i)
        j = self.partner(i, row_i)
        if j < 0:                           # numbers overflowed
            return STALLED
        row_j = self.cache.row(j)
        old_i, old_j = self.beta[i], self.beta[j]
        up, down = self.upper[i] - old_i, old_j - self.lower[j]
        change = (self.gradient[j] - self.gradient[i]) / fmax(
            FLAT, self.diagonal[i] + self.diagonal[j] - 2.0 * row_i[j]
        )
        change = fmin(change, fmin(up, down))
        # at a bound it is the bound itself, so that comparisons with it are exact
        self.beta[i] = self.upper[i] if change == up else fmin(self.upper[i], old_i + change)
        self.beta[j] = self.lower[j] if change == down else fmax(self.lower[j], old_j - change)
        if self.beta[i] == old_i and self.beta[j] == old_j:
            return STALLED
        for k in range(self.count):
            self.gradient[k] += change * (row_i[k] - row_j[k])
        self.iterations += 1
        return MORE

    def run(self, double tol, ptrdiff_t most):
        """At most so many steps; whether there may be more to do."""
        cdef Outcome outcome = MORE
        cdef ptrdiff_t _step
        with nogil:
            for _step in range(most):
                outcome = self.step(tol)
                if outcome != MORE:
                    break
        self.converged, self.stalled = outcome == CONVERGED, outcome == STALLED
        return outcome == MORE

    def measure(self):
        """Refresh ``violation`` after a change of beta or the gradient from outside."""
        with nogil:
            self.steepest()

    def add(self, const ptrdiff_t[::1] index not None, const double[::1] change not None):
        """The gradient after changes of beta at the given variables: a kernel row for each."""
        cdef ptrdiff_t j, k
        cdef const double *row
        with nogil:
            for j in range(index.shape[0]):
                row = self.cache.row(index[j])
                for k in range(self.count):
                    self.gradient[k] += change[j] * row[k]
