"""EP in chunks: the sites of c rows from one posterior, then the posterior from the sites.

With c = 1 that is sequential EP, with c = n parallel EP. The work of a chunk is 2 c d^2 flops in
products of matrices and d^3 for the factor of the new precision; sparse rows a_i take nnz_i^2.

Sparse rows may be the differences z_i of dense rows from a common row m, a_i = z_i + m, with one
entry more, of 1: the rows (z_i, 1) then see the moments of theta and m.theta together.
"""

import numpy as np

from libc.math cimport fabs, fmax, isfinite, sqrt
from libc.string cimport memcpy, memset

from epfast._core.cholesky cimport factorize, invert_factored, invert_triangle
from epfast._core.lapack cimport blas_int, ddot, dgemv, dlauum, dsymv, dsyrk, dtrmm, dtrsv
from epfast._core.row_sweeps cimport ParallelSweep
from epfast._core.rows cimport Rows, in_range, long_enough, square
from epfast._core.status cimport CALLBACK_FAILED, OK, Status
from epfast._core.tilted cimport TiltedMoments
from epfast._core.vector cimport EPF_ROW_PAD, kernels

cdef enum:
    PANEL_BYTES = 1 << 20       # of a matrix, that sparse rows are met with
    OWN_UP_TO = 512             # dimensions from which BLAS is no slower than kernels of ours

cdef enum Outcome:
    TAKEN
    NOT_TAKEN                   # it would make the posterior improper, or sites were refused
    RAISED                      # a callback's exception waits in the loss


