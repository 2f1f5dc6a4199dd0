"""Message passing on a factor graph: sweeps over batches of factors with Gaussian neighbours.

Beliefs are natural parameters in one flat array, as in epfast/families.py: Gaussian (tau, nu),
gamma (shape - 1, rate), beta (alpha - 1, beta - 1), categorical (logits), Dirichlet (alpha - 1). A
batch holds factors of one kind; ``at`` says where its neighbours are. A factor's update is

    cavity = belief / site^a,   fit = moments of t^a x cavity,   site = (fit / cavity)^(1/a)

and its log scale is (log Z - sum of A(fit) - A(cavity)) / a with A the log partition function, so
that the log evidence is the sum of all scales and of A(belief) - A(prior).

:class:`GraphBatch` has this update: cavities, damping, shared sites, evidence, refusal. A kind of
factor has its fit, log Z and the differences between targets and cavities. Vectors of linear forms
with few terms have a second one, in simd/graph.h.

Factors without a variable in common go together: :func:`runs` finds, for a sequential order, runs
of such factors that give what one after the other would.
"""

from collections import Counter

import numpy as np

from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.ref cimport PyObject
from libc.math cimport INFINITY, NAN, fabs, fmax, isfinite, log, sqrt

from epfast._core.cholesky cimport heed_signals
from epfast._core.site cimport SMALLEST
from epfast._core.special cimport log_beta, log_gamma, log_multivariate_beta
from epfast._core.status cimport CALLBACK_FAILED, OK, Status
from epfast._core.tilted cimport TiltedMoments
from epfast._core.vector cimport (
    EPF_GRAPH_CAVITY, EPF_GRAPH_CHUNK, EPF_MOMENTS_INTERVAL, EPF_MOMENTS_LOGISTIC,
    EPF_MOMENTS_NONE, EPF_MOMENTS_PROBIT, kernels,
)

cdef enum:
    CHUNK = EPF_GRAPH_CHUNK     # factors that are fitted at once
    FULL = 8                    # lanes of the widest vectors

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


# ---- families of variables ----


cdef inline bint is_proper(int kind, ptrdiff_t k, const double *eta) noexcept nogil:
    cdef ptrdiff_t j
    if kind == GAUSSIAN:
        return 0.0 < eta[0] < INFINITY and isfinite(eta[1])
    if kind == GAMMA:
        return eta[0] > -1.0 and eta[1] > 0.0 and isfinite(eta[0]) and isfinite(eta[1])
    if kind == BETA:
        return eta[0] > -1.0 and eta[1] > -1.0 and isfinite(eta[0]) and isfinite(eta[1])
    for j in range(k):
        if not isfinite(eta[j]) or (kind == DIRICHLET and not eta[j] > -1.0):
            return False
    return True


cdef inline double partition(int kind, ptrdiff_t k, const double *eta) noexcept nogil:
    """A(eta), the log partition function."""
    if kind == GAUSSIAN:
        return 0.5 * eta[1] * eta[1] / eta[0] - 0.5 * log(eta[0]) + HALF_LOG_2PI
    if kind == GAMMA:
        return log_gamma(eta[0] + 1.0) - (eta[0] + 1.0) * log(eta[1])
    if kind == BETA:
        return log_beta(eta[0] + 1.0, eta[1] + 1.0)
    if kind == DIRICHLET:
        return log_multivariate_beta(eta, k)
    return log_sum_exp(k, eta)


