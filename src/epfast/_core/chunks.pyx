"""EP in chunks: the sites of c rows from one posterior, then the posterior from the sites.

With c = 1 that is sequential EP, with c = n parallel EP. The work of a chunk is 2 c d^2 flops in
products of matrices and d^3 for the factor of the new precision. Sparse rows a_i take nnz_i^2.

A large chunk is cut into as many lanes as the caller says. Each lane sums the changes of its sites,
and these sums are added in a fixed order. The result of a chunk therefore does not depend on the
number of threads that share its lanes, to the last bit.
"""

import numpy as np

from libc.math cimport fabs, fmax, isfinite, sqrt
from libc.string cimport memcpy, memset

from epfast._core.cholesky cimport factorize, invert_factored, invert_triangle
from epfast._core.lapack cimport blas_int, ddot, dgemv, dsyrk, dtrmm, dtrsv
from epfast._core.row_sweeps cimport SiteFits
from epfast._core.rows cimport Rows, in_range, long_enough, square
from epfast._core.status cimport OK, Status
from epfast._core.part_queue cimport PartQueue
from epfast._core.tilted cimport TiltedMoments
from epfast._core.vector cimport EPF_ROW_PAD, kernels

cdef enum:
    PANEL_BYTES = 1 << 20       # of a matrix, that sparse rows are met with
    OWN_UP_TO = 512             # dimensions from which BLAS is as fast as the kernels here
    LANES = 16                  # most of a chunk

#: most lanes of a chunk
MOST_LANES = LANES

cdef enum Outcome:
    TAKEN
    NOT_TAKEN                   # it would make the posterior improper, or sites were refused
    RAISED                      # a callback's exception waits in the loss


ctypedef struct Job:                    # a chunk, as all of its lanes see it
    bint fit                            # else its new sites are known
    const ptrdiff_t *at                 # rows in A
    const ptrdiff_t *visits             # numbers of rows: of y, weight and sites
    const double *y
    const double *weight
    const double *tau
    const double *nu
    const double *scale
    double *spread
    double *new                         # tau, nu, scale, `length` numbers each
    ptrdiff_t length
    const double *factor
    const double *packed
    const double *mean
    const double *z


cdef void copy_lower(
    ptrdiff_t n, const double *from_, ptrdiff_t stride, double *to, ptrdiff_t step
) noexcept nogil:
    """Lower triangle by columns, of so many numbers each."""
    cdef ptrdiff_t i
    for i in range(n):
        memcpy(to + i * step + i, from_ + i * stride + i, (n - i) * sizeof(double))


# ---- the rows of a chunk ----

