"""Factors of CSR rows with a diagonal posterior, in O(nonzeros) each (math: guide).

A factor changes no coordinate that none of its rows has, so that it is fitted among those that they
have: its columns are gathered, fitted by the schemes of :mod:`minibatch` in so many dimensions, and
scattered. For schemes that leave the other coordinates as they are; rules of points that move
several coordinates do not.

Factors of one row with tilted moments have loops of their own over (d, 2) means and variances, side
by side so that a coordinate is one line of the cache: one coordinate takes two multiply-adds and no
division (Graepel et al. 2010, eqs. 7 to 9, have it for the probit; sites of EP take two divisions).
"""

import numpy as np

from libc.math cimport fabs, isfinite, log, sqrt

from epfast._core.loss cimport CoreLoss
from epfast._core.minibatch cimport (
    KEEP, OF_HESSIAN, OF_PAIRS, Minibatch, MinibatchSweep,
)
from epfast._core.status cimport CALLBACK_FAILED, NO_FIT, NOT_FINITE, OK, Status
from epfast._core.vector cimport (
    EPF_CALLBACK, EPF_MOMENTS_PROBIT, EPF_ROW_PAD, epf_pairs_work, kernels,
)

cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
    #  define EPF_TO_WRITE(p) __builtin_prefetch((p), 1, 3)
    #  define EPF_TO_READ(p) __builtin_prefetch((p), 0, 3)
    #else
    #  define EPF_TO_WRITE(p) ((void)0)
    #  define EPF_TO_READ(p) ((void)0)
    #endif
    #include <stdint.h>
    #include <string.h>
    /* a or b by their bits: a branch that nobody can foretell costs twenty cycles */
    static inline double epf_pick(int first, double a, double b)
    {
        uint64_t mask = (uint64_t)0 - (uint64_t)(first != 0), x, y;
        memcpy(&x, &a, sizeof x);
        memcpy(&y, &b, sizeof y);
        x = (x & mask) | (y & ~mask);
        memcpy(&a, &x, sizeof a);
        return a;
    }
    """
    void EPF_TO_WRITE(const void *p) nogil
    void EPF_TO_READ(const void *p) nogil
    double epf_pick(int first, double a, double b) nogil

#: schemes whose fits leave a coordinate alone that no row has
SPARSE = ("laplace", "quick_laplace", "variational", "scalar")

cdef double LARGEST = 1e100             # of variances and slopes whose products do not overflow
cdef double WIDENED = 400.0             # by which a row may widen x.theta: exp of it is a number

cdef enum:
    AHEAD = 2                   # rows whose coordinates are fetched before their turn
    FAR_AHEAD = 6               # rows that are fetched themselves
    NEARBY = 1 << 14            # columns whose coordinates are in the second cache anyway
    LOOK = 256                  # rows between two looks at signals


cdef class SparseRows:
    """A CSR matrix as the loops read it, in place where its columns are C integers."""

    cdef readonly ptrdiff_t n, d
    cdef const ptrdiff_t[::1] start
    cdef const int[::1] column
    cdef const double[::1] value

    def __init__(self, X):
        self.n, self.d = X.shape
        self.start = X.indptr.astype(np.intp, copy=False)
        self.column = X.indices.astype(np.intc, copy=False)
        self.value = X.data
        if not len(X.data):                         # so that there is a first entry to point to
            self.column, self.value = np.zeros(1, np.intc), np.zeros(1)

    def widest(self, ptrdiff_t batch_size):
        """The most entries of a factor of so many rows, and of a row."""
        starts = np.asarray(self.start)
        rows = np.diff(starts)
        factors = rows if batch_size == 1 else np.diff(starts[self.edges(batch_size)])
        return int(factors.max(initial=0)), int(rows.max(initial=0))

    def edges(self, ptrdiff_t batch_size):
        """(factors + 1,), the rows where factors begin, and the end."""
        return np.minimum(np.arange(0, self.n + batch_size, batch_size), self.n)

    def pattern(self, ptrdiff_t batch_size):
        """The columns that the rows of each factor have, as CSR: where they start, columns."""
        cdef ptrdiff_t f, k, e, found = 0, factors = (self.n + batch_size - 1) // batch_size
        if batch_size == 1:
            return np.array(self.start), np.array(self.column[:self.start[self.n]])
        cdef int[::1] seen = np.full(self.d, -1, dtype=np.intc)
        starts = np.zeros(factors + 1, dtype=np.intp)
        columns = np.empty(self.value.shape[0], dtype=np.intc)
        cdef ptrdiff_t[::1] start = starts
        cdef int[::1] column = columns
        with nogil:
            for f in range(factors):
                for k in range(f * batch_size, min((f + 1) * batch_size, self.n)):
                    for e in range(self.start[k], self.start[k + 1]):
                        if seen[self.column[e]] != f:
                            seen[self.column[e]] = <int> f
                            column[found] = self.column[e]
                            found += 1
                start[f + 1] = found
        columns = columns[:found].copy()
        for f in range(factors):
            columns[starts[f]:starts[f + 1]].sort()
        return starts, columns


cdef class SparseSweep(MinibatchSweep):
    """A :class:`MinibatchSweep` for CSR rows: its scratch has the size of a factor.

    columns: of the rows that it serves. one_row: factors are rows with tilted moments.
    evidence adds up the log normalisers of rows that store no site.
    """

    cdef public ptrdiff_t columns
    cdef readonly bint one_row
    cdef bint probit                            # moments are those of the plain probit
    cdef ptrdiff_t since                        # rows since the last look at signals
    cdef public double evidence
    cdef ptrdiff_t capacity, longest            # columns of a factor, entries of a row
    cdef int[::1] place                         # (columns,), where a column is in the factor
    cdef int[::1] touched                       # the columns of the factor
    cdef int[::1] local                         # of each entry, the place of its column
    cdef int[::1] column_start, entry_row       # entries by columns
    cdef double[::1] entry_value
    cdef double[::1] tau, nu, next_tau, next_nu, more
    cdef double[::1] row_moments                # of a row: mu, then v
    cdef const ptrdiff_t *row_start             # of the rows of the factor

    def __init__(
        self, CoreLoss loss not None, str scheme, ptrdiff_t d, ptrdiff_t max_rows, **given
    ):
        if scheme not in SPARSE:
            raise ValueError(f"scheme is {scheme!r}; allowed: {', '.join(SPARSE)}")
        super().__init__(loss, scheme, 1, max_rows, **given)
        self.columns, self.place = d, np.empty(0, np.intc)
        self.capacity = self.longest = -1
        self.one_row = self.scheme.one_row
        self.probit = self.one_row and (
            self.moments.scheme is None and self.moments.kernel == EPF_MOMENTS_PROBIT
            and self.loss.c.beta == 1.0 and not self.loss.shifted
        )

    cdef int reserve(self, SparseRows A, ptrdiff_t batch_size) except -1:
        """Scratch for the factors of these rows."""
        cdef ptrdiff_t entries, longest, width, p, m = self.max_rows
        if A.d != self.columns:
            raise ValueError(f"X has {A.d} columns; allowed: {self.columns}")
        entries, longest = A.widest(batch_size)
        if batch_size > 1 and self.place.shape[0] != self.columns:
            self.place = np.full(self.columns, -1, dtype=np.intc)
        if entries <= self.capacity and longest <= self.longest:
            return 0
        entries, longest = max(entries, self.capacity, 1), max(longest, self.longest, 1)
        width = min(entries, self.columns)
        self.lay_out(width)
        self.tau, self.nu = np.empty(width), np.empty(width)
        self.next_tau, self.next_nu = np.empty(width), np.empty(width)
        self.row_moments = np.empty(2 * (longest + EPF_ROW_PAD))
        if batch_size > 1:
            self.touched, self.local = np.empty(width, np.intc), np.empty(entries, np.intc)
        if self.scheme.scratch == OF_HESSIAN:
            p = min(width, m)
            self.hessian = np.empty(2 * p * p)
            self.column_start = np.empty(width + 2, np.intc)
            self.entry_row, self.entry_value = np.empty(entries, np.intc), np.empty(entries)
        elif self.scheme.scratch == OF_PAIRS:
            if self.loss.c.kind == EPF_CALLBACK:
                self.scratch = np.empty(entries * (4 + 2 * self.loss.c.width))
            else:
                self.scratch = np.empty(max(1, epf_pairs_work(&self.loss.c, 1, longest)))
            self.more = np.empty(3 * longest)
        self.capacity, self.longest = entries, longest
        return 0

    # -- products with the rows of a factor, whose values are rows.x, in the places self.local --

    cdef void margins(self, const Minibatch *rows, const double *theta, double *m) noexcept nogil:
        cdef const double *x = rows.x
        cdef ptrdiff_t k, e, first = self.row_start[0]
        cdef double total
        for k in range(rows.s):
            total = 0.0
            if rows.s == 1:
                for e in range(self.d):
                    total += x[e] * theta[e]
            else:
                for e in range(self.row_start[k] - first, self.row_start[k + 1] - first):
                    total += x[e] * theta[self.local[e]]
            m[k] = total if rows.sign == NULL else rows.sign[k] * total

    cdef void sums(
        self, const Minibatch *rows, const double *c, const double *w, double *g, double *h
    ) noexcept nogil:
        cdef const double *x = rows.x
        cdef ptrdiff_t k, e, j, first = self.row_start[0]
        for j in range(self.d):
            g[j] = h[j] = 0.0
        for k in range(rows.s):
            for e in range(self.row_start[k] - first, self.row_start[k + 1] - first):
                j = e if rows.s == 1 else self.local[e]
                g[j] += c[k] * x[e]
                h[j] += w[k] * x[e] * x[e]

    cdef void gram(self, const Minibatch *rows, double *gram, double *scaled) noexcept nogil:
        """O(sum of the squares of the entries of columns)."""
        cdef ptrdiff_t s = rows.s, k, e, i, j, first = self.row_start[0], entries
        cdef double z
        cdef int *start = &self.column_start[0]
        entries = self.row_start[s] - first
        for i in range(s * s):
            gram[i] = 0.0
        for j in range(self.d + 2):
            start[j] = 0
        for e in range(entries):
            start[(e if s == 1 else self.local[e]) + 2] += 1
        for j in range(self.d):
            start[j + 2] += start[j + 1]
        for k in range(s):
            for e in range(self.row_start[k] - first, self.row_start[k + 1] - first):
                j = e if s == 1 else self.local[e]
                i = start[j + 1]
                start[j + 1] += 1
                self.entry_row[i] = <int> k
                z = rows.x[e] * sqrt(self.column.v[j])
                self.entry_value[i] = z if rows.sign == NULL else rows.sign[k] * z
        for j in range(self.d):
            for e in range(start[j], start[j + 1]):
                z = self.entry_value[e]
                k = self.entry_row[e] * s
                for i in range(e, start[j + 1]):
                    gram[k + self.entry_row[i]] += z * self.entry_value[i]

    cdef void weighted_gram(
        self, const Minibatch *rows, const double *root, double *gram, double *scaled
    ) noexcept nogil:
        """O(sum of the squares of the entries of rows)."""
        cdef const double *x = rows.x
        cdef ptrdiff_t k, e, i, j, other, first = self.row_start[0]
        cdef double z
        for i in range(self.d * self.d):
            gram[i] = 0.0
        for k in range(rows.s):
            for e in range(self.row_start[k] - first, self.row_start[k + 1] - first):
                j = e if rows.s == 1 else self.local[e]
                z = root[k] * root[k] * x[e]
                for i in range(self.row_start[k] - first, self.row_start[k + 1] - first):
                    other = i if rows.s == 1 else self.local[i]
                    if other >= j:
                        gram[j * self.d + other] += z * x[i]

    cdef Status two_sided(self, const Minibatch *rows, double beta, double *c) noexcept nogil:
        """As for dense rows, one row after the other."""
        cdef const double *x = rows.x
        cdef double *step = &self.more[0]
        cdef double *D = step + self.longest
        cdef double *S = D + self.longest
        cdef double w, total = 0.0
        cdef ptrdiff_t k, e, j, first = self.row_start[0], begin, count, width = self.loss.c.width
        cdef int failed
        cdef Status status = self.margins_at_mean(rows)
        if status != OK:
            return status
        for j in range(self.d):
            self.column.step[j] = self.gamma * sqrt(self.column.v[j])
            self.column.b[j] = self.column.tau[j] = 0.0
        if self.loss.c.kind == EPF_CALLBACK:
            return self.two_sided_by_callback(rows, beta, c)
        for k in range(rows.s):
            w = 1.0 if rows.weight == NULL else rows.weight[k]
            begin, count = self.row_start[k] - first, self.row_start[k + 1] - self.row_start[k]
            if w == 0.0 or count == 0:
                continue
            for e in range(count):
                step[e] = self.column.step[e if rows.s == 1 else self.local[begin + e]]
            failed = kernels.pairs(
                &self.loss.c, 1, count, x + begin, False, count,
                rows.sign + k if rows.sign != NULL else NULL,
                rows.responses + k * width if rows.responses != NULL else NULL,
                NULL, self.row.m + k, step, D, S, &total, &self.scratch[0]
            )
            if failed != 0:
                return CALLBACK_FAILED if failed > 0 else NO_FIT
            for e in range(count):
                j = e if rows.s == 1 else self.local[begin + e]
                self.column.b[j] += w * D[e]
                self.column.tau[j] += w * S[e]
        return self.center(rows, beta, c)

    cdef Status two_sided_by_callback(
        self, const Minibatch *rows, double beta, double *c
    ) noexcept nogil:
        """The same with a loss of the user, which is called once for all rows."""
        cdef ptrdiff_t width = self.loss.c.width, first = self.row_start[0], k, e, j, i
        cdef ptrdiff_t entries = self.row_start[rows.s] - first
        cdef double *points = &self.scratch[0]
        cdef double *values = points + 2 * entries
        cdef double *responses = values + 2 * entries
        cdef double delta, w
        cdef Status status
        for k in range(rows.s):
            for e in range(self.row_start[k] - first, self.row_start[k + 1] - first):
                j = e if rows.s == 1 else self.local[e]
                delta = self.column.step[j] * rows.x[e]
                if rows.sign != NULL:
                    delta *= rows.sign[k]
                points[2 * e], points[2 * e + 1] = self.row.m[k] + delta, self.row.m[k] - delta
                if not (isfinite(points[2 * e]) and isfinite(points[2 * e + 1])):
                    return NO_FIT
                for i in range(width):
                    responses[2 * e * width + i] = rows.responses[k * width + i]
                    responses[(2 * e + 1) * width + i] = rows.responses[k * width + i]
        if entries > 0 and kernels.loss(
            &self.loss.c, 2 * entries, points, responses if width > 0 else NULL, width, values,
            NULL, NULL
        ) != 0:
            return CALLBACK_FAILED
        status = self.center(rows, beta, c)         # the values at the margins themselves
        if status != OK:
            return status
        for k in range(rows.s):
            w = 1.0 if rows.weight == NULL else rows.weight[k]
            if w == 0.0:
                continue
            for e in range(self.row_start[k] - first, self.row_start[k + 1] - first):
                j = e if rows.s == 1 else self.local[e]
                self.column.b[j] += w * (values[2 * e + 1] - values[2 * e])
                self.column.tau[j] += w * (
                    values[2 * e] + values[2 * e + 1] - 2.0 * self.row.value[k]
                )
        return OK

    # -- factors among all coordinates --

    cdef const int *places(
        self, SparseRows A, ptrdiff_t first, ptrdiff_t s, const int *known, ptrdiff_t n_known,
        ptrdiff_t *count
    ) noexcept nogil:
        """The columns of s rows, so many; local <- where each entry has its own. known: they."""
        cdef ptrdiff_t e, start = A.start[first], found = 0
        cdef int j
        self.row_start = &A.start[first]
        if s == 1 and self.max_rows == 1:
            count[0] = A.start[first + 1] - start
            return &A.column[0] + start
        if known != NULL:
            for e in range(n_known):
                self.place[known[e]] = <int> e
            for e in range(start, A.start[first + s]):
                self.local[e - start] = self.place[A.column[e]]
            count[0] = n_known
            return known
        for e in range(start, A.start[first + s]):
            j = A.column[e]
            if self.place[j] < 0:
                self.place[j] = <int> found
                self.touched[found] = j
                found += 1
            self.local[e - start] = self.place[j]
        for e in range(found):
            self.place[self.touched[e]] = -1
        count[0] = found
        return &self.touched[0]

    def factors(
        self, SparseRows A not None, const double[:, ::1] y not None, ptrdiff_t batch_size,
        const ptrdiff_t[::1] order, double[::1] tau, double[::1] nu, *,
        const double[::1] weight=None, const ptrdiff_t[::1] site_start=None,
        const int[::1] site_column=None, double[::1] site_tau=None, double[::1] site_nu=None,
        double[::1] site_scale=None, double[::1] next_tau=None, double[::1] next_nu=None,
        double[:, ::1] trace=None, ptrdiff_t row_offset=0,
    ):
        """Update factors as :meth:`MinibatchSweep.sweep` does, each among the columns of its rows.

        site_start, site_column: the :meth:`SparseRows.pattern`; sites are (entries of it,).
        """
        cdef ptrdiff_t u, f, first = 0, s, k, j, count = 0, at = 0
        cdef const int *columns
        cdef Minibatch rows
        cdef bint stored = site_tau is not None, traced = trace is not None
        cdef bint parallel = next_tau is not None, weighted = weight is not None
        cdef double *to_tau = &next_tau[0] if parallel else &tau[0]
        cdef double *to_nu = &next_nu[0] if parallel else &nu[0]
        cdef double *new_tau
        cdef double *new_nu
        cdef Status status = OK
        self.loss.check_responses(y, A.n)
        if stored and site_tau.shape[0] == 0:
            site_tau = site_nu = np.zeros(1)
            site_column = np.zeros(1, np.intc)
        self.reserve(A, batch_size if self.max_rows > 1 else 1)
        new_tau = &self.next_tau[0] if parallel else &self.tau[0]
        new_nu = &self.next_nu[0] if parallel else &self.nu[0]
        with nogil:
            for u in range(order.shape[0]):
                f = order[u]
                first = f * batch_size
                s = min(batch_size, A.n - first)
                if stored:
                    at = site_start[f]
                columns = self.places(
                    A, first, s, &site_column[0] + at if stored else NULL,
                    site_start[f + 1] - at if stored else 0, &count
                )
                self.d = count
                self.take_rows(
                    &rows, s, &A.value[0] + A.start[first], count, &y[first, 0],
                    &weight[first] if weighted else NULL, stored
                )
                for k in range(count):
                    self.tau[k], self.nu[k] = tau[columns[k]], nu[columns[k]]
                    if parallel:
                        new_tau[k], new_nu[k] = to_tau[columns[k]], to_nu[columns[k]]
                status = self.update(
                    &rows, &self.tau[0], &self.nu[0], new_tau, new_nu,
                    &site_tau[0] + at if stored else NULL, &site_nu[0] + at if stored else NULL,
                    &site_scale[f] if stored else NULL
                )
                if status == CALLBACK_FAILED or status == NOT_FINITE:
                    break
                for k in range(count):
                    to_tau[columns[k]], to_nu[columns[k]] = new_tau[k], new_nu[k]
                self.n_visited += s
                if traced:
                    for j in range(self.columns):
                        trace[u, j] = to_nu[j] / to_tau[j]
        self.raise_for(status, row_offset + first, "X")

    # -- rows among means and variances --

    cdef Status any_row(
        self, const Minibatch *rows, const int *columns, double *M, double *site_tau,
        double *site_nu, double *site_scale
    ) noexcept nogil:
        """A row by :meth:`update`: any power, damping, site rule and weight, and what is refused.

        Without sites the evidence takes what the row adds to it."""
        cdef ptrdiff_t k, count = self.d
        cdef double *old_tau = &self.next_tau[0]
        cdef double *old_nu = &self.next_nu[0]
        cdef double gained = self.log_scale_total
        cdef Status status
        for k in range(count):
            self.tau[k] = old_tau[k] = 1.0 / M[2 * <ptrdiff_t> columns[k] + 1]
            self.nu[k] = old_nu[k] = M[2 * <ptrdiff_t> columns[k]] * self.tau[k]
        status = self.update(
            rows, &self.tau[0], &self.nu[0], &self.tau[0], &self.nu[0], site_tau, site_nu,
            site_scale
        )
        gained = self.log_scale_total - gained
        for k in range(count):
            if self.tau[k] == old_tau[k] and self.nu[k] == old_nu[k]:
                continue
            M[2 * <ptrdiff_t> columns[k] + 1] = 1.0 / self.tau[k]
            M[2 * <ptrdiff_t> columns[k]] = self.nu[k] / self.tau[k]
            gained += 0.5 * (
                log(old_tau[k] / self.tau[k]) + self.nu[k] * (self.nu[k] / self.tau[k])
                - old_nu[k] * (old_nu[k] / old_tau[k])
            )
        if site_tau == NULL:
            self.evidence += gained
        return status

    cdef inline Status at(
        self, const double *y, double m, double v, double power, double *lZ, double *dlZ,
        double *d2lZ
    ) noexcept nogil:
        """Moments of a row, for the probit without a detour."""
        if not self.probit or power != 1.0:
            return self.moments.at(y, m, v, power, lZ, dlZ, d2lZ)
        self.since += 1
        if self.since >= LOOK:
            self.since = 0
            if self.loss.heed() != OK:
                return CALLBACK_FAILED
        m *= y[0]
        kernels.probit_moments(1, &m, &v, lZ, dlZ, d2lZ)
        dlZ[0] *= y[0]
        return OK if isfinite(lZ[0]) and isfinite(dlZ[0]) and isfinite(d2lZ[0]) else NO_FIT

    cdef Status row_without_site(
        self, const Minibatch *rows, const int *columns, double exponent, double *M
    ) noexcept nogil:
        """A row of ADF."""
        cdef const double *y = rows.given
        cdef double *mu = &self.row_moments[0]
        cdef double *v = mu + self.longest + EPF_ROW_PAD
        cdef double h, s, lZ = 0.0, dlZ = 0.0, d2lZ = 0.0
        cdef double[3] found
        cdef Status status
        kernels.sparse_row_moments(self.d, columns, rows.x, M, mu, v, found)
        h, s = found[0], found[1]
        if not isfinite(h):
            self.bad_row = 0
            return NOT_FINITE
        if not 0.0 < s < LARGEST:
            return self.any_row(rows, columns, M, NULL, NULL, NULL)
        status = self.at(y, h, s, exponent, &lZ, &dlZ, &d2lZ)
        if status == CALLBACK_FAILED:
            return status
        if status != OK or not (1.0 + s * d2lZ > 0.0 or self.proper(rows, columns, d2lZ, M)):
            self.n_failed += 1
            self.n_refused += 1
            return NO_FIT
        if not fabs(dlZ) < LARGEST or (d2lZ > 0.0 and self.site_rule != KEEP):
            return self.any_row(rows, columns, M, NULL, NULL, NULL)
        kernels.sparse_row_tilted(self.d, columns, rows.x, dlZ, d2lZ, mu, v, M)
        self.evidence += lZ
        return OK

    cdef bint proper(
        self, const Minibatch *rows, const int *columns, double d2lZ, double *M
    ) noexcept nogil:
        """Whether the variance of each coordinate stays positive."""
        cdef ptrdiff_t k
        for k in range(self.d):
            if not 1.0 + rows.x[k] * rows.x[k] * M[2 * <ptrdiff_t> columns[k] + 1] * d2lZ > 0.0:
                return False
        return True

    cdef Status row_with_site(
        self, const Minibatch *rows, const int *columns, double exponent, double *M,
        double *site_tau, double *site_nu, double *site_scale
    ) noexcept nogil:
        """A row of EP of power 1, undamped."""
        cdef const double *y = rows.given
        cdef double *mu = &self.row_moments[0]
        cdef double *v = mu + self.longest + EPF_ROW_PAD
        cdef double h, s, lZ = 0.0, dlZ = 0.0, d2lZ = 0.0
        cdef double[3] found
        cdef Status status
        kernels.sparse_row_cavity(self.d, columns, rows.x, M, site_tau, site_nu, mu, v, found)
        h, s = found[0], found[1]
        if not found[2] > 0.0 or not 0.0 < s < LARGEST:
            return self.any_row(rows, columns, M, site_tau, site_nu, site_scale)
        if not isfinite(h):
            self.bad_row = 0
            return NOT_FINITE
        status = self.at(y, h, s, exponent, &lZ, &dlZ, &d2lZ)
        if status == CALLBACK_FAILED:
            return status
        if status != OK:
            self.n_failed += 1
            self.n_refused += 1
            return NO_FIT
        # the product of what columns keep of their variance is 1 + s d2lZ at least
        if (
            not 1.0 + s * d2lZ > 0.0 or not fabs(dlZ) < LARGEST or s * d2lZ > WIDENED
            or (d2lZ > 0.0 and self.site_rule != KEEP)
        ):
            return self.any_row(rows, columns, M, site_tau, site_nu, site_scale)
        kernels.sparse_row_site(
            self.d, columns, rows.x, dlZ, d2lZ, mu, v, M, site_tau, site_nu, found
        )
        site_scale[0] = lZ - found[1] - 0.5 * log(found[0])
        return OK

    def rows(
        self, SparseRows A not None, const double[:, ::1] y not None, const ptrdiff_t[::1] order,
        double[:, ::1] moments, *, const double[::1] weight=None, double[::1] site_tau=None,
        double[::1] site_nu=None, double[::1] site_scale=None, double[:, ::1] trace=None,
        ptrdiff_t row_offset=0,
    ):
        """Update factors of one row with tilted moments, in order.

        moments (d, 2): mean and variance of each coordinate, in place. Sites, where stored, have a
        number per entry of A, and their scales one per row.
        """
        cdef ptrdiff_t u, i = 0, e, next, j, at, n = order.shape[0]
        cdef const int *columns
        cdef const double *x
        cdef double *M = &moments[0, 0]
        cdef double exponent
        cdef Minibatch rows
        cdef bint stored = site_tau is not None, traced = trace is not None
        cdef bint weighted = weight is not None, quick = self.power == 1.0 and self.damping == 1.0
        cdef bint far = A.d > NEARBY
        cdef Status status = OK
        if not self.one_row:
            raise ValueError("the scheme has no tilted moments of one row")
        self.loss.check_responses(y, A.n)
        if stored and site_tau.shape[0] == 0:
            site_tau = site_nu = np.zeros(1)
        self.reserve(A, 1)
        with nogil:
            for u in range(n):
                i = order[u]
                if u + FAR_AHEAD < n:
                    at = A.start[order[u + FAR_AHEAD]]
                    for e in range(at, A.start[order[u + FAR_AHEAD] + 1], 8):
                        EPF_TO_READ(&A.column[0] + e)
                        EPF_TO_READ(&A.value[0] + e)
                        if stored:
                            EPF_TO_WRITE(&site_tau[0] + e)
                            EPF_TO_WRITE(&site_nu[0] + e)
                if far and u + AHEAD < n:
                    next = order[u + AHEAD]
                    for e in range(A.start[next], A.start[next + 1]):
                        EPF_TO_WRITE(M + 2 * <ptrdiff_t> A.column[e])
                at = A.start[i]
                columns = &A.column[0] + at
                x = &A.value[0] + at
                self.d = A.start[i + 1] - at
                self.row_start = &A.start[i]
                self.take_rows(
                    &rows, 1, x, self.d, &y[i, 0], &weight[i] if weighted else NULL, stored
                )
                exponent = weight[i] / rows.copies if weighted else 1.0
                if not quick or rows.copies > 1.0 or exponent == 0.0:
                    status = self.any_row(
                        &rows, columns, M, &site_tau[0] + at if stored else NULL,
                        &site_nu[0] + at if stored else NULL, &site_scale[i] if stored else NULL
                    )
                elif stored:
                    status = self.row_with_site(
                        &rows, columns, exponent, M, &site_tau[0] + at, &site_nu[0] + at,
                        &site_scale[i]
                    )
                else:
                    status = self.row_without_site(&rows, columns, exponent, M)
                if status == CALLBACK_FAILED or status == NOT_FINITE:
                    break
                self.n_visited += 1
                if traced:
                    for j in range(self.columns):
                        trace[u, j] = M[2 * j]
        self.raise_for(status, row_offset + i, "X")


# ---- moments of all coordinates ----


def moments_of(const double[::1] tau not None, const double[::1] nu not None):
    """Mean and variance of each coordinate, side by side, (d, 2)."""
    cdef ptrdiff_t j, d = tau.shape[0]
    cdef double v
    moments = np.empty((d, 2))
    cdef double[:, ::1] M = moments
    with nogil:
        for j in range(d):
            v = 1.0 / tau[j]
            M[j, 0], M[j, 1] = nu[j] * v, v
    return moments


def natural_of(
    const double[:, ::1] moments not None, const double[::1] known_tau not None,
    const double[::1] known_nu not None,
):
    """Precision and shift (d,) of moments that came from the known ones.

    Coordinates that did not move are the known ones, bit for bit.
    """
    cdef ptrdiff_t j, d = moments.shape[0]
    cdef double v0, m, v, t
    cdef bint same
    precision, shift = np.empty(d), np.empty(d)
    cdef double[::1] tau = precision
    cdef double[::1] nu = shift
    with nogil:
        for j in range(d):
            v0 = 1.0 / known_tau[j]
            m, v = moments[j, 0], moments[j, 1]
            same = (m == known_nu[j] * v0) & (v == v0)
            t = 1.0 / v
            nu[j] = epf_pick(same, known_nu[j], m * t)
            tau[j] = epf_pick(same, known_tau[j], t)
    return precision, shift


def appended(start, column, value, ptrdiff_t d):
    """CSR rows with a one at their ends, in column d: value, column, start. O(nonzeros)"""
    cdef ptrdiff_t n = len(start) - 1, i, e, to = 0
    if d + 1 > np.iinfo(np.intc).max:
        raise ValueError(f"X has {d} columns; allowed beside an intercept: 2^31 - 2")
    cdef const ptrdiff_t[::1] old_start = start.astype(np.intp, copy=False)
    cdef const int[::1] old_column = column.astype(np.intc, copy=False)
    cdef const double[::1] old_value = value.astype(np.float64, copy=False)
    starts = start + np.arange(n + 1, dtype=start.dtype)
    columns = np.empty(starts[n], dtype=np.intc)
    values = np.empty(starts[n])
    cdef int[::1] new_column = columns
    cdef double[::1] new_value = values
    with nogil:
        for i in range(n):
            for e in range(old_start[i], old_start[i + 1]):
                new_column[to], new_value[to] = old_column[e], old_value[e]
                to += 1
            new_column[to], new_value[to] = <int> d, 1.0
            to += 1
    return values, columns, starts


def add_entries(
    const int[::1] column not None, const double[::1] tau not None, const double[::1] nu not None,
    double[::1] total_tau not None, double[::1] total_nu not None,
):
    """Add numbers to the totals of their columns."""
    cdef ptrdiff_t e
    if min(tau.shape[0], nu.shape[0]) < column.shape[0]:
        raise ValueError("tau or nu is shorter than column")
    with nogil:
        for e in range(column.shape[0]):
            total_tau[column[e]] += tau[e]
            total_nu[column[e]] += nu[e]