cdef inline Cavity find_cavity(
    int kind, ptrdiff_t k, double power, const double *q, const double *site, double *cavity,
    double *change
) noexcept nogil:
    """The cavity q / site^power; what rounding alone has left is nothing. Its change is 0."""
    cdef double tau, nu
    cdef ptrdiff_t j
    if kind == GAUSSIAN:
        tau, nu = q[0] - power * site[0], q[1] - power * site[1]
        cavity[0], cavity[1] = tau, nu
        change[0] = change[1] = 0.0
        if tau > SMALLEST * q[0] and tau > 0.0 and tau + fabs(nu) < INFINITY:
            return PROPER
        if not fabs(tau) <= SMALLEST * q[0]:
            return IMPROPER
        cavity[0] = cavity[1] = 0.0
        return FLAT
    for j in range(k):
        cavity[j], change[j] = q[j] - power * site[j], 0.0
    if kind == GAMMA:
        # a flat prior is shape 1, rate 0
        tau, nu = fabs(cavity[0]), fabs(cavity[1])
        if tau <= SMALLEST * fmax(1.0, fabs(q[0])) and nu <= SMALLEST * fabs(q[1]):
            cavity[0] = cavity[1] = 0.0
            return FLAT
        if not (cavity[0] + 1.0 > SMALLEST * (q[0] + 1.0) and cavity[1] > SMALLEST * q[1]):
            return IMPROPER
    elif kind == BETA or kind == DIRICHLET:
        for j in range(k):
            if not cavity[j] + 1.0 > SMALLEST * (q[j] + 1.0):
                return IMPROPER
    return PROPER if is_proper(kind, k, cavity) else IMPROPER


# ---- one update ----


cdef inline bint gaussian_step(
    int known, const Update *how, const double *q, const double *site, const double *c,
    double *change, double *g, double *ratio
) noexcept nogil:
    """The step of a site, in place of the change from its cavity c. False: a belief is improper.

    g loses A(target), and gains A(c) of a proper cavity. ratio: of the precisions of these, whose
    logs are taken at once.
    """
    cdef double tau = c[0] + change[0], nu = c[1] + change[1], new_tau, new_nu
    change[0] = how.damping * (change[0] / how.power - site[0])
    change[1] = how.damping * (change[1] / how.power - site[1])
    new_tau, new_nu = q[0] + change[0], q[1] + change[1]
    if tau > 0.0 and new_tau > 0.0 and tau + fabs(nu) + new_tau + fabs(new_nu) < INFINITY:
        if known != PROPER:
            g[0] -= 0.5 * nu * nu / tau - 0.5 * log(tau) + HALF_LOG_2PI
            return True
        g[0] += 0.5 * (c[1] / c[0] * c[1] - nu / tau * nu)
        ratio[0] *= tau / c[0]
        if not 1e-100 < ratio[0] < 1e100:
            g[0] += 0.5 * log(ratio[0])
            ratio[0] = 1.0
        return True
    # what is flat may stay so
    return known == FLAT and tau == 0.0 and nu == 0.0 and (
        (new_tau > 0.0 and new_tau + fabs(new_nu) < INFINITY) or new_tau == new_nu == 0.0
    )


cdef bint other_step(
    int kind, ptrdiff_t k, int known, const Update *how, const double *q, const double *site,
    double *c, double *change, double *g
) noexcept nogil:
    """The same of another family; its cavity is overwritten, whose A is not added."""
    cdef ptrdiff_t j
    cdef bint flat = known == FLAT
    for j in range(k):
        c[j] += change[j]
        change[j] = how.damping * (change[j] / how.power - site[j])
        flat = flat and c[j] == 0.0
    if is_proper(kind, k, c):
        g[0] -= partition(kind, k, c)
    elif not flat:
        return False
    for j in range(k):
        c[j] = q[j] + change[j]
        flat = flat and c[j] == 0.0
    return flat or is_proper(kind, k, c)


cdef inline ptrdiff_t number(GraphBatch batch, ptrdiff_t edge) noexcept nogil:
    """Where the numbers of an edge are among those of all edges."""
    return 2 * edge if batch.gaussian else batch.first[edge]


cdef inline double *turn_to(
    GraphBatch batch, double *sites, ptrdiff_t first, ptrdiff_t i
) noexcept nogil:
    """Let c, g and known be of factor i, of those from the first that go together. Its sites."""
    cdef ptrdiff_t e = batch.starts[i], base = batch.starts[first]
    cdef ptrdiff_t o = number(batch, e), begin = number(batch, base)
    batch.c, batch.g = &batch.cavity[o - begin], &batch.change[o - begin]
    batch.known = &batch.cavities[e - base]
    return sites if batch.tied else sites + o