cdef class ChunkRows(SiteFits):
    """Scratch of one thread for rows of a chunk, q at a time."""

    cdef bint sparse, own
    cdef ptrdiff_t d
    cdef double[:, ::1] V               # as A, to be multiplied
    cdef double[:, ::1] A               # q rows, gathered, and zeros behind and beside them
    cdef double[:, ::1] panel           # of the kernels here
    cdef double[:, ::1] change          # precision and shift, of q sites
    cdef double[:, ::1] y
    cdef double[::1] weight
    cdef ptrdiff_t[::1] cursor

    def __init__(
        self, TiltedMoments moments not None, ptrdiff_t d, ptrdiff_t q, double power,
        double damping, bint sparse,
    ):
        super().__init__(moments, power, damping, q)
        self.sparse, self.d = sparse, d
        self.own = d <= OWN_UP_TO and not sparse
        wide = (d + 7) // 8 * 8 if self.own else d
        self.A = np.zeros((q + EPF_ROW_PAD if self.own else 1 if sparse else q, wide))
        self.panel = np.empty((q if self.own else 1, EPF_ROW_PAD))
        self.V = np.empty((1 if sparse or self.own else q, d))
        self.change = np.empty((2, q))
        self.y = np.empty((q, moments.loss.stride))
        self.weight = np.empty(q)
        self.cursor = np.empty(q, dtype=np.intp)

    cdef Status lane(
        self, PartQueue queue, Rows A, const Job *job, ptrdiff_t first, ptrdiff_t stop, double *C,
        double *x
    ) noexcept nogil:
        """Fit some sites, add the changes of their precision and shift to C and x.

        Stops at a refused site, and where another lane has stopped.
        """
        cdef ptrdiff_t i, j, q, stride = self.moments.loss.stride, length = job.length
        cdef const ptrdiff_t *visits
        cdef const double *y
        cdef double *new = job.new
        cdef double *to
        cdef double *old_tau = &self.change[0, 0]
        cdef double *old_nu = &self.change[1, 0]
        cdef double *h = &self.work[0, 0]
        cdef double *s = &self.work[1, 0]
        cdef Status status
        self.n_refused, self.residual = 0, 0.0
        while first < stop and not queue.halted():
            q = min(self.q, stop - first)
            if not self.sparse:
                self.gather(A, q, job.at + first, job.fit)
            visits = job.visits + first
            for j in range(q):              # the sites as they are
                old_tau[j], old_nu[j] = job.tau[visits[j]], job.nu[visits[j]]
            if job.fit:
                memcpy(new + first, old_tau, q * sizeof(double))
                memcpy(new + length + first, old_nu, q * sizeof(double))
                to = new + 2 * length + first
                for j in range(q):
                    to[j] = job.scale[visits[j]]
                to = &self.y[0, 0]
                for j in range(q):
                    y = job.y + visits[j] * stride
                    for i in range(stride):
                        to[i] = y[i]
                    to += stride
                if job.weight != NULL:
                    for j in range(q):
                        self.weight[j] = job.weight[visits[j]]
                if self.sparse:
                    self.marginals_of_sparse(A, q, job.at + first, job, h, s)
                else:
                    self.marginals(
                        A, q, min(self.q, stop - first - q), job.at + first + q, job, h, s
                    )
                status = self.batch(
                    <blas_int> q, h, s, &self.y[0, 0],
                    &self.weight[0] if job.weight != NULL else NULL,
                    new + first, new + length + first, new + 2 * length + first
                )
                if status == OK:
                    status = self.moments.loss.heed()
                if status != OK or self.n_refused > 0:
                    queue.halt()
                    return status
                if job.spread != NULL:
                    for j in range(q):
                        job.spread[visits[j]] = s[j]
            for j in range(q):
                old_tau[j] = new[first + j] - old_tau[j]
                old_nu[j] = new[length + first + j] - old_nu[j]
            if self.sparse:
                self.gram_of_sparse(A, q, job.at + first, old_tau, old_nu, C, x)
            else:
                self.add_gram(q, C, x)
            first += q
        return OK

    cdef void marginals_of_sparse(
        self, Rows A, ptrdiff_t q, const ptrdiff_t *at, const Job *job, double *h, double *s
    ) noexcept nogil:
        """h_j = a_j.mean and s_j = a_j' Sigma a_j from the nonzeros, panel by panel of Sigma."""
        cdef const double *M = job.factor
        cdef const double *mean = job.mean
        cdef const double *row
        cdef const double *value = &A.value[0] if A.value.shape[0] else NULL
        cdef const int *column = &A.column[0] if A.column.shape[0] else NULL
        cdef ptrdiff_t i, j, k, stop, size = self.d
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
        cdef ptrdiff_t i, j, k, stop, size = self.d
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
        self, Rows A, ptrdiff_t q, ptrdiff_t more, const ptrdiff_t *next, const Job *job, double *h,
        double *s
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
                q, self.d, self.A.shape[1], &self.A[0, 0], job.packed, job.z, h, s, &A.dense[0, 0],
                A.dense.strides[0] // 8, more, next
            )
            return
        dtrmm(
            b"L", b"L", b"N", b"N", &d, &n, &unit, <double *> job.factor, &d, V, &d
        )
        for j in range(q):
            s[j] = ddot(&d, V + j * self.d, &one, V + j * self.d, &one)
            h[j] = ddot(&d, V + j * self.d, &one, <double *> job.z, &one)

    cdef void add_gram(self, ptrdiff_t q, double *C, double *x) noexcept nogil:
        """C and x from the changes of q sites, whose rows are gathered. O(d^2 q)

        By a kernel of simd/rows.h, where C has rows of A's length, or by dsyrk, without signs:
        those that gain precision to the front, the others behind.
        """
        cdef blas_int d = <blas_int> self.d, n = <blas_int> q, one = 1, gain = 0, loss = 0
        cdef double unit = 1.0, minus = -1.0, root
        cdef double *V = &self.V[0, 0]
        cdef double *to
        cdef double *a
        cdef ptrdiff_t i, j
        if self.own:
            kernels.rows_outer(
                q, self.d, self.A.shape[1], &self.A[0, 0], &self.change[0, 0], &self.change[1, 0],
                &self.panel[0, 0], C, x
            )
            return
        dgemv(
            b"N", &d, &n, &unit, &self.A[0, 0], &d, &self.change[1, 0], &one, &unit, x, &one
        )
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
            dsyrk(b"L", b"N", &d, &gain, &unit, V, &d, &unit, C, &d)
        if loss:
            dsyrk(b"L", b"N", &d, &loss, &minus, V + (q - loss) * self.d, &d, &unit, C, &d)


