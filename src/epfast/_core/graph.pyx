"""Message passing on a factor graph: sweeps over batches of factors with Gaussian neighbours.

Beliefs are natural parameters in one flat array: a scalar Gaussian has two numbers there, its
precision tau and its shift nu. A batch holds factors of one kind; ``at`` says where its neighbours
are. A factor's update is

    cavity = belief / site^a,   fit = moments of t^a x cavity,   site = (fit / cavity)^(1/a)

and its log scale is (log Z - sum of A(fit) - A(cavity)) / a with A the log partition function, so
that the log evidence is the sum of all scales and of A(belief) - A(prior).

Factors without a variable in common go together: :func:`runs` finds, for a sequential order, runs
of such factors that give what one after the other would.
"""

import numpy as np

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.ref cimport PyObject
from libc.math cimport INFINITY, NAN, fabs, isfinite, log, sqrt

from epfast._core.cholesky cimport heed_signals
from epfast._core.site cimport SMALLEST
from epfast._core.status cimport CALLBACK_FAILED, OK, Status
from epfast._core.tilted cimport TiltedMoments
from epfast._core.vector cimport (
    EPF_GRAPH_CAVITY, EPF_GRAPH_CHUNK, EPF_MOMENTS_INTERVAL, EPF_MOMENTS_LOGISTIC,
    EPF_MOMENTS_NONE, EPF_MOMENTS_PROBIT, kernels,
)

cdef enum:
    CHUNK = EPF_GRAPH_CHUNK     # factors that are fitted at once
    FULL = 8                    # lanes of the widest vectors
    TOGETHER = 16               # numbers above 1e-10 whose product does not underflow

cdef double HALF_LOG_2PI = 0.918938533204672741780329736405618