cdef inline bint find_cavities(
    GraphBatch batch, bint gaussian, const Update *how, const double *site, ptrdiff_t i
) noexcept nogil:
    """Cavities of factor i. False: one is improper."""
    cdef const ptrdiff_t *at = &batch.at[0]
    cdef double *c = batch.c
    cdef double *g = batch.g
    cdef int *known = batch.known - batch.starts[i]
    cdef ptrdiff_t e, size = 2
    cdef int kind = GAUSSIAN
    cdef bint fine = True
    for e in range(batch.starts[i], batch.starts[i + 1]):
        if not gaussian:
            kind, size = batch.kind[e], batch.size[e]
        known[e] = find_cavity(kind, size, how.power, how.q + at[e], site, c, g)
        fine = fine and known[e] != IMPROPER
        site += size
        c += size
        g += size
    return fine


cdef inline bint find_steps(
    GraphBatch batch, bint gaussian, const Update *how, const double *site, ptrdiff_t i,
    double *log_scale
) noexcept nogil:
    """Steps of the sites of factor i, and its log scale from lZ. False: a belief is improper."""
    cdef const ptrdiff_t *at = &batch.at[0]
    cdef double *c = batch.c
    cdef double *g = batch.g
    cdef const int *known = batch.known - batch.starts[i]
    cdef double total = log_scale[0], ratio = 1.0
    cdef ptrdiff_t e, size = 2
    cdef bint fine
    for e in range(batch.starts[i], batch.starts[i + 1]):
        if gaussian or batch.kind[e] == GAUSSIAN:
            fine = gaussian_step(known[e], how, how.q + at[e], site, c, g, &total, &ratio)
        else:
            fine = other_step(
                batch.kind[e], batch.size[e], known[e], how, how.q + at[e], site, c, g, &total
            )
        if not fine:
            return False
        if not gaussian:
            size = batch.size[e]
        site += size
        c += size
        g += size
    log_scale[0] = total + 0.5 * log(ratio)
    return True


cdef inline void move(
    GraphBatch batch, const Update *how, double *site, ptrdiff_t i
) noexcept nogil:
    """Take the steps of factor i."""
    cdef const ptrdiff_t *at = &batch.at[0]
    cdef const double *step = batch.g
    cdef double *out
    cdef double part = 1.0 / batch.n if batch.tied else 1.0
    cdef ptrdiff_t e, j, stop = batch.starts[i + 1]
    cdef bint gaussian = batch.gaussian
    for j in range(number(batch, stop) - number(batch, batch.starts[i])):
        site[j] += part * step[j]
    for e in range(batch.starts[i], stop):
        out = how.out + at[e]
        if gaussian:
            out[0] += step[0]
            out[1] += step[1]
            step += 2
            continue
        for j in range(batch.size[e]):
            out[j] += step[j]
        step += batch.size[e]


cdef double masses(GraphBatch batch, ptrdiff_t i) noexcept nogil:
    """A(cavity) of the neighbours of factor i whose proper cavities are not normalised in lZ."""
    cdef ptrdiff_t e, o = 0, begin = batch.starts[i]
    cdef double total = 0.0
    for e in range(begin, begin if batch.gaussian else batch.starts[i + 1]):
        if batch.kind[e] != GAUSSIAN and batch.known[e - begin] == PROPER:
            total += partition(batch.kind[e], batch.size[e], batch.c + o)
        o += batch.size[e]
    return total