cdef class ChunkedSweep(ParallelSweep):
    """Scratch for sweeps in chunks over d dimensions, q rows at a time.

    center: the common row of sparse rows, (d,), or None: they are the rows themselves.
    """

    cdef ptrdiff_t columns              # of the rows: d, or d + 1 with a center
    cdef bint sparse, centered, begun
    cdef bint fresh                     # factor and mean in use are those of trial and shift
    cdef const double[::1] center
    cdef double[:, ::1] P               # of the caller: lower triangle by columns
    cdef double[::1] p
    cdef double[:, :, ::1] factor       # L^-1 where P = L L', or Sigma; the one in use and the next
    cdef double[:, ::1] trial, gram
    cdef double[:, ::1] mean            # of theta and m.theta; as above
    cdef double[:, ::1] z               # L^-1 p; as above
    cdef double[::1] shift, gained      # that of trial; of a chunk of rows with a center
    cdef double[::1] peak               # the largest diagonal of P since the beginning
    cdef double[:, ::1] A               # q rows, gathered, and zeros behind and beside them
    cdef double[:, ::1] outer, panel    # scratch of kernels of ours; d <= OWN_UP_TO
    cdef double[::1] packed
    cdef bint own
    cdef double[:, ::1] change          # precision and shift, of q sites
    cdef double[:, ::1] site            # new tau, nu, scale of a chunk
    cdef double[:, ::1] y
    cdef double[::1] weight
    cdef ptrdiff_t[::1] cursor
    cdef int now

    def __init__(
        self, TiltedMoments moments not None, ptrdiff_t d, ptrdiff_t q, double power,
        double damping, bint sparse, const double[::1] center=None,
    ):
        super().__init__(moments, d, q, power, damping)
        self.sparse, self.centered, self.center = sparse, center is not None, center
        if self.centered:
            long_enough("center", center.shape[0], d)
        self.columns = d + self.centered
        self.factor = np.empty((2, self.columns, self.columns))
        self.trial = np.empty((d, d))
        self.gram = np.empty(2 * (self.columns if self.centered else 1,))
        self.mean, self.z = np.empty((2, self.columns)), np.zeros((2, d + EPF_ROW_PAD))
        self.shift, self.gained, self.peak = np.empty(d), np.empty(self.columns), np.empty(d)
        self.own = d <= OWN_UP_TO and not sparse
        wide = (d + 7) // 8 * 8 if self.own else d
        self.A = np.zeros((q + EPF_ROW_PAD if self.own else 1 if sparse else q, wide))
        self.outer = np.empty(2 * (wide if self.own else 1,))
        self.panel = np.empty((q if self.own else 1, EPF_ROW_PAD))
        self.packed = np.empty((d + EPF_ROW_PAD) * d if self.own else 1)
        self.V = np.empty((1 if sparse or self.own else q, d))
        self.change = np.empty((2, q))
        self.site = np.empty((3, 0))
        self.y = np.empty((q, moments.loss.stride))
        self.weight = np.empty(q)
        self.cursor = np.empty(q, dtype=np.intp)
        self.now, self.begun, self.fresh = 0, False, False

    # -- the posterior --

    def begin(self, double[:, ::1] P not None, double[::1] p not None):
        """Go on from N(P^-1 p, P^-1). Whether that is proper.

        P, of which the lower triangle by columns is read, and p are the caller's, changed by all
        that is taken in: after every call they hold what the sites given to it amount to.
        """
        square("P", P, self.d)
        long_enough("p", p.shape[0], self.d)
        self.P, self.p, self.begun = P, p, True
        cdef ptrdiff_t i, j
        cdef bint known = self.fresh
        for i in range(self.d):
            self.peak[i] = P[i, i]
            known = known and self.shift[i] == p[i]
            for j in range(i, self.d):
                known = known and self.trial[i, j] == P[i, j]
        if known:
            return True
        memcpy(&self.trial[0, 0], &P[0, 0], self.d * self.d * sizeof(double))
        memcpy(&self.shift[0], &p[0], self.d * sizeof(double))
        self.fresh = False
        with nogil:
            if self.factored() == 0:
                self.now, self.fresh = 1 - self.now, True
        return bool(self.fresh)

    def gaussian(self):
        """Covariance, of which the upper triangle is valid, and mean. O(d^3 / 3), sparse O(d^2)"""
        cdef double[:, ::1] C = np.empty((self.d, self.d))
        cdef ptrdiff_t i, n = self.d, size = self.columns
        cdef blas_int d = <blas_int> n, info = 0
        cdef const double *factor = &self.factor[self.now, 0, 0]
        if not self.begun:
            raise ValueError("the sweep has no posterior; begin comes first")
        with nogil:
            for i in range(n):
                memcpy(&C[i, i], factor + i * size + i, (n - i) * sizeof(double))
            if not self.sparse:
                dlauum(b"L", &d, &C[0, 0], &d, &info)
        return np.asarray(C), np.array(self.mean[self.now, :n])

    def drift(self):
        """The largest ratio of what a diagonal entry of P was since the beginning and is now."""
        cdef double most = 1.0
        cdef ptrdiff_t i
        for i in range(self.d):
            most = fmax(most, self.peak[i] / self.P[i, i])
        return most

    cdef int factored(self) except -1 nogil:
        """The next factor and mean, from trial and shift. Not 0: improper. O(d^3)"""
        cdef blas_int d = <blas_int> self.d, one = 1, wide = <blas_int> self.columns
        cdef double *L = &self.trial[0, 0]
        cdef double *next = &self.factor[1 - self.now, 0, 0]
        cdef double *mean = &self.mean[1 - self.now, 0]
        cdef double *z = &self.z[1 - self.now, 0]
        cdef double *lower = &self.gram[0, 0] if self.centered else next
        cdef double *center = <double *> &self.center[0] if self.centered else NULL
        cdef double unit = 1.0, zero = 0.0
        cdef ptrdiff_t i, n = self.d, size = self.columns
        # a center has a matrix of another order; the one of order d is made in gram
        memcpy(lower, L, n * n * sizeof(double))
        if factorize(lower, n) != 0:
            return 1
        for i in range(n):
            if not (lower[i * n + i] > 0.0 and isfinite(lower[i * n + i])):
                return 1
        memcpy(z, &self.shift[0], n * sizeof(double))
        dtrsv(b"L", b"N", b"N", &d, lower, &d, z, &one)
        memcpy(mean, z, n * sizeof(double))
        dtrsv(b"L", b"T", b"N", &d, lower, &d, mean, &one)
        for i in range(n):
            if not isfinite(mean[i]):
                return 1
        if not self.sparse:
            invert_triangle(next, n)
            return 0
        invert_factored(lower, n)
        if self.centered:
            for i in range(n):
                memcpy(next + i * size + i, lower + i * n + i, (n - i) * sizeof(double))
            # the last row: Sigma m, and m.Sigma.m
            dsymv(b"L", &d, &unit, next, &wide, center, &one, &zero, &self.gained[0], &one)
            for i in range(n):
                next[i * size + n] = self.gained[i]
            next[n * size + n] = ddot(&d, &self.gained[0], &one, center, &one)
            mean[n] = ddot(&d, mean, &one, center, &one)
        return 0

    # -- rows --

    cdef void marginals_of_sparse(
        self, Rows A, ptrdiff_t q, const ptrdiff_t *at, double *h, double *s
    ) noexcept nogil:
        """h_j = a_j.mean and s_j = a_j' Sigma a_j from the nonzeros, panel by panel of Sigma."""
        cdef const double *M = &self.factor[self.now, 0, 0]
        cdef const double *mean = &self.mean[self.now, 0]
        cdef const double *row
        cdef const double *value = &A.value[0] if A.value.shape[0] else NULL
        cdef const int *column = &A.column[0] if A.column.shape[0] else NULL
        cdef ptrdiff_t i, j, k, stop, size = self.columns
        cdef ptrdiff_t width = max(<ptrdiff_t> 1, <ptrdiff_t> PANEL_BYTES // (8 * size))
        cdef ptrdiff_t last = min(width, size)
        cdef double part, total, center
        if width >= size:
            kernels.sparse_marginals(q, at, &A.start[0], column, value, size, M, mean, h, s)
            return
        for j in range(q):
            self.cursor[j] = A.start[at[j]]
            h[j] = s[j] = 0.0
        while True:
            for j in range(q):
                k, stop = self.cursor[j], A.start[at[j] + 1]
                total, center = 0.0, 0.0
                while k < stop and column[k] < last:
                    row = M + column[k] * size
                    # the lower triangle: the diagonal once, below it twice
                    part = 0.5 * value[k] * row[column[k]]
                    for i in range(k + 1, stop):
                        part += value[i] * row[column[i]]
                    total += value[k] * part
                    center += value[k] * mean[column[k]]
                    k += 1
                self.cursor[j] = k
                s[j] += 2.0 * total
                h[j] += center
            if last == size:
                return
            last = min(last + width, size)

    cdef void gram_of_sparse(
        self, Rows A, ptrdiff_t q, const ptrdiff_t *at, const double *weight, const double *slope,
        double *C, double *x
    ) noexcept nogil:
        """C <- C + sum_j weight_j a_j a_j', x <- x + sum_j slope_j a_j, panel by panel of C."""
        cdef const double *value = &A.value[0] if A.value.shape[0] else NULL
        cdef const int *column = &A.column[0] if A.column.shape[0] else NULL
        cdef double *row
        cdef ptrdiff_t i, j, k, stop, size = self.columns
        cdef ptrdiff_t width = max(<ptrdiff_t> 1, <ptrdiff_t> PANEL_BYTES // (8 * size))
        cdef ptrdiff_t last = min(width, size)
        cdef double a
        for j in range(q):
            self.cursor[j] = A.start[at[j]]
        while True:
            for j in range(q):
                k, stop = self.cursor[j], A.start[at[j] + 1]
                while k < stop and column[k] < last:
                    a = weight[j] * value[k]
                    row = C + column[k] * size
                    for i in range(k, stop):
                        row[column[i]] += a * value[i]
                    x[column[k]] += slope[j] * value[k]
                    k += 1
                self.cursor[j] = k
            if last == size:
                return
            last = min(last + width, size)

    cdef void gather(self, Rows A, ptrdiff_t q, const ptrdiff_t *at, bint twice) noexcept nogil:
        """Rows of A, to self.A and, to be multiplied there, to self.V."""
        cdef ptrdiff_t j, size = self.d * sizeof(double)
        if self.own:
            kernels.rows_gather(
                q, self.d, self.A.shape[1], &A.dense[0, 0], A.dense.strides[0] // 8, at,
                &self.A[0, 0]
            )
            return
        for j in range(q):
            memcpy(&self.A[j, 0], &A.dense[at[j], 0], size)
            if twice:
                memcpy(&self.V[j, 0], &self.A[j, 0], size)

    cdef void marginals(
        self, Rows A, ptrdiff_t q, ptrdiff_t more, const ptrdiff_t *next, double *h, double *s
    ) noexcept nogil:
        """h and s of q rows that are gathered. V <- L^-1 V. O(d^2 q)

        next: the rows of A, so many more, that come after these.
        """
        cdef blas_int d = <blas_int> self.d, n = <blas_int> q, one = 1
        cdef double unit = 1.0
        cdef double *V = &self.V[0, 0]
        cdef ptrdiff_t j
        if self.own:
            kernels.rows_marginals(
                q, self.d, self.A.shape[1], &self.A[0, 0], &self.packed[0], &self.z[self.now, 0],
                h, s, &A.dense[0, 0], A.dense.strides[0] // 8, more, next
            )
            return
        dtrmm(
            b"L", b"L", b"N", b"N", &d, &n, &unit, &self.factor[self.now, 0, 0], &d, V, &d
        )
        for j in range(q):
            s[j] = ddot(&d, V + j * self.d, &one, V + j * self.d, &one)
            h[j] = ddot(&d, V + j * self.d, &one, &self.z[self.now, 0], &one)

    cdef void add_gram(self, ptrdiff_t q) noexcept nogil:
        """trial and shift from the changes of q sites, whose rows are gathered. O(d^2 q)

        By a kernel of ours, to outer in the place of trial; or by dsyrk, which knows no sign: those
        that gain precision to the front, the others behind.
        """
        cdef blas_int d = <blas_int> self.d, n = <blas_int> q, one = 1, gain = 0, loss = 0
        cdef double unit = 1.0, minus = -1.0, root
        cdef double *V = &self.V[0, 0]
        cdef double *to
        cdef double *a
        cdef ptrdiff_t i, j
        cdef blas_int ld = <blas_int> self.A.shape[1]
        dgemv(
            b"N", &d, &n, &unit, &self.A[0, 0], &ld, &self.change[1, 0], &one, &unit,
            &self.shift[0], &one
        )
        if self.own:
            kernels.rows_outer(
                q, self.d, self.A.shape[1], &self.A[0, 0], &self.change[0, 0], &self.panel[0, 0],
                &self.outer[0, 0]
            )
            return
        for j in range(q):
            if self.change[0, j] == 0.0:
                continue
            root = sqrt(fabs(self.change[0, j]))
            if self.change[0, j] > 0.0:
                to = V + gain * self.d
                gain += 1
            else:
                loss += 1
                to = V + (q - loss) * self.d
            a = &self.A[j, 0]
            for i in range(self.d):
                to[i] = root * a[i]
        if gain:
            dsyrk(b"L", b"N", &d, &gain, &unit, V, &d, &unit, &self.trial[0, 0], &d)
        if loss:
            dsyrk(
                b"L", b"N", &d, &loss, &minus, V + (q - loss) * self.d, &d, &unit,
                &self.trial[0, 0], &d
            )

    cdef void add_centered(self) noexcept nogil:
        """trial and shift from gram and gained: from rows (z, 1) to rows z + m. O(d^2)"""
        cdef ptrdiff_t i, j, n = self.d, size = self.columns
        cdef double *G = &self.gram[0, 0]
        cdef double *P = &self.trial[0, 0]
        cdef const double *m = &self.center[0]
        cdef double corner = G[n * size + n]
        # G + g m' + m g' + corner m m', with g + corner m / 2 in the place of g
        for i in range(n):
            self.gained[i] += self.gained[n] * m[i]
            G[i * size + n] += 0.5 * corner * m[i]
        for i in range(n):
            for j in range(i, n):
                P[i * n + j] += (
                    G[i * size + j] + G[i * size + n] * m[j] + m[i] * G[j * size + n]
                )
            self.shift[i] += self.gained[i]

    # -- a chunk --

    cdef int chunk(
        self, Rows A, ptrdiff_t count, const ptrdiff_t *at, const ptrdiff_t *visits,
        const double *y, const double *weight, bint fit, double *tau, double *nu, double *scale,
        double *spread
    ) except -1 nogil:
        """Fit count sites and take them in, or those in self.site; else nothing is changed."""
        cdef ptrdiff_t first = 0, i, j, n = self.d, size = self.columns, refused = self.n_refused
        cdef ptrdiff_t stride = self.moments.loss.stride, q, row
        cdef double residual = self.residual
        cdef double *new = &self.site[0, 0]
        cdef ptrdiff_t long_ = self.site.shape[1]
        cdef double *h = &self.work[0, 0]
        cdef double *s = &self.work[1, 0]
        cdef double *P = &self.trial[0, 0]
        cdef double *G = &self.gram[0, 0] if self.centered else P
        cdef double *gained = &self.gained[0] if self.centered else &self.shift[0]
        cdef Status status = OK
        self.fresh = False
        memcpy(P, &self.P[0, 0], n * n * sizeof(double))
        memcpy(&self.shift[0], &self.p[0], n * sizeof(double))
        if self.centered:
            memset(G, 0, size * size * sizeof(double))
            memset(gained, 0, size * sizeof(double))
        if self.own:
            memset(&self.outer[0, 0], 0, self.outer.shape[0] * self.outer.shape[1] * sizeof(double))
            if fit:
                kernels.rows_pack(n, &self.factor[self.now, 0, 0], &self.packed[0])
        while first < count:
            q = min(self.q, count - first)
            if not self.sparse:
                self.gather(A, q, at + first, fit)
            if fit:
                for j in range(q):
                    row = visits[first + j]
                    i = first + j
                    new[i], new[long_ + i], new[2 * long_ + i] = tau[row], nu[row], scale[row]
                    for i in range(stride):
                        self.y[j, i] = y[row * stride + i]
                    if weight != NULL:
                        self.weight[j] = weight[row]
                if self.sparse:
                    self.marginals_of_sparse(A, q, at + first, h, s)
                else:
                    self.marginals(
                        A, q, min(self.q, count - first - q), at + first + q, h, s
                    )
                status = self.batch(
                    <blas_int> q, &self.y[0, 0], &self.weight[0] if weight != NULL else NULL,
                    new + first, new + long_ + first, new + 2 * long_ + first
                )
                if status == OK:
                    status = self.moments.loss.heed()
                if status == CALLBACK_FAILED:
                    return RAISED
                if self.n_refused > refused:
                    break
                if spread != NULL:
                    for j in range(q):
                        spread[visits[first + j]] = s[j]
            for j in range(q):
                row, i = visits[first + j], first + j
                self.change[0, j] = new[i] - tau[row]
                self.change[1, j] = new[long_ + i] - nu[row]
            if self.sparse:
                self.gram_of_sparse(
                    A, q, at + first, &self.change[0, 0], &self.change[1, 0], G, gained
                )
            else:
                self.add_gram(q)
            first += q
        if self.centered:
            self.add_centered()
        if self.own and first >= count:
            for j in range(n):
                for i in range(j, n):
                    P[j * n + i] += self.outer[j, i]
        if first < count or self.factored() != 0:
            self.n_refused, self.residual = refused, residual
            return NOT_TAKEN
        # nothing below is interrupted
        for i in range(n):
            memcpy(&self.P[i, i], P + i * n + i, (n - i) * sizeof(double))
            self.peak[i] = fmax(self.peak[i], self.P[i, i])
        memcpy(&self.p[0], &self.shift[0], n * sizeof(double))
        for i in range(count):
            row = visits[i]
            tau[row], nu[row], scale[row] = new[i], new[long_ + i], new[2 * long_ + i]
        self.now, self.fresh = 1 - self.now, True
        return TAKEN

    def advance(
        self, Rows A not None, const ptrdiff_t[::1] at not None,
        const ptrdiff_t[::1] visits not None, const double[:, ::1] y not None,
        const double[::1] weight, ptrdiff_t count, double[::1] tau not None,
        double[::1] nu not None, double[::1] scale not None, double[::1] spread=None,
    ):
        """Fit sites in chunks of count; returns how many, less than all where a chunk is not taken.

        That is one that would make the posterior improper, or of which a site is refused: it and
        what comes behind it are left as they were. at numbers the rows in A, visits their y (n,
        width), weight (None: all 1) and sites. Precision and shift, see begin, and the sites are
        those of the chunks so far whenever it returns or raises. spread, where given, gets the
        variance of each row that its new site was found with.
        """
        cdef ptrdiff_t first = 0, n = visits.shape[0]
        cdef bint weighted = weight is not None, told = spread is not None
        cdef int outcome = TAKEN
        self.check(A, at, visits, tau, nu, scale)
        long_enough("spread", spread.shape[0] if told else tau.shape[0], tau.shape[0])
        in_range("visits", visits, min(y.shape[0], weight.shape[0] if weighted else y.shape[0]))
        self.moments.loss.check_responses(y, y.shape[0])
        if count < 1:
            raise ValueError(f"count is {count}; needed: 1")
        if self.site.shape[1] < min(count, n):
            self.site = np.empty((3, min(count, n)))
        with nogil:
            while first < n and outcome == TAKEN:
                outcome = self.chunk(
                    A, min(count, n - first), &at[first], &visits[first], &y[0, 0],
                    &weight[0] if weighted else NULL, True, &tau[0], &nu[0], &scale[0],
                    &spread[0] if told else NULL
                )
                if outcome == TAKEN:
                    first += count
        if outcome == RAISED:
            self.moments.loss.reraise()
        return min(first, n)

    def take(
        self, Rows A not None, const ptrdiff_t[::1] at not None,
        const ptrdiff_t[::1] visits not None, double[:, ::1] new not None,
        double[::1] tau not None, double[::1] nu not None, double[::1] scale not None,
    ):
        """Take these sites in, new (3, n): tau, nu and scale. Whether the posterior is proper."""
        cdef ptrdiff_t n = visits.shape[0]
        cdef int outcome = TAKEN
        self.check(A, at, visits, tau, nu, scale)
        long_enough("new", new.shape[1] if new.shape[0] == 3 else 0, n)
        self.site = new
        try:
            if n:
                with nogil:
                    outcome = self.chunk(
                        A, n, &at[0], &visits[0], NULL, NULL, False, &tau[0], &nu[0], &scale[0],
                        NULL
                    )
        finally:
            self.site = np.empty((3, 0))
        return outcome == TAKEN

    cdef int check(
        self, Rows A, const ptrdiff_t[::1] at, const ptrdiff_t[::1] visits,
        const double[::1] tau, const double[::1] nu, const double[::1] scale
    ) except -1:
        """Raise ValueError for arrays that do not fit together, so that no loop leaves one."""
        if not self.begun:
            raise ValueError("the sweep has no posterior; begin comes first")
        if A.sparse != self.sparse or A.d != self.columns:
            raise ValueError(f"A has {A.d} columns; needed: {self.columns}")
        long_enough("at", at.shape[0], visits.shape[0])
        in_range("at", at, A.n)
        in_range("visits", visits, min(tau.shape[0], nu.shape[0], scale.shape[0]))


# ---- dense rows with a common value per column ----

def differences(
    const double[:, ::1] X not None, const ptrdiff_t[::1] visits not None,
    const double[::1] center not None, ptrdiff_t most,
):
    """CSR arrays (start, column, value) of the rows X[visits] - center, each with an entry of 1.

    The 1 is the last of a row, in column d; without it where center is 0. None: more than so many
    entries.
    """
    cdef ptrdiff_t n = visits.shape[0], d = X.shape[1], i, j, total = 0
    cdef bint centered = False
    cdef const double *row
    cdef const double *m
    cdef int[::1] start = np.zeros(n + 1, dtype=np.intc)
    # each row writes up to d entries behind the last that counts
    cdef int[::1] column = np.empty(most + d + 1, dtype=np.intc)
    cdef double[::1] value = np.empty(most + d + 1)
    long_enough("center", center.shape[0], d)
    in_range("visits", visits, X.shape[0])
    if n == 0 or d == 0:
        return None
    with nogil:
        m = &center[0]
        for j in range(d):
            centered = centered or m[j] != 0.0
        for i in range(n):
            row = &X[visits[i], 0]
            for j in range(d):
                # no branch, which no processor could foresee
                column[total], value[total] = <int> j, row[j] - m[j]
                total += row[j] != m[j]
            column[total], value[total] = <int> d, 1.0
            total += centered
            if total > most:
                break
            start[i + 1] = <int> total
    if total > most:
        return None
    return np.asarray(start), np.asarray(column)[:total], np.asarray(value)[:total]