# ---- chunks ----

cdef class ChunkedSweep:
    """Scratch for sweeps in chunks over d dimensions, q rows at a time.

    others: moments for threads that help, each of its own. residual, the caller's to set back: see
    SiteFits.
    """

    cdef readonly ptrdiff_t n_refused
    cdef public double residual
    cdef ptrdiff_t d, q, n_lanes
    cdef bint sparse, begun
    cdef bint fresh                     # factor and mean in use are those of trial and shift
    cdef double[:, ::1] P               # of the caller: lower triangle by columns
    cdef double[::1] p
    cdef double[:, :, ::1] factor       # L^-1 where P = L L', or Sigma; the one in use and the next
    cdef double[:, ::1] trial
    cdef double[:, ::1] mean            # as above
    cdef double[:, ::1] z               # L^-1 p; as above
    cdef double[::1] shift              # that of trial
    cdef double[::1] peak               # the largest diagonal of P since the beginning
    cdef double[:, ::1] outer           # the sum of the kernels here; d <= OWN_UP_TO
    cdef double[::1] packed
    cdef bint own
    cdef double[:, ::1] site            # new tau, nu, scale of a chunk
    cdef double[:, :, ::1] sums         # of lanes but the first: precision
    cdef double[:, ::1] shifts          # and shift
    cdef ptrdiff_t[LANES] refused  # by lane
    cdef double[LANES] distance
    cdef Status[LANES] status
    cdef ptrdiff_t count
    cdef Job job
    cdef Rows rows
    cdef ChunkRows hand                 # of the thread that leads
    cdef list others
    cdef readonly PartQueue queue
    cdef int now

    def __init__(
        self, TiltedMoments moments not None, ptrdiff_t d, ptrdiff_t q, double power,
        double damping, bint sparse, others=(),
    ):
        self.d, self.q = d, q
        self.sparse = sparse
        numbers = d, q, power, damping, sparse
        self.hand = ChunkRows(moments, *numbers)
        self.others = [ChunkRows(other, *numbers) for other in others]
        self.queue = PartQueue()
        self.factor = np.empty((2, d, d))
        self.trial = np.empty((d, d))
        self.mean, self.z = np.empty((2, d)), np.zeros((2, d + EPF_ROW_PAD))
        self.shift, self.peak = np.empty(d), np.empty(d)
        self.own = self.hand.own
        self.outer = np.empty(2 * (self.hand.A.shape[1] if self.own else 1,))
        self.packed = np.empty((d + EPF_ROW_PAD) * d if self.own else 1)
        self.site = np.empty((3, 0))
        self.sums, self.shifts = np.empty((0, 1, 1)), np.empty((0, 1))
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
        copy_lower(self.d, &P[0, 0], self.d, &self.trial[0, 0], self.d)
        memcpy(&self.shift[0], &p[0], self.d * sizeof(double))
        self.fresh = False
        with nogil:
            if self.factored() == 0:
                self.now, self.fresh = 1 - self.now, True
        return bool(self.fresh)

    def drift(self):
        """The largest ratio of what a diagonal entry of P was since the beginning and is now."""
        cdef double most = 1.0
        cdef ptrdiff_t i
        for i in range(self.d):
            most = fmax(most, self.peak[i] / self.P[i, i])
        return most

    cdef int factored(self) except -1 nogil:
        """The next factor and mean, from trial and shift. Not 0: improper. O(d^3)"""
        cdef blas_int d = <blas_int> self.d, one = 1
        cdef double *L = &self.trial[0, 0]
        cdef double *next = &self.factor[1 - self.now, 0, 0]
        cdef double *mean = &self.mean[1 - self.now, 0]
        cdef double *z = &self.z[1 - self.now, 0]
        cdef ptrdiff_t i, n = self.d
        copy_lower(n, L, n, next, n)
        if factorize(next, n) != 0:
            return 1
        for i in range(n):
            if not (next[i * n + i] > 0.0 and isfinite(next[i * n + i])):
                return 1
        memcpy(z, &self.shift[0], n * sizeof(double))
        dtrsv(b"L", b"N", b"N", &d, next, &d, z, &one)
        memcpy(mean, z, n * sizeof(double))
        dtrsv(b"L", b"T", b"N", &d, next, &d, mean, &one)
        for i in range(n):
            if not isfinite(mean[i]):
                return 1
        if self.sparse:
            invert_factored(next, n)
        else:
            invert_triangle(next, n)
        return 0

    # -- a chunk --

    cdef double *sum_of(self, ptrdiff_t lane) noexcept nogil:
        """Where a lane adds up precision."""
        if lane > 0:
            return &self.sums[lane - 1, 0, 0]
        return &self.outer[0, 0] if self.own else &self.trial[0, 0]

    cdef double *shift_of(self, ptrdiff_t lane) noexcept nogil:
        """Where a lane adds up shift."""
        if lane > 0:
            return &self.shifts[lane - 1, 0]
        return &self.shift[0]

    cdef void clear(self, ptrdiff_t lane) noexcept nogil:
        """Set the sums of a lane to 0: lower triangle, and what kernels here touch beside it."""
        cdef ptrdiff_t size = self.outer.shape[0] if self.own else self.d, i, first
        cdef double *C = self.sum_of(lane)
        for i in range(size):
            first = i // 8 * 8
            memset(C + i * size + first, 0, (size - first) * sizeof(double))
        if lane > 0:
            memset(self.shift_of(lane), 0, self.d * sizeof(double))

    cdef void work(self, ChunkRows hand, ptrdiff_t lane) noexcept nogil:
        """Do a lane of the chunk."""
        if lane > 0:
            self.clear(lane)
        self.status[lane] = hand.lane(
            self.queue, self.rows, &self.job, lane * self.count // self.n_lanes,
            (lane + 1) * self.count // self.n_lanes, self.sum_of(lane), self.shift_of(lane)
        )
        self.refused[lane], self.distance[lane] = hand.n_refused, hand.residual
        self.queue.finish()

    cdef void add_lanes(self) noexcept nogil:
        """The sums of all lanes, in their order, to those of the first."""
        cdef ptrdiff_t size = self.outer.shape[0] if self.own else self.d, lane, i, j
        cdef double *C = self.sum_of(0)
        cdef double *x = self.shift_of(0)
        cdef double *more
        for lane in range(1, self.n_lanes):
            more = self.sum_of(lane)
            for j in range(self.d):
                for i in range(j * size + j, j * size + self.d):
                    C[i] += more[i]
            more = self.shift_of(lane)
            for i in range(self.d):
                x[i] += more[i]

    cdef int chunk(self, ptrdiff_t count, double *tau, double *nu, double *scale) except -1 nogil:
        """Fit the sites of self.job, or take its new ones, in; else nothing is changed."""
        cdef ptrdiff_t i, j, n = self.d, row, lane, refused = 0
        cdef double residual = self.residual
        cdef const Job *job = &self.job
        cdef double *P = &self.trial[0, 0]
        cdef const double *new = job.new
        cdef const double *new_nu = new + job.length
        cdef const double *new_scale = new_nu + job.length
        cdef bint raised = False
        self.fresh = False
        copy_lower(n, &self.P[0, 0], n, P, n)
        memcpy(&self.shift[0], &self.p[0], n * sizeof(double))
        if self.own:
            self.clear(0)
        self.job.factor, self.job.packed = &self.factor[self.now, 0, 0], &self.packed[0]
        self.job.mean, self.job.z = &self.mean[self.now, 0], &self.z[self.now, 0]
        if self.own and job.fit:
            kernels.rows_pack(n, job.factor, &self.packed[0])
        self.count = count
        self.queue.offer(self.n_lanes)
        while True:
            lane = self.queue.claim()
            if lane < 0:
                break
            self.work(self.hand, lane)
        self.queue.wait()
        for lane in range(self.n_lanes):
            raised = raised or self.status[lane] != OK
            refused += self.refused[lane]
            residual = fmax(residual, self.distance[lane])
        if raised:
            return RAISED
        if refused:
            return NOT_TAKEN
        self.add_lanes()
        if self.own:
            for j in range(n):
                for i in range(j, n):
                    P[j * n + i] += self.outer[j, i]
        if self.factored() != 0:
            return NOT_TAKEN
        # nothing below is interrupted
        copy_lower(n, P, n, &self.P[0, 0], n)
        for i in range(n):
            self.peak[i] = fmax(self.peak[i], self.P[i, i])
        memcpy(&self.p[0], &self.shift[0], n * sizeof(double))
        for i in range(count):
            row = job.visits[i]
            tau[row], nu[row], scale[row] = new[i], new_nu[i], new_scale[i]
        self.now, self.fresh, self.residual = 1 - self.now, True, residual
        return TAKEN

    def help(self, ptrdiff_t number):
        """Do lanes that the leader offers, by the scratch of that number, from 1.

        Returns when the queue is closed.
        """
        cdef ChunkRows hand = self.others[number - 1]
        cdef ptrdiff_t lane
        with nogil:
            while True:
                lane = self.queue.next()
                if lane < 0:
                    break
                self.work(hand, lane)

    def advance(
        self, Rows A not None, const ptrdiff_t[::1] at not None,
        const ptrdiff_t[::1] visits not None, const double[:, ::1] y not None,
        const double[::1] weight, ptrdiff_t count, double[::1] tau not None,
        double[::1] nu not None, double[::1] scale not None, double[::1] spread=None,
        const ptrdiff_t[::1] lanes=None,
    ):
        """Fit sites in chunks of count; returns how many, less than all where a chunk is not taken.

        That is one that would make the posterior improper, or of which a site is refused: it and
        what comes behind it are left as they were. at numbers the rows in A, visits their y (n,
        width), weight (None: all 1) and sites. Precision and shift, see begin, and the sites are
        those of the chunks so far whenever it returns or raises. spread, where given, gets the
        variance of each row that its new site was found with. lanes: of each chunk, None: one.
        """
        cdef ptrdiff_t first = 0, n = visits.shape[0], most = 1, k
        cdef bint weighted = weight is not None, known = spread is not None, cut = lanes is not None
        cdef int outcome = TAKEN
        cdef Job *job = &self.job
        self.check(A, at, visits, tau, nu, scale)
        long_enough("spread", spread.shape[0] if known else tau.shape[0], tau.shape[0])
        in_range("visits", visits, min(y.shape[0], weight.shape[0] if weighted else y.shape[0]))
        self.hand.moments.loss.check_responses(y, y.shape[0])
        if count < 1:
            raise ValueError(f"count is {count}; needed: 1")
        if self.site.shape[1] < min(count, n):
            self.site = np.empty((3, min(count, n)))
        if n == 0:
            return 0
        self.rows = A
        if cut:
            long_enough("lanes", lanes.shape[0], (n + count - 1) // count)
            for k in range(lanes.shape[0]):
                if not 1 <= lanes[k] <= LANES:
                    raise ValueError(f"lanes holds {lanes[k]}; needed: 1 to {MOST_LANES}")
                most = max(most, lanes[k])
        if self.sums.shape[0] < most - 1:
            size = self.outer.shape[0] if self.own else self.d
            self.sums = np.empty((most - 1, size, size))
            self.shifts = np.empty((most - 1, self.d))
        job.fit, job.length, job.new = True, self.site.shape[1], &self.site[0, 0]
        job.y, job.weight = &y[0, 0], &weight[0] if weighted else NULL
        job.tau, job.nu, job.scale = &tau[0], &nu[0], &scale[0]
        job.spread = &spread[0] if known else NULL
        with nogil:
            while first < n and outcome == TAKEN:
                job.at, job.visits = &at[first], &visits[first]
                self.n_lanes = lanes[first // count] if cut else 1
                outcome = self.chunk(min(count, n - first), &tau[0], &nu[0], &scale[0])
                if outcome == TAKEN:
                    first += count
        if outcome == RAISED:
            self.hand.moments.loss.reraise()
        return min(first, n)

    def take(
        self, Rows A not None, const ptrdiff_t[::1] at not None,
        const ptrdiff_t[::1] visits not None, double[:, ::1] new not None,
        double[::1] tau not None, double[::1] nu not None, double[::1] scale not None,
    ):
        """Take these sites in, new (3, n): tau, nu and scale. Whether the posterior is proper."""
        cdef ptrdiff_t n = visits.shape[0]
        cdef int outcome
        cdef Job *job = &self.job
        self.check(A, at, visits, tau, nu, scale)
        long_enough("new", new.shape[1] if new.shape[0] == 3 else 0, n)
        if n == 0:
            return True
        self.rows, self.n_lanes = A, 1
        job.fit, job.length, job.new = False, new.shape[1], &new[0, 0]
        job.at, job.visits, job.spread = &at[0], &visits[0], NULL
        job.tau, job.nu, job.scale = &tau[0], &nu[0], &scale[0]
        with nogil:
            outcome = self.chunk(n, &tau[0], &nu[0], &scale[0])
        return outcome == TAKEN

    cdef int check(
        self, Rows A, const ptrdiff_t[::1] at, const ptrdiff_t[::1] visits,
        const double[::1] tau, const double[::1] nu, const double[::1] scale
    ) except -1:
        """Raise ValueError for arrays that do not fit together, so that no loop leaves one."""
        if not self.begun:
            raise ValueError("the sweep has no posterior; begin comes first")
        if A.sparse != self.sparse or A.d != self.d:
            raise ValueError(f"A has {A.d} columns; needed: {self.d}")
        long_enough("at", at.shape[0], visits.shape[0])
        in_range("at", at, A.n)
        in_range("visits", visits, min(tau.shape[0], nu.shape[0], scale.shape[0]))