cdef class GraphBatch:
    """Factors of one kind, in the order of the program.

    starts: (n + 1,) where the neighbours of each factor begin; at: (edges,) where the natural
    parameters of each neighbour are; kind and size: (edges,) its family and how many those are, or
    None where all are Gaussians. at_once: how many factors are fitted at once.
    """

    def __init__(
        self, const ptrdiff_t[::1] starts, const ptrdiff_t[::1] at, kind=None, size=None,
        bint tied=False, ptrdiff_t at_once=1,
    ):
        cdef ptrdiff_t n = starts.shape[0] - 1, edges = at.shape[0], i, stop
        cdef ptrdiff_t numbers = 1, most_edges = 1
        if n < 0 or starts[0] != 0 or starts[n] != edges:
            raise ValueError("the arrays of a batch do not fit together")
        self.n, self.tied, self.starts, self.at = n, tied, starts, at
        self.at_once = max(1, min(at_once, n))
        self.gaussian = kind is None
        if not self.gaussian:
            self.kind = np.ascontiguousarray(kind, dtype=np.intc)
            self.size = np.ascontiguousarray(size, dtype=np.intp)
            if self.kind.shape[0] != edges or self.size.shape[0] != edges:
                raise ValueError("the arrays of a batch do not fit together")
            self.first = np.concatenate([[0], np.cumsum(size)]).astype(np.intp)
        self.width = number(self, starts[1] if tied and n else edges)
        for i in range(n):
            if starts[i] > starts[i + 1]:
                raise ValueError("starts fall")
            stop = starts[min(i + self.at_once, n)]
            most_edges = max(most_edges, stop - starts[i])
            numbers = max(numbers, number(self, stop) - number(self, starts[i]))
        self.cavity, self.change = np.zeros((2, numbers))
        self.cavities = np.zeros(most_edges, dtype=np.intc)
        self.answer = np.zeros(self.at_once, dtype=np.intc)
        self.log_integral = np.zeros(self.at_once)
        self.gives_log_Z = True

    cdef Answer fit(self, ptrdiff_t i, double power) noexcept nogil:
        """Find lZ and the change, which is 0 before, of factor i."""
        return WAITS

    cdef Status fits(self, ptrdiff_t first, ptrdiff_t count, double power) noexcept nogil:
        """Fit the factors from the first on whose answer is FITTED."""
        cdef ptrdiff_t i
        cdef Answer answer
        for i in range(count):
            if self.answer[i] != FITTED:
                continue
            turn_to(self, NULL, first, first + i)
            answer = self.fit(first + i, power)
            if answer == STOPPED:
                return CALLBACK_FAILED
            self.answer[i] = answer
            if answer == FITTED or answer == ROUGH:
                self.log_integral[i] = self.lZ
        return OK

    cdef Status update(
        self, const Update *how, double *sites, double *scale, ptrdiff_t first, ptrdiff_t count
    ) noexcept nogil:
        """Update factors from fixed beliefs. Where one waits nothing changes."""
        cdef ptrdiff_t i
        cdef Status status
        cdef int answer
        cdef double g
        cdef double *site
        cdef bint fine
        for i in range(count):
            site = turn_to(self, sites, first, first + i)
            if self.gaussian:           # apart: loops over numbers whose count is known
                fine = find_cavities(self, True, how, site, first + i)
            else:
                fine = find_cavities(self, False, how, site, first + i)
            self.answer[i] = FITTED if fine or self.takes_improper else NO_CAVITY
            self.log_integral[i] = NAN
        self.belief = how.q
        status = self.fits(first, count, how.power)
        if status != OK:
            return status
        for i in range(count):
            site = turn_to(self, sites, first, first + i)
            answer, g = self.answer[i], self.log_integral[i]
            if how.log_Z != NULL and self.gives_log_Z:
                how.log_Z[scale - how.scale + first + i] = g - masses(self, first + i)
            if answer == FITTED or answer == ROUGH:
                if self.gaussian:
                    fine = find_steps(self, True, how, site, first + i, &g)
                else:
                    fine = find_steps(self, False, how, site, first + i, &g)
                if not fine:
                    answer = NO_BELIEF
                elif not isfinite(g):
                    answer = FAILED
                else:
                    move(self, how, site + how.away, first + i)
                    scale[first + i] += how.damping * (g / how.power - scale[first + i])
            if answer != FITTED:
                self.n_refused += 1
                self.n_failed += answer == FAILED
                self.answers[answer] += 1
                if answer == IMPOSSIBLE:
                    self.impossible = first + i + 1
        return OK

    cdef Status run(
        self, const Update *how, double *sites, double *scale, ptrdiff_t first, ptrdiff_t stop
    ) noexcept nogil:
        """Update the factors from first to stop, which share no variable, or from fixed beliefs."""
        cdef ptrdiff_t count
        cdef Status status = OK
        while first < stop and status == OK:
            count = min(self.at_once, stop - first)
            status = self.update(how, sites, scale, first, count)
            first += count
        return status

    cdef int reraise(self) except -1:
        """Raise the exception of a callback."""
        return 0