cdef inline void push(long long *heap, ptrdiff_t *size, long long key) noexcept nogil:
    """Add a key to a heap whose first is the largest."""
    cdef ptrdiff_t at = size[0]
    while at > 0 and heap[(at - 1) // 2] < key:
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = key
    size[0] += 1


cdef inline long long popped(long long *heap, ptrdiff_t size) noexcept nogil:
    """The largest of a heap, which has one less then."""
    cdef long long top = heap[0], key = heap[size - 1]
    cdef ptrdiff_t at = 0, child
    size -= 1
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and heap[child + 1] > heap[child]:
            child += 1
        if heap[child] <= key:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = key
    return top


def runs(
    const ptrdiff_t[::1] starts, const ptrdiff_t[::1] variables, const ptrdiff_t[::1] order,
    const ptrdiff_t[::1] first, ptrdiff_t n_variables, const unsigned char[::1] kind,
    const unsigned char[::1] in_order,
):
    """Runs of factors that give what one after the other would, in an order of visits.

    Factors of a run are of one batch and share no variable; of two factors that share one, the
    first in the order is in an earlier run. A run takes all that may go, those with most to come
    behind them first, but leaves the rest of the last vector to the next run of its batch.
    O(edges + n log n).

    Parameters
    ----------
    starts : ndarray of shape (n + 1,)
        Where the variables of each factor begin.
    variables : ndarray of shape (edges,)
    order : ndarray of shape (n,)
        Each factor once.
    first : ndarray of shape (n_batches + 1,)
        Where the factors of each batch begin.
    n_variables : int
    kind : ndarray of shape (n,)
        Within a run, factors of kind 0 come before the others.
    in_order : ndarray of shape (n_batches,)
        Whether a batch visits the factors of a run one after the other: they may share variables.

    Returns
    -------
    rows : ndarray of shape (n,)
        Factors, batch by batch, in the order of their runs.
    segments : ndarray of shape (n_runs, 3)
        Batch, first row and where the run stops, among the rows of its batch.
    """
    cdef ptrdiff_t n = starts.shape[0] - 1, batches = first.shape[0] - 1, i, j, e, f, k, size, take
    cdef ptrdiff_t g, head = 0, tail = 0, count = 0, place, waiting
    cdef long long key
    if (
        order.shape[0] != n or starts[0] != 0 or starts[n] != variables.shape[0]
        or kind.shape[0] != n or batches < 1 or first[0] != 0 or first[batches] != n
        or in_order.shape[0] != batches
    ):
        raise ValueError("starts, variables, order, first and kind do not fit together")
    for e in range(variables.shape[0]):
        if not 0 <= variables[e] < n_variables:
            raise ValueError("a variable is out of range")
    for i in range(n):
        if not (0 <= order[i] < n and starts[order[i]] <= starts[order[i] + 1]):
            raise ValueError("order or starts is out of range")
    result, found = np.empty(n, dtype=np.intp), np.empty((n, 3), dtype=np.intp)
    cdef ptrdiff_t[::1] rows = result
    cdef ptrdiff_t[:, ::1] segments = found
    #: of each edge the next factor of its variable, -1 of the last
    cdef ptrdiff_t[::1] behind = np.empty(max(1, variables.shape[0]), dtype=np.intp)
    cdef ptrdiff_t[::1] last = np.full(max(1, n_variables), -1, dtype=np.intp)
    cdef ptrdiff_t[::1] need = np.zeros(n, dtype=np.intp)
    cdef long long[::1] rank = np.empty(n, dtype=np.int64)
    cdef long long[::1] heap = np.empty(n, dtype=np.int64)
    cdef ptrdiff_t[::1] owner = np.repeat(np.arange(batches), np.diff(first))
    cdef ptrdiff_t[::1] ready = np.zeros(batches, dtype=np.intp)
    cdef ptrdiff_t[::1] filled = np.zeros(batches, dtype=np.intp)
    cdef ptrdiff_t[::1] queue = np.empty(batches, dtype=np.intp)
    cdef ptrdiff_t[::1] apart = np.empty(n, dtype=np.intp)
    with nogil:
        for i in range(n - 1, -1, -1):
            f = order[i]
            key = 0
            for e in range(starts[f], starts[f + 1]):
                g = last[variables[e]]
                behind[e] = g if g != f else -1         # a variable may be there twice
                last[variables[e]] = f
                if behind[e] >= 0:
                    need[g] += 1
                    key = max(key, rank[g] // n + 1)
            rank[f] = key * n + (n - 1 - i)             # how many are behind it, then the order
        for i in range(n):
            f = order[i]
            if need[f] == 0:
                k = owner[f]
                if ready[k] == 0:
                    queue[tail % batches] = k
                    tail += 1
                push(&heap[first[k]], &ready[k], rank[f])
        while head < tail:
            k = queue[head % batches]
            head += 1
            size = take = ready[k]
            place, waiting = first[k] + filled[k], 0
            if in_order[k]:
                while ready[k] > 0:
                    f = order[n - 1 - popped(&heap[first[k]], ready[k]) % n]
                    ready[k] -= 1
                    rows[place] = f
                    place += 1
                    for e in range(starts[f], starts[f + 1]):
                        g = behind[e]
                        if g < 0 or owner[g] != k:
                            continue
                        need[g] -= 1
                        if need[g] == 0:
                            push(&heap[first[k]], &ready[k], rank[g])
                take = ready[k] = place - first[k] - filled[k]
            else:
                if head < tail and take > FULL:
                    take -= take % FULL
                for j in range(take):
                    key = popped(&heap[first[k]], size - j) if take < size else heap[first[k] + j]
                    f = order[n - 1 - key % n]
                    if kind[f] == 0:
                        rows[place] = f
                        place += 1
                    else:
                        apart[waiting] = f
                        waiting += 1
                for j in range(waiting):
                    rows[place + j] = apart[j]
            segments[count, 0], segments[count, 1] = k, filled[k]
            segments[count, 2] = filled[k] + take
            count += 1
            ready[k] -= take
            if ready[k] > 0:
                queue[tail % batches] = k
                tail += 1
            place, filled[k] = first[k] + filled[k], filled[k] + take
            for j in range(take):
                f = rows[place + j]
                for e in range(starts[f], starts[f + 1]):
                    g = behind[e]
                    if g < 0 or (in_order[k] and owner[g] == k):
                        continue
                    need[g] -= 1
                    if need[g] == 0:
                        i = owner[g]
                        if ready[i] == 0:
                            queue[tail % batches] = i
                            tail += 1
                        push(&heap[first[i]], &ready[i], rank[g])
    return result, found[:count].copy()


def compare(const double[::1] before, const double[::1] after, ptrdiff_t n):
    """How far n scalar Gaussians moved, and the sum of their log partition functions.

    before, after : their natural parameters, (2 n,) or more. The move is the largest of a mean, in
    standard deviations, or of the log of a standard deviation; 1e8 where one has no distribution
    before but after, NaN where a number is none. What has no distribution after counts 0.
    """
    cdef double[3] found
    if not 0 <= 2 * n <= min(before.shape[0], after.shape[0]):
        raise ValueError("before or after is too short")
    if n == 0:
        return 0.0, 0.0
    with nogil:
        kernels.graph_compare(n, &before[0], &after[0], found)
    if not isfinite(found[2]):
        return NAN, found[2]
    return max(sqrt(found[0]), 0.5 * log(found[1])), found[2]


def compare_forms(
    const double[::1] before, const double[::1] after, const ptrdiff_t[::1] starts,
    const ptrdiff_t[::1] at, const double[::1] coefficient,
):
    """How far linear forms of independent Gaussians moved: as :func:`compare`, of the form's own.

    Variables without a distribution, before or after, leave their form out.
    """
    cdef ptrdiff_t n = starts.shape[0] - 1, i, e
    cdef double moved = 0.0, grown = 1.0, mean, old_mean, variance, old_variance, p, old_p, a
    cdef bint proper
    if starts[n] != at.shape[0] or coefficient.shape[0] != at.shape[0]:
        raise ValueError("starts, at and coefficient do not fit together")
    for e in range(at.shape[0]):
        if not 0 <= at[e] < min(before.shape[0], after.shape[0]) - 1:
            raise ValueError("at is out of range")
    with nogil:
        for i in range(n):
            mean = old_mean = variance = old_variance = 0.0
            proper = True
            for e in range(starts[i], starts[i + 1]):
                a, p, old_p = coefficient[e], after[at[e]], before[at[e]]
                proper = proper and p > 0.0 and old_p > 0.0
                mean += a * after[at[e] + 1] / p
                old_mean += a * before[at[e] + 1] / old_p
                variance += a * a / p
                old_variance += a * a / old_p
            if proper:
                mean -= old_mean
                moved = max(moved, mean * mean / variance)
                grown = max(grown, max(variance / old_variance, old_variance / variance))
    return max(sqrt(moved), 0.5 * log(grown))


cdef class GraphBatch:
    """Factors of one kind, in the order of the program."""

    cdef Status run(
        self, const Update *how, double *sites, double *scale, ptrdiff_t first, ptrdiff_t stop
    ) noexcept nogil:
        """Update the factors from first to stop, which share no variable, or from fixed beliefs."""
        return OK

    cdef int reraise(self) except -1:
        """Raise the exception of a callback."""
        return 0


cdef class LinearBatch(GraphBatch):
    """Factors t(h; y) of linear forms h = sum_j a_j x_j + offset + N(0, noise).

    starts: (n + 1,) where the edges of each factor begin; at: (edges,) where its variable is;
    coefficient: (edges,). sites: 2 numbers per edge. No variable twice in a form.
    """

    cdef TiltedMoments moments
    cdef int kernel                             # of moments; EPF_MOMENTS_NONE: ask moments
    cdef int terms                              # of each form, 1 to 3; 0: as starts has it
    cdef bint of_margin                         # the forms are those of y h
    cdef bint is_indicator                      # t is 0 or 1, and so is every power of it
    cdef const ptrdiff_t[::1] starts, at
    cdef const double[::1] coefficient, offset, noise
    cdef const double[:, ::1] y
    cdef double[::1] mu, s2, ratio              # of the edges of a chunk: cavities
    cdef double[::1] m, v, powers, lZ, dlZ, d2lZ, logs, cavity
    cdef unsigned char[::1] skipped, failed

    def __init__(
        self, TiltedMoments moments not None, const ptrdiff_t[::1] starts, const ptrdiff_t[::1] at,
        const double[::1] coefficient, const double[::1] offset, const double[::1] noise,
        const double[:, ::1] y, bint tied=False, bint is_indicator=False,
    ):
        cdef ptrdiff_t n = offset.shape[0], i, most = 0
        if (
            starts.shape[0] != n + 1 or starts[n] != at.shape[0] or y.shape[0] != n
            or coefficient.shape[0] != at.shape[0] or noise.shape[0] != n
            or y.shape[1] != moments.loss.stride
        ):
            raise ValueError("the arrays of a batch do not fit together")
        moments.loss.check_responses(y, n)
        self.n, self.tied, self.is_indicator = n, tied, is_indicator
        self.width = 2 * (starts[1] if tied else starts[n])
        self.moments = moments
        self.starts, self.at, self.coefficient = starts, at, coefficient
        self.offset, self.noise, self.y = offset, noise, y
        self.terms = <int> (starts[1] - starts[0]) if n > 0 and starts[1] <= 3 and not tied else 0
        # what a form has 0 of may be flat, which the vectors take for a cavity that is none
        for i in range(coefficient.shape[0]):
            if coefficient[i] == 0.0:
                self.terms = 0
        for i in range(n):
            most = max(most, starts[min(i + CHUNK, n)] - starts[i])
            if starts[i + 1] - starts[i] != self.terms:
                self.terms = 0
        self.choose_kernel()
        self.mu, self.s2, self.ratio = np.empty((3, max(1, most)))
        self.m, self.v, self.lZ, self.dlZ, self.d2lZ, self.logs = np.empty((6, CHUNK))
        self.powers = np.ones(CHUNK)
        self.cavity = np.empty(3 * EPF_GRAPH_CAVITY)
        self.skipped, self.failed = np.empty((2, CHUNK), dtype=np.uint8)

    cdef int choose_kernel(self) except -1:
        """Moments whose kernel may be called at once: what it takes is what the batch has."""
        cdef TiltedMoments moments = self.moments
        self.kernel = EPF_MOMENTS_NONE
        if (
            self.terms == 0 or moments.scheme is not None or moments.loss.shifted
            or moments.loss.c.beta != 1.0
        ):
            return 0
        if moments.kernel == EPF_MOMENTS_INTERVAL and self.is_indicator:
            self.kernel = EPF_MOMENTS_INTERVAL
        elif moments.kernel in (EPF_MOMENTS_PROBIT, EPF_MOMENTS_LOGISTIC):
            # the label turns the form
            self.kernel, self.of_margin = moments.kernel, True
            label = np.asarray(self.y)[:, 0]
            self.coefficient = np.asarray(self.coefficient) * np.repeat(label, self.terms)
            self.offset = np.asarray(self.offset) * label
        return 0

    cdef int reraise(self) except -1:
        return self.moments.loss.reraise()

    cdef Status run(
        self, const Update *how, double *sites, double *scale, ptrdiff_t first, ptrdiff_t stop
    ) noexcept nogil:
        cdef ptrdiff_t begin = first, count
        cdef Status status
        while begin < stop:
            count = min(<ptrdiff_t> CHUNK, stop - begin)
            # in parallel order factors have variables in common
            if self.terms > 0 and how.out == how.q and how.away == 0:
                status = self.vectors(how, sites, scale, begin, count)
            else:
                status = self.chunk(how, sites, scale, begin, count)
            if status != OK:
                return status
            begin += count
        return OK

    cdef Status triple(self, double power, ptrdiff_t begin, ptrdiff_t count) noexcept nogil:
        """Tilted moments at the cavities of a chunk."""
        cdef const double *y = NULL
        cdef ptrdiff_t i
        if self.kernel != EPF_MOMENTS_NONE and (power == 1.0 or self.is_indicator):
            if self.kernel == EPF_MOMENTS_INTERVAL:
                kernels.between_moments(
                    count, &self.y[begin, 0], &self.m[0], &self.v[0], &self.lZ[0], &self.dlZ[0],
                    &self.d2lZ[0]
                )
            elif self.kernel == EPF_MOMENTS_PROBIT:
                kernels.probit_moments(
                    count, &self.m[0], &self.v[0], &self.lZ[0], &self.dlZ[0], &self.d2lZ[0]
                )
            else:
                kernels.logistic_moments(
                    count, &self.m[0], &self.v[0], &self.lZ[0], &self.dlZ[0], &self.d2lZ[0]
                )
            for i in range(count):
                self.failed[i] = not isfinite(self.lZ[i] + self.dlZ[i] + self.d2lZ[i])
            return OK
        for i in range(count):
            self.powers[i] = 1.0 if self.is_indicator else power
        if not self.of_margin:
            y = &self.y[begin, 0]
        return self.moments.batch(
            count, y, &self.m[0], &self.v[0], &self.powers[0], &self.lZ[0], &self.dlZ[0],
            &self.d2lZ[0], &self.failed[0]
        )

    cdef Status vectors(
        self, const Update *how, double *sites, double *scale, ptrdiff_t begin, ptrdiff_t count
    ) noexcept nogil:
        """A chunk of forms of one to three terms, which share no variable."""
        cdef const ptrdiff_t *at = &self.at[self.terms * begin]
        cdef const double *coefficient = &self.coefficient[self.terms * begin]
        cdef ptrdiff_t i, refused
        cdef Status status
        sites += 2 * self.terms * begin
        kernels.graph_cavities(
            self.terms, count, how.power, how.q, at, coefficient, &self.offset[begin],
            &self.noise[begin], sites, &self.cavity[0], &self.m[0], &self.v[0]
        )
        status = self.triple(how.power, begin, count)
        if status != OK:
            return status
        if how.log_Z != NULL:
            for i in range(count):
                how.log_Z[scale - how.scale + begin + i] = (
                    self.lZ[i] if isfinite(self.cavity[i]) else NAN
                )
        refused = kernels.graph_sites(
            self.terms, count, how.power, how.damping, how.out, at, coefficient, &self.cavity[0],
            &self.lZ[0], &self.dlZ[0], &self.d2lZ[0], sites, scale + begin
        )
        if refused > 0:
            self.n_refused += refused
            for i in range(count):      # a cavity that is none has no precision
                if self.failed[i] and isfinite(self.cavity[i]):
                    self.n_failed += 1
        return OK

    cdef Status chunk(
        self, const Update *how, double *sites, double *scale, ptrdiff_t begin, ptrdiff_t count
    ) noexcept nogil:
        cdef ptrdiff_t base = self.starts[begin], i, e, at
        cdef double a, p, mean, variance, s, mu, shrink, product, total, tau, nu, d, d2, g
        cdef double power = how.power, share = how.damping, part = 1.0
        cdef double *site
        cdef bint fine
        cdef Status status
        for i in range(count):
            mean, variance = self.offset[begin + i], self.noise[begin + i]
            fine = True
            for e in range(self.starts[begin + i], self.starts[begin + i + 1]):
                at, a = self.at[e], self.coefficient[e]
                if a == 0.0:
                    self.s2[e - base], self.mu[e - base] = 1.0, 0.0
                    continue
                site = sites + 2 * (e - self.starts[begin + i] if self.tied else e)
                p = how.q[at] - power * site[0]
                fine = fine and p > SMALLEST * how.q[at] and p > 0.0
                s = 1.0 / p
                mu = (how.q[at + 1] - power * site[1]) * s
                self.s2[e - base], self.mu[e - base] = s, mu
                mean += a * mu
                variance += a * a * s
            self.skipped[i] = not (fine and isfinite(mean) and 0.0 < variance < INFINITY)
            if self.skipped[i]:
                mean, variance = 0.0, 1.0
            self.m[i], self.v[i] = mean, variance
        status = self.triple(power, begin, count)
        if status != OK:
            return status
        for i in range(count if how.log_Z != NULL else 0):
            how.log_Z[scale - how.scale + begin + i] = NAN if self.skipped[i] else self.lZ[i]
        # how much each precision grows, as what is left of a variance
        for i in range(count):
            d2, product, total = self.d2lZ[i], 1.0, 0.0
            fine = not (self.skipped[i] or self.failed[i])
            if self.failed[i] and not self.skipped[i]:
                self.n_failed += 1
            for e in range(self.starts[begin + i], self.starts[begin + i + 1]):
                a = self.coefficient[e]
                shrink = 1.0 + a * a * self.s2[e - base] * d2
                self.ratio[e - base] = shrink
                fine = fine and shrink > SMALLEST
                product *= shrink
                if (e - self.starts[begin + i]) % TOGETHER == TOGETHER - 1:
                    total += log(product)
                    product = 1.0
            self.skipped[i] = not fine
            self.logs[i] = product if fine else 1.0
            self.v[i] = total                   # of the variance nothing is needed any more
        kernels.log(count, &self.logs[0], &self.logs[0])
        if self.tied:
            part = 1.0 / self.n
        for i in range(count):
            if self.skipped[i]:
                self.n_refused += 1
                continue
            d, d2, g = self.dlZ[i], self.d2lZ[i], self.lZ[i] - 0.5 * (self.logs[i] + self.v[i])
            fine = True
            for e in range(self.starts[begin + i], self.starts[begin + i + 1]):
                at, a, s, mu = self.at[e], self.coefficient[e], self.s2[e - base], self.mu[e - base]
                shrink = self.ratio[e - base]
                mean = mu + a * s * d
                g += 0.5 * (mu * mu - mean * mean / shrink) / s
                tau = -a * a * d2 / shrink / power
                nu = a * (d - a * mu * d2) / shrink / power
                site = sites + 2 * (e - self.starts[begin + i] if self.tied else e)
                self.mu[e - base] = share * (tau - site[0])
                self.s2[e - base] = share * (nu - site[1])
                # in parallel order the beliefs are looked at when all is added up
                fine = fine and isfinite(nu)
                fine = fine and (a == 0.0 or how.q[at] + self.mu[e - base] > 0.0)
            if not (fine and isfinite(g)):
                self.n_refused += 1
                continue
            for e in range(self.starts[begin + i], self.starts[begin + i + 1]):
                at = self.at[e]
                site = sites + 2 * (e - self.starts[begin + i] if self.tied else e)
                how.out[at] += self.mu[e - base]
                how.out[at + 1] += self.s2[e - base]
                site += how.away
                site[0] += part * self.mu[e - base]
                site[1] += part * self.s2[e - base]
            scale[begin + i] += share * (g / power - scale[begin + i])
        return OK


cdef inline double log_partition(double tau, double nu) noexcept nogil:
    return 0.5 * nu * nu / tau - 0.5 * log(tau) + HALF_LOG_2PI


cdef class GaussianBatch(GraphBatch):
    """Factors N(y; h, variance) of linear forms h: messages in closed form, whatever their power.

    One neighbour may have a flat cavity, as the next state of a chain has it: it gets its message,
    and the others none. Arrays as in :class:`LinearBatch`; ``y`` and ``variance`` (n,), the noise
    of the form included.
    """

    cdef const ptrdiff_t[::1] starts, at
    cdef const double[::1] coefficient, y, variance
    cdef double[::1] mu, s2, before, tau, nu    # of the edges of a factor; sums before each

    def __init__(
        self, const ptrdiff_t[::1] starts, const ptrdiff_t[::1] at, const double[::1] coefficient,
        const double[::1] y, const double[::1] variance, bint tied=False,
    ):
        cdef ptrdiff_t n = y.shape[0], i, most = 0
        if (
            starts.shape[0] != n + 1 or starts[n] != at.shape[0] or variance.shape[0] != n
            or coefficient.shape[0] != at.shape[0]
        ):
            raise ValueError("the arrays of a batch do not fit together")
        self.n, self.tied = n, tied
        self.width = 2 * (starts[1] if tied else starts[n])
        self.starts, self.at, self.coefficient = starts, at, coefficient
        self.y, self.variance = y, variance
        for i in range(n):
            most = max(most, starts[i + 1] - starts[i])
        self.mu, self.s2, self.before, self.tau, self.nu = np.empty((5, max(1, most)))

    cdef Status run(
        self, const Update *how, double *sites, double *scale, ptrdiff_t first, ptrdiff_t stop
    ) noexcept nogil:
        cdef ptrdiff_t i
        for i in range(first, stop):
            if not self.factor(
                how, sites if self.tied else sites + 2 * self.starts[i], &scale[i], i
            ):
                self.n_refused += 1
        return OK

    cdef bint factor(
        self, const Update *how, double *site, double *scale, ptrdiff_t i
    ) noexcept nogil:
        """Update one factor; False: it waits, and nothing changes."""
        cdef ptrdiff_t first = self.starts[i], k = self.starts[i + 1] - first, e, at, flat = -1
        cdef double power = how.power, own = self.variance[i] / power, p, a, mean = 0.0, rest = 0.0
        cdef double after = 0.0, away = self.y[i], g, unit
        for e in range(k):
            at, a = self.at[first + e], self.coefficient[first + e]
            p = how.q[at] - power * site[2 * e]
            if a == 0.0:
                self.s2[e] = self.mu[e] = 0.0
            elif p > SMALLEST * how.q[at] and p > 0.0:
                self.s2[e] = a * a / p
                self.mu[e] = a * (how.q[at + 1] - power * site[2 * e + 1]) / p
            elif flat < 0 and fabs(p) <= SMALLEST * how.q[at]:
                flat = e
                self.s2[e] = self.mu[e] = 0.0
            else:
                return False
            self.before[e] = rest               # variances of the others, without a difference
            rest += self.s2[e]
            mean += self.mu[e]
        away -= mean
        g = 0.0
        for e in range(k - 1, -1, -1):
            a = self.coefficient[first + e]
            rest = own + self.before[e] + after
            after += self.s2[e]
            if flat < 0 or e == flat:
                self.tau[e] = a * a / (rest * power)
                self.nu[e] = a * (away + self.mu[e]) / (rest * power)
            else:
                self.tau[e] = self.nu[e] = 0.0
        # log of the integral over all cavities, where a flat one counts as 1; and A(cavity)
        if flat < 0:
            rest = own + after
            g = -0.5 * away * away / rest - 0.5 * log(rest) - HALF_LOG_2PI
        else:
            g = -log(fabs(self.coefficient[first + flat]))
        # N(y; h, variance)^power is that of the variance over the power, times this
        g += 0.5 * (log(own) - power * log(own * power)) + (1.0 - power) * HALF_LOG_2PI
        for e in range(k):
            at, a = self.at[first + e], self.coefficient[first + e]
            unit = self.tau[e] - site[2 * e]
            if a == 0.0:
                continue
            if not (isfinite(self.nu[e]) and how.q[at] + how.damping * unit > 0.0):
                return False
            if e != flat:
                p, away = how.q[at] - power * site[2 * e], how.q[at + 1] - power * site[2 * e + 1]
                g += log_partition(p, away)
                g -= log_partition(p + power * self.tau[e], away + power * self.nu[e])
            else:
                g -= log_partition(power * self.tau[e], power * self.nu[e])
        if not isfinite(g):
            return False
        unit = how.damping / self.n if self.tied else how.damping
        for e in range(k):
            at = self.at[first + e]
            how.out[at] += how.damping * (self.tau[e] - site[2 * e])
            how.out[at + 1] += how.damping * (self.nu[e] - site[2 * e + 1])
            (site + how.away)[2 * e] += unit * (self.tau[e] - site[2 * e])
            (site + how.away)[2 * e + 1] += unit * (self.nu[e] - site[2 * e + 1])
        scale[0] += how.damping * (g / power - scale[0])
        return True


cdef class TransitionBatch(GraphBatch):
    """Factors N(x'; phi x, variance) of pairs of variables, at (n, 2): x and x'.

    In natural parameters, so that either cavity may be flat, and a variance 0.
    """

    cdef const ptrdiff_t[:, ::1] at
    cdef const double[::1] phi, variance

    def __init__(
        self, const ptrdiff_t[:, ::1] at, const double[::1] phi, const double[::1] variance
    ):
        cdef ptrdiff_t n = at.shape[0]
        if at.shape[1] != 2 or phi.shape[0] != n or variance.shape[0] != n:
            raise ValueError("the arrays of a batch do not fit together")
        self.n, self.width = n, 4 * n
        self.at, self.phi, self.variance = at, phi, variance

    cdef Status run(
        self, const Update *how, double *sites, double *scale, ptrdiff_t first, ptrdiff_t stop
    ) noexcept nogil:
        if how.out == how.q and how.away == 0:
            self.n_refused += kernels.graph_transitions(
                stop - first, how.power, how.damping, how.out, &self.at[first, 0],
                &self.phi[first], &self.variance[first], sites + 4 * first, scale + first
            )
            return OK
        self.one_by_one(how, sites, scale, first, stop)
        return OK

    cdef void one_by_one(
        self, const Update *how, double *sites, double *scale, ptrdiff_t first, ptrdiff_t stop
    ) noexcept nogil:
        """Factors that may share variables: from fixed beliefs."""
        cdef double power = how.power, share = how.damping
        cdef double tau, nu, next_tau, next_nu, phi, s2, D, E, new_tau, new_nu, back_tau, back_nu, g
        cdef double belief, next_belief
        cdef const double *q
        cdef const double *next
        cdef double *site
        cdef ptrdiff_t i
        for i in range(first, stop):
            q, next, site = how.q + self.at[i, 0], how.q + self.at[i, 1], sites + 4 * i
            phi, s2 = self.phi[i], self.variance[i] / power
            tau, nu = q[0] - power * site[0], q[1] - power * site[1]
            next_tau, next_nu = next[0] - power * site[2], next[1] - power * site[3]
            # what is left of a belief by rounding alone is nothing
            if fabs(tau) < SMALLEST * q[0]:
                tau = nu = 0.0
            if fabs(next_tau) < SMALLEST * next[0]:
                next_tau = next_nu = 0.0
            D, E = phi * phi + s2 * tau, 1.0 + s2 * next_tau
            new_tau, new_nu = tau / (D * power), phi * nu / (D * power)
            back_tau, back_nu = phi * phi * next_tau / (E * power), phi * next_nu / (E * power)
            belief = q[0] + share * (back_tau - site[0])
            next_belief = next[0] + share * (new_tau - site[2])
            if not (
                D > 0.0 and E > 0.0 and belief > 0.0 and next_belief > 0.0
                and next_tau + power * new_tau > 0.0
            ):
                self.n_refused += 1
                continue
            g = -0.5 * log(E) + 0.5 * next_nu * next_nu * s2 / E
            g -= log_partition(next_tau + power * new_tau, next_nu + power * new_nu)
            if power != 1.0:
                g += 0.5 * (log(s2) - power * log(s2 * power)) + (1.0 - power) * HALF_LOG_2PI
            how.out[self.at[i, 0]] += share * (back_tau - site[0])
            how.out[self.at[i, 0] + 1] += share * (back_nu - site[1])
            how.out[self.at[i, 1]] += share * (new_tau - site[2])
            how.out[self.at[i, 1] + 1] += share * (new_nu - site[3])
            (site + how.away)[0] += share * (back_tau - site[0])
            (site + how.away)[1] += share * (back_nu - site[1])
            (site + how.away)[2] += share * (new_tau - site[2])
            (site + how.away)[3] += share * (new_nu - site[3])
            scale[i] += share * (g / power - scale[i])


cdef class PythonBatch(GraphBatch):
    """Factors that a Python function fits, called once for each run of them.

    ``fit(first, stop, beliefs, sites, power, damping)`` gets the natural parameters of all
    neighbours of the factors of a run, and their sites, (stop - first, numbers) each, in arrays of
    its own; it returns the undamped steps of the sites, of that shape, the undamped log scales, and
    which fits failed (stop - first,). A factor with a step or a scale that is not finite waits.

    at: (n, numbers), where the natural parameters of the neighbours are.
    """

    cdef readonly object fit
    cdef object error
    cdef const ptrdiff_t[:, ::1] at

    def __init__(self, fit, const ptrdiff_t[:, ::1] at, bint tied=False):
        cdef ptrdiff_t i, j
        for i in range(at.shape[0]):
            for j in range(at.shape[1]):
                if at[i, j] < 0:
                    raise ValueError("a place is out of range")
        self.n, self.tied = at.shape[0], tied
        self.width = at.shape[1] if tied else at.shape[0] * at.shape[1]
        self.fit, self.at = fit, at

    cdef int reraise(self) except -1:
        error, self.error = self.error, None
        raise error

    cdef Status run(
        self, const Update *how, double *sites, double *scale, ptrdiff_t first, ptrdiff_t stop
    ) noexcept nogil:
        if first == stop:
            return OK
        with gil:
            try:
                self.update(how, sites, scale, first, stop)
            except BaseException as error:  # Ctrl-C too
                self.error = error
                return CALLBACK_FAILED
        return OK

    cdef int update(
        self, const Update *how, double *sites, double *scale, ptrdiff_t first, ptrdiff_t stop
    ) except -1:
        cdef ptrdiff_t count = stop - first, numbers = self.at.shape[1], i, j, base
        cdef double part = 1.0 / self.n if self.tied else 1.0
        cdef double[:, ::1] q = np.empty((count, numbers)), old = np.empty((count, numbers))
        cdef const double[:, :] steps
        cdef const double[:] scales
        cdef const unsigned char[:] failed
        cdef bint fine
        for i in range(count):
            base = 0 if self.tied else (first + i) * numbers
            for j in range(numbers):
                q[i, j], old[i, j] = how.q[self.at[first + i, j]], sites[base + j]
        steps, scales, failed = self.fit(
            first, stop, np.asarray(q), np.asarray(old), how.power, how.damping
        )
        if (
            steps.shape[0] != count or steps.shape[1] != numbers or scales.shape[0] != count
            or failed.shape[0] != count
        ):
            raise ValueError("the fits of a batch have another shape than its sites")
        for i in range(count):
            fine = isfinite(scales[i])
            for j in range(numbers):
                fine = fine and isfinite(steps[i, j])
            self.n_failed += failed[i]
            if not fine:
                self.n_refused += 1
                continue
            base = 0 if self.tied else (first + i) * numbers
            for j in range(numbers):
                how.out[self.at[first + i, j]] += how.damping * steps[i, j]
                (sites + how.away)[base + j] += part * how.damping * steps[i, j]
            scale[first + i] += how.damping * (scales[i] - scale[first + i])
        return 0


cdef class Program:
    """Runs of factors without a common variable, in order: (batch, first, stop) each.

    first_site and first_factor: where the sites and log scales of each batch begin.
    """

    cdef list batches
    cdef const ptrdiff_t[:, ::1] segments
    cdef ptrdiff_t[::1] first_site, first_factor
    cdef readonly ptrdiff_t n_sites, n_factors

    def __init__(self, list batches, const ptrdiff_t[:, ::1] segments):
        cdef GraphBatch batch
        cdef ptrdiff_t k, i
        self.batches, self.segments = batches, segments
        self.first_site = np.zeros(len(batches) + 1, dtype=np.intp)
        self.first_factor = np.zeros(len(batches) + 1, dtype=np.intp)
        for k in range(len(batches)):
            batch = batches[k]
            self.first_site[k + 1] = self.first_site[k] + batch.width
            self.first_factor[k + 1] = self.first_factor[k] + batch.n
        self.n_sites = self.first_site[len(batches)]
        self.n_factors = self.first_factor[len(batches)]
        if segments.shape[1] != 3:
            raise ValueError("a segment is a batch, its first factor and where it stops")
        for i in range(segments.shape[0]):
            if not 0 <= segments[i, 0] < len(batches):
                raise ValueError("a segment is of no batch")
            batch = batches[segments[i, 0]]
            if not 0 <= segments[i, 1] <= segments[i, 2] <= batch.n:
                raise ValueError("a segment is out of range")

    def run(
        self, ptrdiff_t first, ptrdiff_t stop, bint backward, const double[::1] q, double[::1] out,
        const double[::1] old_sites, double[::1] sites, double[::1] scale, double power,
        double damping, double[::1] log_Z=None,
    ):
        """Run the segments from first to stop, from the last to the first if backward.

        q and old_sites are read, out and sites written: in sequential order they are the same.
        log_Z: the log of what each factor's integral over its cavities is, where its batch finds
        one. Signals are looked at after it.
        """
        cdef ptrdiff_t i, k, step
        cdef Status status = OK
        cdef Update how
        cdef PyObject **batches = NULL
        if not 0 <= first <= stop <= self.segments.shape[0]:
            raise ValueError("segments are out of range")
        if (
            old_sites.shape[0] != self.n_sites or sites.shape[0] != self.n_sites
            or scale.shape[0] != self.n_factors or q.shape[0] != out.shape[0]
        ):
            raise ValueError("the arrays of a state do not fit the program")
        if first == stop or q.shape[0] == 0:
            return
        how.q, how.out, how.power, how.damping = &q[0], &out[0], power, damping
        how.away = &sites[0] - &old_sites[0]
        how.scale, how.log_Z = &scale[0], NULL
        if log_Z is not None:
            if log_Z.shape[0] != self.n_factors:
                raise ValueError("log_Z does not fit the program")
            how.log_Z = &log_Z[0]
        batches = <PyObject **> PyMem_Malloc(len(self.batches) * sizeof(PyObject *))
        if batches == NULL:
            raise MemoryError
        for k in range(len(self.batches)):
            batches[k] = <PyObject *> self.batches[k]
        with nogil:
            for step in range(stop - first):
                i = stop - 1 - step if backward else first + step
                k = self.segments[i, 0]
                status = (<GraphBatch> batches[k]).run(
                    &how, <double *> &old_sites[0] + self.first_site[k],
                    &scale[0] + self.first_factor[k], self.segments[i, 1], self.segments[i, 2]
                )
                if status != OK:
                    break
        PyMem_Free(batches)
        if status == CALLBACK_FAILED:
            (<GraphBatch> self.batches[k]).reraise()
        heed_signals()

    def counts(self):
        """Factors that waited and fits that failed since the last call, (refused, failed)."""
        cdef GraphBatch batch
        cdef ptrdiff_t refused = 0, failed = 0
        for batch in self.batches:
            refused += batch.n_refused
            failed += batch.n_failed
            batch.n_refused = batch.n_failed = 0
        return refused, failed