cdef int common_terms(GraphBatch batch, const double[::1] coefficient, int most) except -1:
    """How many terms each form has if vectors may go over them; 0: they go one by one."""
    terms = np.diff(batch.starts)
    alike = batch.n > 0 and not batch.tied and terms[0] <= most and np.all(terms == terms[0])
    return terms[0] if alike and np.all(coefficient) else 0


cdef class LinearBatch(GraphBatch):
    """Factors t(h; y) of linear forms h = sum_j a_j x_j + offset + N(0, noise).

    coefficient: (edges,). No variable twice in a form.
    """

    cdef TiltedMoments moments
    cdef int kernel                             # of moments; EPF_MOMENTS_NONE: ask moments
    cdef int terms                              # of each form, 1 to 3; 0: see fit
    cdef bint of_margin                         # the forms are those of y h
    cdef bint is_indicator                      # t is 0 or 1, and so is every power of it
    cdef const double[::1] coefficient, offset, noise
    cdef const double[:, ::1] y
    cdef double[::1] m, v, powers, lZs, dlZ, d2lZ, lanes    # of a chunk
    cdef unsigned char[::1] failed

    def __init__(
        self, TiltedMoments moments not None, starts, at, const double[::1] coefficient,
        const double[::1] offset, const double[::1] noise, const double[:, ::1] y, bint tied=False,
        bint is_indicator=False,
    ):
        GraphBatch.__init__(self, starts, at, tied=tied, at_once=CHUNK)
        if (
            offset.shape[0] != self.n or y.shape[0] != self.n or noise.shape[0] != self.n
            or coefficient.shape[0] != self.at.shape[0] or y.shape[1] != moments.loss.stride
        ):
            raise ValueError("the arrays of a batch do not fit together")
        moments.loss.check_responses(y, self.n)
        self.is_indicator, self.moments = is_indicator, moments
        self.coefficient, self.offset, self.noise, self.y = coefficient, offset, noise, y
        # what a form has 0 of may be flat
        self.takes_improper = not np.all(coefficient)
        self.terms = common_terms(self, coefficient, 3)
        self.choose_kernel()
        self.m, self.v, self.lZs, self.dlZ, self.d2lZ = np.empty((5, CHUNK))
        self.powers = np.ones(CHUNK)
        self.lanes = np.empty(3 * EPF_GRAPH_CAVITY)
        self.failed = np.empty(CHUNK, dtype=np.uint8)

    cdef int choose_kernel(self) except -1:
        """Moments whose kernel may be called at once: what it takes is what the batch has."""
        cdef TiltedMoments moments = self.moments
        self.kernel = EPF_MOMENTS_NONE
        if moments.scheme is not None or moments.loss.shifted or moments.loss.c.beta != 1.0:
            return 0
        if moments.kernel == EPF_MOMENTS_INTERVAL and self.is_indicator:
            self.kernel = EPF_MOMENTS_INTERVAL
        elif moments.kernel in (EPF_MOMENTS_PROBIT, EPF_MOMENTS_LOGISTIC):
            # the label turns the form
            self.kernel, self.of_margin = moments.kernel, True
            label = np.asarray(self.y)[:, 0]
            self.coefficient = np.asarray(self.coefficient) * np.repeat(label, np.diff(self.starts))
            self.offset = np.asarray(self.offset) * label
        return 0

    cdef int reraise(self) except -1:
        return self.moments.loss.reraise()

    cdef Status triple(self, double power, ptrdiff_t begin, ptrdiff_t count) noexcept nogil:
        """Tilted moments at the cavities of a chunk."""
        cdef const double *y = NULL
        cdef ptrdiff_t i
        if self.kernel != EPF_MOMENTS_NONE and (power == 1.0 or self.is_indicator):
            if self.kernel == EPF_MOMENTS_INTERVAL:
                kernels.between_moments(
                    count, &self.y[begin, 0], &self.m[0], &self.v[0], &self.lZs[0], &self.dlZ[0],
                    &self.d2lZ[0]
                )
            elif self.kernel == EPF_MOMENTS_PROBIT:
                kernels.probit_moments(
                    count, &self.m[0], &self.v[0], &self.lZs[0], &self.dlZ[0], &self.d2lZ[0]
                )
            else:
                kernels.logistic_moments(
                    count, &self.m[0], &self.v[0], &self.lZs[0], &self.dlZ[0], &self.d2lZ[0]
                )
            for i in range(count):
                self.failed[i] = not isfinite(self.lZs[i] + self.dlZ[i] + self.d2lZ[i])
            return OK
        for i in range(count):
            self.powers[i] = 1.0 if self.is_indicator else power
        if not self.of_margin:
            y = &self.y[begin, 0]
        return self.moments.batch(
            count, y, &self.m[0], &self.v[0], &self.powers[0], &self.lZs[0], &self.dlZ[0],
            &self.d2lZ[0], &self.failed[0]
        )

    cdef Status update(
        self, const Update *how, double *sites, double *scale, ptrdiff_t first, ptrdiff_t count
    ) noexcept nogil:
        cdef const ptrdiff_t *at = &self.at[self.terms * first]
        cdef const double *coefficient = &self.coefficient[self.terms * first]
        cdef ptrdiff_t i, refused
        cdef Status status
        if self.terms == 0:
            return GraphBatch.update(self, how, sites, scale, first, count)
        sites += 2 * self.terms * first
        kernels.graph_cavities(
            self.terms, count, how.power, how.q, at, coefficient, &self.offset[first],
            &self.noise[first], sites, &self.lanes[0], &self.m[0], &self.v[0]
        )
        status = self.triple(how.power, first, count)
        if status != OK:
            return status
        if how.log_Z != NULL:
            for i in range(count):
                how.log_Z[scale - how.scale + first + i] = (
                    self.lZs[i] if isfinite(self.lanes[i]) else NAN
                )
        refused = kernels.graph_sites(
            self.terms, count, how.power, how.damping, how.q, how.out, at, coefficient,
            &self.lanes[0], &self.lZs[0], &self.dlZ[0], &self.d2lZ[0], sites, how.away,
            scale + first
        )
        if refused > 0:
            self.n_refused += refused
            for i in range(count):      # a cavity that is none has no precision
                if self.failed[i] and isfinite(self.lanes[i]):
                    self.n_failed += 1
        return OK

    cdef Status fits(self, ptrdiff_t first, ptrdiff_t count, double power) noexcept nogil:
        cdef const ptrdiff_t *starts = &self.starts[first]
        cdef const double *coefficient = &self.coefficient[0] + starts[0]
        cdef const double *c = &self.cavity[0]
        cdef double *g = &self.change[0]
        cdef int *known = &self.cavities[0]
        cdef ptrdiff_t i, e
        cdef double a, m, v, s, d, d2, bend, shrink
        cdef bint fine
        cdef Status status
        for i in range(count):
            m, v, fine = self.offset[first + i], self.noise[first + i], True
            for e in range(starts[i] - starts[0], starts[i + 1] - starts[0]):
                a = coefficient[e]
                if known[e] == PROPER:
                    s = 1.0 / c[2 * e]
                    m += a * (c[2 * e + 1] * s)
                    v += a * a * s
                elif a == 0.0:                  # it learns nothing
                    known[e] = FLAT
                else:
                    fine = False
            if not (fine and isfinite(m) and 0.0 < v < INFINITY):
                self.answer[i] = NO_CAVITY
                m, v = 0.0, 1.0
            self.m[i], self.v[i] = m, v
        status = self.triple(power, first, count)
        if status != OK:
            return status
        for i in range(count):
            if self.answer[i] != FITTED:
                continue
            if self.failed[i]:
                self.answer[i] = FAILED
                continue
            self.log_integral[i], d, d2, fine = self.lZs[i], self.dlZ[i], self.d2lZ[i], True
            for e in range(starts[i] - starts[0], starts[i + 1] - starts[0]):
                a = coefficient[e]
                if a == 0.0:
                    continue
                s, bend = 1.0 / c[2 * e], a * d2
                # how much the precision grows, as what is left of the variance
                shrink = 1.0 + a * s * bend
                fine = fine and shrink > SMALLEST
                shrink = 1.0 / shrink
                g[2 * e] = -a * bend * shrink
                g[2 * e + 1] = a * (d - bend * (c[2 * e + 1] * s)) * shrink
            if not fine:
                self.answer[i] = WAITS
        return OK


cdef class InformationBatch(GraphBatch):
    """Factors N(y; h, variance) of linear forms h: messages in closed form, whatever their power.

    They are found in natural parameters. One neighbour may have a flat cavity, as the next state of
    a chain has it: it gets its message, and the others none. Its cavity may also be improper, where
    the tilted distribution is proper, and the variance may be 0. coefficient: (edges,); ``y`` and
    ``variance`` (n,), the noise of the form included.
    """

    cdef bint pairs                             # all forms have two terms: see update
    cdef const double[::1] coefficient, y, variance
    cdef double[::1] mu, s2, others             # of the edges of a factor

    def __init__(
        self, starts, at, const double[::1] coefficient, const double[::1] y,
        const double[::1] variance, bint tied=False,
    ):
        GraphBatch.__init__(self, starts, at, tied=tied, at_once=CHUNK)
        if (
            y.shape[0] != self.n or variance.shape[0] != self.n
            or coefficient.shape[0] != self.at.shape[0]
        ):
            raise ValueError("the arrays of a batch do not fit together")
        self.coefficient, self.y, self.variance = coefficient, y, variance
        self.takes_improper, self.pairs = True, common_terms(self, coefficient, 2) == 2
        self.gives_log_Z = False
        self.mu, self.s2, self.others = np.empty((3, self.cavities.shape[0]))

    cdef Status update(
        self, const Update *how, double *sites, double *scale, ptrdiff_t first, ptrdiff_t count
    ) noexcept nogil:
        if not self.pairs:
            return GraphBatch.update(self, how, sites, scale, first, count)
        self.n_refused += kernels.graph_pairs(
            count, how.power, how.damping, how.q, how.out, &self.at[2 * first],
            &self.coefficient[2 * first], &self.y[first], &self.variance[first],
            sites + 4 * first, how.away, scale + first
        )
        return OK

    cdef Answer fit(self, ptrdiff_t i, double power) noexcept nogil:
        cdef ptrdiff_t first = self.starts[i], k = self.starts[i + 1] - first, e, apart = -1
        cdef double own = self.variance[i] / power, total = 0.0, more = 0.0, away = self.y[i]
        cdef double a, s, p = 0.0, b = 0.0, nu = 0.0, rest, D
        for e in range(k):
            a = self.coefficient[first + e]
            self.others[e] = total              # variances of the others, without a difference
            self.s2[e] = self.mu[e] = 0.0
            if self.known[e] == PROPER:
                s = a / self.c[2 * e]
                self.s2[e], self.mu[e] = a * s, self.c[2 * e + 1] * s
                total += self.s2[e]
                away -= self.mu[e]
            elif a == 0.0:                      # it learns nothing
                self.known[e] = FLAT
            elif apart < 0:
                apart = e
                p, nu, b = self.c[2 * e], self.c[2 * e + 1], a
            else:
                return NO_CAVITY
        for e in range(k - 1, -1, -1):
            a, rest = self.coefficient[first + e], own + self.others[e] + more
            more += self.s2[e]
            if a == 0.0:
                continue
            if apart < 0 or e == apart:
                self.g[2 * e] = a * a / rest
                self.g[2 * e + 1] = a * (away + self.mu[e]) / rest
            else:
                D = rest * p + b * b
                if not D > 0.0:
                    return NO_CAVITY
                self.g[2 * e] = a * a * p / D
                self.g[2 * e + 1] = a * ((away + self.mu[e]) * p - b * nu) / D
        # log of the integral over all cavities, where one apart is not normalised
        rest = own + total
        if apart < 0:
            self.lZ = -0.5 * away * away / rest - 0.5 * log(rest) - HALF_LOG_2PI
        else:
            D = rest * p + b * b
            self.lZ = 0.5 * (nu * nu * rest + away * (2.0 * b * nu - away * p)) / D - 0.5 * log(D)
        if power != 1.0:
            # N(y; h, variance)^power is that of the variance over the power, times this
            self.lZ += 0.5 * (log(own) - power * log(own * power)) + (1.0 - power) * HALF_LOG_2PI
        return FITTED


cdef class PythonBatch(GraphBatch):
    """Factors that a Python function fits, called once for each run of them.

    ``project(rows, cavity, flat, belief, power)`` gets places of factors (m,), natural parameters
    of the cavities and of the beliefs of their neighbours (m, numbers), and which cavities are flat
    (m, neighbours), in arrays of its own. It returns log Z (m,) of the normalised cavities, the
    targets (m, numbers), and which fits failed (m,).

    takes_flat: Gaussian cavities may be flat. All factors have neighbours of the same families.
    """

    cdef object project, places             # of the numbers of each factor among the beliefs
    cdef object error
    cdef bint takes_flat

    def __init__(self, project, starts, at, kind, size, bint takes_flat=False, bint tied=False):
        cdef ptrdiff_t k
        GraphBatch.__init__(self, starts, at, kind, size, tied, len(starts) - 1)
        k = self.starts[1] if self.n else 0
        within = np.concatenate([[0], *(np.arange(count) for count in size[:k])])[1:]
        self.places = np.repeat(np.reshape(at, (-1, max(1, k))), size[:k], axis=1) + within
        self.project, self.takes_flat, self.gives_log_Z = project, takes_flat, False

    @property
    def reasons(self):
        """How often updates were refused, by reason."""
        return self.project.reasons + Counter({
            "a cavity is improper": self.answers[<int> NO_CAVITY],
            "the new belief is improper": self.answers[<int> NO_BELIEF],
        })

    cdef int reraise(self) except -1:
        error, self.error = self.error, None
        raise error

    cdef Status fits(self, ptrdiff_t first, ptrdiff_t count, double power) noexcept nogil:
        with gil:
            try:
                self.call(first, count, power)
            except BaseException as error:  # Ctrl-C too
                self.error = error
                return CALLBACK_FAILED
        return OK

    cdef int call(self, ptrdiff_t first, ptrdiff_t count, double power) except -1:
        cdef ptrdiff_t i, begin = self.starts[first], k = self.starts[first + 1] - begin
        places = self.places[first:first + count]
        answer, log_integral = np.asarray(self.answer)[:count], np.asarray(self.log_integral)
        flat = np.reshape(self.cavities[:count * k], (count, k)) == <int> FLAT
        cavity = np.reshape(self.cavity[:places.size], places.shape)
        change = np.asarray(self.change)[:places.size].reshape(places.shape)
        if self.takes_flat:
            unfit = flat & (np.asarray(self.kind[begin:begin + k]) != <int> GAUSSIAN)
        else:
            unfit = flat
        answer[unfit.any(axis=1)] = <int> NO_CAVITY
        rows = np.flatnonzero(answer == <int> FITTED)
        if not len(rows):
            return 0
        belief = np.asarray(<double[:places.max() + 1]> <double *> self.belief)[places[rows]]
        log_Z, targets, failed = self.project(
            first + rows, cavity[rows], flat[rows], belief, power
        )
        if np.shape(targets) != belief.shape or not len(log_Z) == len(failed) == len(rows):
            raise ValueError("the fits of a batch have another shape than its sites")
        change[rows] = targets - cavity[rows]
        log_integral[rows] = log_Z
        answer[rows[np.asarray(failed, dtype=bool)]] = <int> FAILED
        for i in rows:
            turn_to(self, NULL, first, first + i)
            log_integral[i] += masses(self, first + i)
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
