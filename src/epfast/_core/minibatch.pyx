"""Gaussian fits of minibatch factors with a diagonal cavity, and the sweep over them (math: guide).

A factor is t(theta) = exp(-beta sum_k l(h_k; y_k)), h_k = x_k.theta, over the rows of a minibatch,
and l is a function of the margin y_k h_k or of h_k and a response. m_k is the one or the
other. A row of weight w_k counts w_k l, and a row of weight 0 is absent. A factor of one row with
tilted moments takes weights as scalar sites do: w >= 1 are w copies that share the site, and below
the factor is t^w. The cavity is N(mu, diag v). Every scheme fits

    log g(theta) = c + sum_j [ b_j (theta_j - mu_j) - tau_j (theta_j - mu_j)^2 / 2 ]

and the sweep turns it into a site about the origin (precision tau, shift nu = b + tau mu).

    s rows   d columns   z points of a general rule   p monomials
"""

import numpy as np

from libc.math cimport INFINITY, NAN, exp, fabs, fmax, fmin, isfinite, isnan, log, sqrt
from libc.string cimport memcpy, memset

from epfast._core.arrays cimport (
    Views, is_apart, is_shaped, is_vector, numbers, release, take,
)
from epfast._core.lapack cimport blas_int, dgemm, dpotrf, dpotrs, dsyrk
from epfast._core.loss cimport CoreLoss
from epfast._core.rule_fit cimport newton_cholesky, newton_sigma
from epfast._core.status cimport CALLBACK_FAILED, NO_FIT, NOT_FINITE, OK, Status
from epfast._core.tilted cimport TiltedMoments
from epfast._core.vector cimport EPF_CALLBACK, epf_move, epf_pairs_work, kernels

from epfast._core.rule_fit import monomials

SITE_RULES = {"nonnegative": NONNEGATIVE, "keep": KEEP, "floor": FLOOR}

cdef type ndarray = np.ndarray

cdef double FLOOR_SHARE = -0.9
cdef int MAX_HALVINGS = 40
cdef double BESIDE = 1e-6           # from a kink, in margins: Newton ends nearer than that
cdef int MAX_INNER = 60                 # iterations in which the copies of a row converge
cdef double SETTLED = 1e-10             # by this much of the posterior
cdef double MOST_MOVE = 2.0             # of x.theta at a time, beside as many sd

cdef enum:
    POINT_BLOCK = 64
    LARGE = 4096                # numbers of a factor; one with more looks for signals


cdef class Design:
    """Rows of X, (n, d): an array of float64 or float32 with any strides, or a CSR matrix.

    float64 rows that lie in memory as doubles side by side are used there, and so are float32 rows
    by those who take floats; others are unpacked, so many at a time as one asks for: at most
    max_rows.
    """

    def __init__(self, X, ptrdiff_t max_rows):
        self.n, self.d = X.shape
        self.sparse = hasattr(X, "indptr")
        if self.sparse:
            self.start = X.indptr.astype(np.intp, copy=False)
            self.column = X.indices.astype(np.intp, copy=False)
            self.value = X.data
        elif X.dtype == np.float64:
            self.double_rows = X
            self.in_place = (
                self.double_rows.strides[1] == sizeof(double)
                and self.double_rows.strides[0] % <ptrdiff_t> sizeof(double) == 0
            )
        else:
            self.single, self.float_rows = True, X
            self.single_in_place = (
                self.float_rows.strides[1] == sizeof(float)
                and self.float_rows.strides[0] % <ptrdiff_t> sizeof(float) == 0
            )
        if not self.in_place:
            self.packed = np.empty(min(max_rows, self.n) * self.d)

    cdef const double *rows(self, ptrdiff_t first, ptrdiff_t s, ptrdiff_t *ld) noexcept nogil:
        """s rows from the first; ld[0]: numbers from one to the next. O(s d) to unpack."""
        cdef ptrdiff_t k, j, d = self.d
        cdef double *packed
        if self.in_place:
            ld[0] = self.double_rows.strides[0] // <ptrdiff_t> sizeof(double)
            return <const double *> &self.double_rows[first, 0]
        packed, ld[0] = &self.packed[0], d
        if self.sparse:
            memset(packed, 0, s * d * sizeof(double))
            for k in range(s):
                for j in range(self.start[first + k], self.start[first + k + 1]):
                    packed[k * d + self.column[j]] += self.value[j]
        elif self.single:
            for k in range(s):
                for j in range(d):
                    packed[k * d + j] = self.float_rows[first + k, j]
        else:
            for k in range(s):
                for j in range(d):
                    packed[k * d + j] = self.double_rows[first + k, j]
        return packed

    cdef const float *single_rows(self, ptrdiff_t first, ptrdiff_t *ld) noexcept nogil:
        """Rows in place, from the first, where single_in_place."""
        ld[0] = self.float_rows.strides[0] // <ptrdiff_t> sizeof(float)
        return <const float *> &self.float_rows[first, 0]


cdef class MinibatchSweep:
    """A scheme with its numbers and its scratch: fits factors one by one, or sweeps over many.

    n_failed: factors that had no fit. n_refused: these, and the sites that kept their old value in
    some coordinate since cavity, fit or posterior would be improper. n_clipped: coordinates where
    the site rule changed the precision. n_visited: rows of the factors that sweeps visited. The
    arguments are checked by the callers.
    """

    def __init__(
        self, CoreLoss loss not None, str scheme, ptrdiff_t d, ptrdiff_t max_rows, *,
        double gamma=0.0, double power=1.0, double damping=1.0,
        double tolerance=1e-5, int max_iterations=50, bint slope_curvature=False,
        bint half_sums=False, str site_rule="nonnegative", points=None, weights=None,
        bint newton=False, TiltedMoments moments=None,
    ):
        cdef ptrdiff_t z, p
        self.loss = loss
        self.moments = moments
        self.scheme = scheme_named(scheme)
        self.site_rule = SITE_RULES[site_rule]
        self.d, self.max_rows = d, max_rows
        self.gamma, self.power, self.damping = gamma, power, damping
        self.tolerance, self.max_iterations = tolerance, max_iterations
        self.slope_curvature, self.half_sums = slope_curvature, half_sums
        self.newton = newton

        self.lay_out(d)
        if loss.shifted:
            self.apart = np.empty(max_rows * loss.stride)
        if self.scheme.scratch == OF_HESSIAN:
            p = min(d, max_rows)
            # Hessian in the smaller of the two spaces and its factor, scaled rows
            self.hessian = np.empty(2 * p * p + max_rows * d)
        elif self.scheme.scratch == OF_PAIRS:
            self.scratch = np.empty(max(1, epf_pairs_work(&loss.c, max_rows, d)))
        elif self.scheme.scratch == OF_POINTS:
            self.points = points
            self.weights = weights
            self.basis = monomials(points, False)
            z, p = self.basis.shape[0], self.basis.shape[1]
            self.alpha = np.empty(p)
            self.newton_work = np.empty(z * (p + 5) + p * (p + 2))
            self.point_values = np.empty(z)
            # scaled rows, then m, values and responses at a block of points
            self.scratch = np.empty(max_rows * (d + (2 + loss.c.width) * POINT_BLOCK))

    cdef int lay_out(self, ptrdiff_t d) except -1:
        """Scratch of a number per row, and of those per column for factors of d columns."""
        cdef ptrdiff_t s = self.max_rows
        self.memory = np.zeros(6 * s + 12 * d)
        if self.newton:
            self.newton_work = np.empty(7 * (2 * d + 1))
        self.row.m = &self.memory[0]
        self.row.value = self.row.m + s
        self.row.slope = self.row.value + s
        self.row.curvature = self.row.slope + s
        self.row.trial = self.row.curvature + s
        self.row.work = self.row.trial + s
        self.column.mu = self.row.work + s
        self.column.v = self.column.mu + d
        self.column.b = self.column.v + d
        self.column.tau = self.column.b + d
        self.column.step = self.column.tau + d
        self.column.theta = self.column.step + d
        self.column.up = self.column.theta + d
        self.column.down = self.column.up + d
        self.column.site_tau = self.column.down + d
        self.column.site_nu = self.column.site_tau + d
        self.column.away_tau = self.column.site_nu + d
        self.column.away_nu = self.column.away_tau + d
        return 0

    # -- products with the rows of a factor --

    cdef void margins(self, const Minibatch *rows, const double *theta, double *m) noexcept nogil:
        """m_k = sign_k x_k.theta"""
        kernels.margins(
            rows.s, self.d, rows.numbers, rows.single, rows.ld, rows.sign, theta, m
        )

    cdef void arguments(self, const Minibatch *rows, const double *theta, double *m) noexcept nogil:
        """What the loss is taken at: the margins and their shifts."""
        cdef ptrdiff_t k
        self.margins(rows, theta, m)
        if rows.shift != NULL:
            for k in range(rows.s):
                m[k] += rows.shift[k]

    cdef void sums(
        self, const Minibatch *rows, const double *c, const double *w, double *g, double *h
    ) noexcept nogil:
        """g_j = sum_k c_k x_kj, h_j = sum_k w_k x_kj^2"""
        kernels.weighted_sums(
            rows.s, self.d, rows.numbers, rows.single, rows.ld, c, w, g, h
        )

    cdef void gram(self, const Minibatch *rows, double *gram, double *scaled) noexcept nogil:
        """Z V Z', lower triangle by columns, Z = sign X. scaled: scratch, (s, d)."""
        cdef blas_int height = <blas_int> rows.s, width = <blas_int> self.d
        cdef double unit = 1.0, zero = 0.0
        self.scaled_rows(rows, scaled)
        dsyrk(b"L", b"T", &height, &width, &unit, scaled, &width, &zero, gram, &height)

    cdef void weighted_gram(
        self, const Minibatch *rows, const double *root, double *gram, double *scaled
    ) noexcept nogil:
        """X' diag(root^2) X, lower triangle by columns. scaled: scratch, (s, d)."""
        cdef blas_int height = <blas_int> rows.s, width = <blas_int> self.d
        cdef double unit = 1.0, zero = 0.0
        cdef ptrdiff_t k, j
        for k in range(rows.s):
            for j in range(self.d):
                scaled[k * self.d + j] = root[k] * rows.x[k * rows.ld + j]
        dsyrk(b"L", b"N", &width, &height, &unit, scaled, &width, &zero, gram, &width)

    # -- the rows of a factor --

    cdef void take_rows(
        self, Minibatch *rows, ptrdiff_t s, const double *x, ptrdiff_t ld, const double *y,
        const double *weight, bint stored
    ) noexcept nogil:
        """rows <- s rows of x with their labels or responses y; NULL: the labels are in x.

        weight: of the rows, NULL: all 1. stored: whether their factor has a site.
        """
        rows.s, rows.x, rows.ld = s, x, ld
        rows.numbers, rows.single = x, False
        rows.given, rows.shift = y, NULL
        if self.loss.shifted and y != NULL:
            y = self.taken_apart(rows, y)
        rows.sign = y if self.loss.c.width == 0 else NULL
        rows.responses = y if self.loss.c.width > 0 else NULL
        rows.weight, rows.copies = weight, 1.0
        if weight != NULL and stored and self.scheme.one_row:
            rows.copies = fmax(1.0, weight[0])

    cdef const double *taken_apart(self, Minibatch *rows, const double *y) noexcept nogil:
        """rows.shift <- the shifts of a shifted loss; returns y without them."""
        cdef double *shift = &self.apart[0]
        cdef double *rest = shift + self.max_rows
        cdef ptrdiff_t k, j, base = self.loss.base
        for k in range(rows.s):
            for j in range(base):
                rest[k * base + j] = y[k * self.loss.stride + j]
            shift[k] = y[k * self.loss.stride + base]
        rows.shift = shift
        return rest

    # -- what schemes are made of --

    cdef Status fit(self, const Minibatch *rows, double beta, double *c) noexcept nogil:
        """From mu and v: b and tau, and c = log g(mu). Of t^power, divided by the power again."""
        cdef Status status = self.scheme.fit(self, rows, beta, c)
        cdef ptrdiff_t j
        if status == OK and self.power != 1.0:
            c[0] /= self.power
            for j in range(self.d):
                self.column.b[j] /= self.power
                self.column.tau[j] /= self.power
        return status

    cdef Status margins_at_mean(self, const Minibatch *rows) noexcept nogil:
        """m from mu."""
        cdef ptrdiff_t k
        self.arguments(rows, self.column.mu, self.row.m)
        for k in range(rows.s):
            if not isfinite(self.row.m[k]):
                self.bad_row = k
                return NOT_FINITE
        return OK

    cdef double total(self, const Minibatch *rows, const double *value) noexcept nogil:
        """sum_k w_k value_k; a row of weight 0 is absent, whatever its value."""
        cdef double sum_of = 0.0
        cdef ptrdiff_t k
        for k in range(rows.s):
            if rows.weight == NULL:
                sum_of += value[k]
            elif rows.weight[k] > 0.0:
                sum_of += rows.weight[k] * value[k]
        return sum_of

    cdef Status center(self, const Minibatch *rows, double beta, double *c) noexcept nogil:
        """c = -beta sum_k w_k l_k."""
        if kernels.loss(
            &self.loss.c, rows.s, self.row.m, rows.responses, self.loss.c.width, self.row.value,
            NULL, NULL
        ) != 0:
            return CALLBACK_FAILED
        c[0] = -beta * self.total(rows, self.row.value)
        return OK

    cdef Status two_sided(self, const Minibatch *rows, double beta, double *c) noexcept nogil:
        """m; step_j = gamma sqrt(v_j); b_j <- D_j, tau_j <- S_j (vector.h); c at the center."""
        cdef ptrdiff_t k, j, first = 0, after
        cdef int failed
        cdef double w, total = NAN
        cdef Status status
        kernels.steps(self.d, self.gamma, self.column.v, self.column.step)
        if rows.weight == NULL and rows.shift == NULL and self.loss.c.kind != EPF_CALLBACK:
            self.pairs(rows, 0, rows.s, self.column.mu, self.column.b, self.column.tau, &total)
            for k in range(rows.s):
                if not isfinite(self.row.m[k]):
                    self.bad_row = k
                    return NOT_FINITE
            c[0] = -beta * total
            return OK if not isnan(total) else self.center(rows, beta, c)
        status = self.margins_at_mean(rows)
        if status != OK:
            return status
        for j in range(self.d):
            self.column.b[j] = self.column.tau[j] = 0.0
        while first < rows.s:                           # neighbours of one weight go together
            w, after = rows.weight[first] if rows.weight != NULL else 1.0, first + 1
            while after < rows.s and (rows.weight == NULL or rows.weight[after] == w):
                after += 1
            if w > 0.0:
                failed = self.pairs(
                    rows, first, after, NULL, self.column.up, self.column.down, &total
                )
                if failed != 0:
                    return CALLBACK_FAILED if failed > 0 else NO_FIT
                for j in range(self.d):
                    self.column.b[j] += w * self.column.up[j]
                    self.column.tau[j] += w * self.column.down[j]
            first = after
        return self.center(rows, beta, c)

    cdef int pairs(
        self, const Minibatch *rows, ptrdiff_t first, ptrdiff_t after, const double *mu, double *D,
        double *S, double *total
    ) noexcept nogil:
        """D, S and total (vector.h) of the rows first to after - 1; mu not NULL: their margins."""
        cdef ptrdiff_t size = sizeof(float) if rows.single else sizeof(double)
        return kernels.pairs(
            &self.loss.c, after - first, self.d,
            <const char *> rows.numbers + first * rows.ld * size, rows.single, rows.ld,
            rows.sign + first if rows.sign != NULL else NULL,
            rows.responses + first * self.loss.c.width if rows.responses != NULL else NULL,
            mu, self.row.m + first, self.column.step, D, S, total, &self.scratch[0]
        )

    cdef Status mean_slopes(self, const Minibatch *rows) noexcept nogil:
        """work <- the half sums of the slopes on both sides of m."""
        cdef ptrdiff_t k
        cdef int side
        for k in range(rows.s):
            self.row.work[k] = 0.0
        for side in range(-1, 2, 2):
            for k in range(rows.s):
                self.row.trial[k] = self.row.m[k] + side * BESIDE * fmax(1.0, fabs(self.row.m[k]))
            if kernels.loss(
                &self.loss.c, rows.s, self.row.trial, rows.responses, self.loss.c.width,
                self.row.value, self.row.slope, NULL
            ) != 0:
                return CALLBACK_FAILED
            for k in range(rows.s):
                self.row.work[k] += 0.5 * self.row.slope[k]
        return OK

    cdef Status expand(
        self, const Minibatch *rows, double beta, double *c, bint halves=False
    ) noexcept nogil:
        """Second-order Taylor expansion of log t where m was taken (eq. 6).

        halves: with the half sum of the slopes on both sides, for an m that is a kink to rounding.
        """
        cdef ptrdiff_t k, j
        if halves and self.mean_slopes(rows) != OK:
            return CALLBACK_FAILED
        if kernels.loss(
            &self.loss.c, rows.s, self.row.m, rows.responses, self.loss.c.width, self.row.value,
            self.row.slope, NULL if self.slope_curvature else self.row.curvature
        ) != 0:
            return CALLBACK_FAILED
        for k in range(rows.s):
            if halves:
                self.row.slope[k] = self.row.work[k]
            if self.slope_curvature:
                self.row.curvature[k] = fabs(self.row.slope[k])
            if rows.sign != NULL:
                self.row.slope[k] *= rows.sign[k]
            if rows.weight != NULL:
                if rows.weight[k] == 0.0:
                    self.row.slope[k] = self.row.curvature[k] = 0.0
                else:
                    self.row.slope[k] *= rows.weight[k]
                    self.row.curvature[k] *= rows.weight[k]
        self.sums(rows, self.row.slope, self.row.curvature, self.column.b, self.column.tau)
        c[0] = -beta * self.total(rows, self.row.value)
        for j in range(self.d):
            self.column.b[j] *= -beta
            self.column.tau[j] *= beta
        return OK

    cdef Status tilted_at(
        self, const Minibatch *rows, double beta, const double *m, double *value
    ) noexcept nogil:
        """value = -beta sum_k w_k l_k - sum_j (theta_j - mu_j)^2 / (2 v_j), l at m."""
        cdef double total, away
        cdef ptrdiff_t j
        if kernels.loss(
            &self.loss.c, rows.s, m, rows.responses, self.loss.c.width, self.row.value, NULL, NULL
        ) != 0:
            return CALLBACK_FAILED
        total = -beta * self.total(rows, self.row.value)
        for j in range(self.d):
            away = self.column.theta[j] - self.column.mu[j]
            total -= 0.5 * away * away / self.column.v[j]
        value[0] = total
        return OK

    cdef void scaled_rows(self, const Minibatch *rows, double *scaled) noexcept nogil:
        """sign_k x_kj sqrt(v_j), (s, d)"""
        cdef ptrdiff_t k, j
        cdef double flip
        for k in range(rows.s):
            flip = rows.sign[k] if rows.sign != NULL else 1.0
            for j in range(self.d):
                scaled[k * self.d + j] = flip * rows.x[k * rows.ld + j] * sqrt(self.column.v[j])

    def fit_one(
        self, const double[:, ::1] X not None, const double[::1] mean, const double[::1] variance,
        const double[:, ::1] y=None, str name="X",
    ):
        """The raw fit of one factor, of the rows X (s, d): (precision, shift, log_scale), about 0.

        y: the responses, (s, width), or labels, (s, 1); without them X holds y X. None where the
        scheme fails, if only in one coordinate. name: of X, in errors.
        """
        cdef double c = 0.0
        cdef Minibatch rows
        cdef Status status
        if y is not None or self.loss.c.width > 0 or self.loss.shifted:
            self.loss.check_responses(y, X.shape[0])
        precision, shift = np.empty(self.d), np.empty(self.d)
        cdef double[::1] p = precision
        cdef double[::1] h = shift
        self.take_rows(
            &rows, X.shape[0], &X[0, 0], self.d, &y[0, 0] if y is not None else NULL, NULL, False
        )
        with nogil:
            status = self.checked_fit(&rows, &mean[0], &variance[0], &p[0], &h[0], &c)
        self.raise_for(status, 0, name)
        return None if status == NO_FIT else (precision, shift, c)

    def fit_into(self, X, mean, variance, y, precision, shift, str name="X"):
        """As fit_one, checked, into (d,) arrays: the log scale. Quick for a few rows.

        X (s, d) with s at most max_rows, mean and variance (d,), y (s,) labels or (s, width)
        responses or None for labels in X: arrays of float64, C-contiguous. FloatingPointError where
        the scheme fails.
        """
        cdef Views views
        cdef ptrdiff_t d = self.d, s
        cdef double c = 0.0
        cdef Minibatch rows
        cdef Status status = OK
        views.count = 0
        try:
            if not (
                take(X, ndarray, False, &views) and take(mean, ndarray, False, &views)
                and take(variance, ndarray, False, &views)
                and take(precision, ndarray, True, &views) and take(shift, ndarray, True, &views)
                and (y is None or take(y, ndarray, False, &views))
            ):
                raise TypeError(
                    "X, mean, variance, y, precision or shift is of another kind; allowed: "
                    "C-contiguous arrays of float64"
                )
            s = views.view[0].shape[0] if views.view[0].ndim == 2 else 0
            if not (
                0 < s <= self.max_rows and views.view[0].shape[1] == d
                and is_vector(&views, 1, d) and is_vector(&views, 2, d)
                and is_vector(&views, 3, d) and is_vector(&views, 4, d)
                and (is_shaped(&views, 5, s, self.loss.stride) if y is not None
                     else self.loss.c.width == 0 and not self.loss.shifted)
            ):
                raise ValueError(
                    f"the arrays have shapes {[np.shape(x) for x in (X, mean, variance, y)]} and "
                    f"{[np.shape(x) for x in (precision, shift)]}; allowed: X (s, {d}) of at most "
                    f"{self.max_rows} rows, y {(s, self.loss.stride)}, and ({d},)"
                )
            if not is_apart(&views, 3, 5):
                raise ValueError("precision or shift shares memory; allowed: arrays of their own")
            with nogil:
                self.take_rows(
                    &rows, s, numbers(&views, 0), d,
                    numbers(&views, 5) if views.count > 5 else NULL, NULL, False
                )
                status = self.checked_fit(
                    &rows, numbers(&views, 1), numbers(&views, 2), numbers(&views, 3),
                    numbers(&views, 4), &c
                )
        finally:
            release(&views)
        if status == OK:
            return c
        if not (np.isfinite(mean).all() and np.isfinite(variance).all() and np.min(variance) > 0.0):
            raise ValueError(
                "mean or variance is out of range; allowed: finite numbers, variances positive"
            )
        if self.loss.c.width == 0 and y is not None and not (
            np.abs(np.reshape(y, (s, -1))[:, 0]) == 1.0
        ).all():
            raise ValueError("y holds other numbers than -1 and +1; allowed: -1 and +1")
        self.raise_for(status, 0, name)
        raise FloatingPointError("the scheme found no fit of this factor")

    cdef Status checked_fit(
        self, const Minibatch *rows, const double *mean, const double *variance,
        double *precision, double *shift, double *log_scale
    ) noexcept nogil:
        """The raw fit about 0. NO_FIT also where an argument is not allowed."""
        cdef ptrdiff_t j, k
        cdef double c = 0.0
        cdef bint good = True
        cdef Status status
        for j in range(self.d):
            good = good and isfinite(mean[j]) and variance[j] > 0.0 and isfinite(variance[j])
            self.column.mu[j], self.column.v[j] = mean[j], variance[j]
        if rows.sign != NULL:
            for k in range(rows.s):
                good = good and fabs(rows.sign[k]) == 1.0
        if not good:
            return NO_FIT
        status = self.fit(rows, self.loss.c.beta * self.power, &c)
        if status != OK:
            return status
        for j in range(self.d):
            precision[j] = self.column.tau[j]
            shift[j] = self.column.b[j] + self.column.tau[j] * self.column.mu[j]
            c -= self.column.mu[j] * (
                self.column.b[j] + 0.5 * self.column.tau[j] * self.column.mu[j]
            )
            good = good and isfinite(precision[j]) and isfinite(shift[j])
        log_scale[0] = c
        return OK if good and isfinite(c) else NO_FIT

    cdef int raise_for(self, Status status, ptrdiff_t first_row, str name) except -1:
        if status == CALLBACK_FAILED:
            self.loss.reraise()
        if status == NOT_FINITE:
            raise ValueError(
                f"{name} gives a margin that is not finite in row {first_row + self.bad_row}: it "
                "holds NaN or infinity, or numbers too large; allowed: finite numbers"
            )
        return 0

    # -- the sweep --

    def begin_sweep(self, int sweep):
        """To be called before each sweep with its number, from 0: sampling begins from it."""
        if self.moments is not None:
            self.moments.begin_sweep(sweep)

    cdef bint ruled(self, ptrdiff_t j, double copies, double *t, double *h) noexcept nogil:
        """Precision and shift of so many copies of the fit, by the site rule; True if clipped."""
        cdef bint clipped = False
        t[0] = copies * self.column.tau[j]
        if self.site_rule == NONNEGATIVE and t[0] < 0.0:
            t[0], clipped = 0.0, True
        elif self.site_rule == FLOOR and t[0] < FLOOR_SHARE / self.column.v[j]:
            t[0], clipped = FLOOR_SHARE / self.column.v[j], True
        h[0] = copies * self.column.b[j] + t[0] * self.column.mu[j]
        return clipped

    cdef Status converge_copies(
        self, const Minibatch *rows, const double *tau, const double *nu, const double *old_tau,
        const double *old_nu, double *c
    ) noexcept nogil:
        """Let the copies of a row, which all change at once, converge with all other sites fixed.
        Many would overshoot otherwise. From the first fit, to the last one and its cavity."""
        cdef double share = self.power / rows.copies, step = 0.5, t = 0.0, h = 0.0, rest, size
        cdef double move, spread, post
        cdef double largest, away, change, along
        cdef double *site_tau = self.column.site_tau
        cdef double *site_nu = self.column.site_nu
        cdef double *away_tau = self.column.away_tau
        cdef double *away_nu = self.column.away_nu
        cdef ptrdiff_t j
        cdef int iteration
        cdef Status status
        for j in range(self.d):
            if not tau[j] - old_tau[j] > 0.0:
                return OK
            site_tau[j], site_nu[j] = old_tau[j], old_nu[j]
        for iteration in range(MAX_INNER):
            # a step towards the sites found from here, in the units of the posterior
            size = largest = along = move = spread = 0.0
            for j in range(self.d):
                self.ruled(j, rows.copies, &t, &h)
                rest = tau[j] - old_tau[j] + site_tau[j]
                away = (t - site_tau[j]) / rest
                change = away - away_tau[j]
                along += away_tau[j] * change
                size += change * change
                largest, away_tau[j] = fmax(largest, fabs(away)), away
                post = nu[j] - old_nu[j]
                move += rows.x[j] * (
                    (post + h) / (tau[j] - old_tau[j] + t) - (post + site_nu[j]) / rest
                )
                spread += rows.x[j] * rows.x[j] / rest
                away = (h - site_nu[j] - (t - site_tau[j]) * self.column.mu[j]) / sqrt(rest)
                change = away - away_nu[j]
                along += away_nu[j] * change
                size += change * change
                largest, away_nu[j] = fmax(largest, fabs(away)), away
            # moments are good to some 1e-14, which so many copies add up
            if largest <= fmax(SETTLED, 1e-14 * rows.copies):
                return OK
            if iteration > 0:
                # Aitken's relaxation: where the last step went too far the next is shorter
                if size > 0.0:
                    step *= -along / size
                step = fmin(1.0, fmax(0.01, fabs(step)))
            # far from the mode a factor has a slope and no curvature: its copies go too far
            if move != 0.0:
                step = fmin(step, MOST_MOVE * (1.0 + sqrt(spread)) / fabs(move))
            for j in range(self.d):
                self.ruled(j, rows.copies, &t, &h)
                site_tau[j] += step * (t - site_tau[j])
                site_nu[j] += step * (h - site_nu[j])
            for j in range(self.d):
                rest = tau[j] - old_tau[j] + (1.0 - share) * site_tau[j]
                if not rest > 0.0:
                    return OK
                self.column.v[j] = 1.0 / rest
                self.column.mu[j] = (nu[j] - old_nu[j] + (1.0 - share) * site_nu[j]) / rest
            status = self.fit(rows, self.loss.c.beta * self.power, c)
            if status != OK:
                return status
        # not converged: the site so far, from which the next visit continues
        self.n_refused += 1
        for j in range(self.d):
            self.column.tau[j] = site_tau[j] / rows.copies
            self.column.b[j] = (site_nu[j] - site_tau[j] * self.column.mu[j]) / rows.copies
        return OK

    cdef Status update(
        self, const Minibatch *rows, const double *tau, const double *nu, double *new_tau,
        double *new_nu, double *site_tau, double *site_nu, double *site_scale
    ) noexcept nogil:
        """One factor: cavity, fit, site rule, damping. Reads the posterior (tau, nu), adds the
        site's change to (new_tau, new_nu), the same arrays where the order is not parallel.
        site_tau NULL: no site is stored, the cavity is the posterior (ADF)."""
        cdef double c = 0.0, origin
        cdef double share = self.power / rows.copies
        cdef bint proper
        cdef epf_move how
        cdef ptrdiff_t undetermined = 0, n_kept = 0, n_clipped = 0
        cdef Status status
        if rows.s * self.d > LARGE and self.loss.heed() != OK:
            return CALLBACK_FAILED
        # where a cavity is improper the posterior stands in; the site is kept, below
        proper = kernels.cavity(
            self.d, share, tau, nu, site_tau, site_nu, self.column.mu, self.column.v
        ) == 0
        status = self.fit(rows, self.loss.c.beta * self.power, &c)
        if status == OK and rows.copies > 1.0 and proper:
            status = self.converge_copies(rows, tau, nu, site_tau, site_nu, &c)
        if status == OK:
            while undetermined < self.d and not (
                isfinite(self.column.tau[undetermined]) and isfinite(self.column.b[undetermined])
            ):
                undetermined += 1
        if status == NO_FIT or (undetermined == self.d > 0) or (status == OK and not isfinite(c)):
            self.n_failed += 1
            self.n_refused += 1
            return NO_FIT
        if status != OK:
            return status
        c *= rows.copies
        how.share, how.copies, how.damping = share, rows.copies, self.damping
        how.least, how.relative = -INFINITY, self.site_rule == FLOOR
        if self.site_rule == NONNEGATIVE:
            how.least = 0.0
        elif self.site_rule == FLOOR:
            how.least = FLOOR_SHARE
        # the site keeps its value at the cavity mean, whatever the rule did
        origin = kernels.move(
            &how, self.d, self.column.mu, self.column.v, self.column.b, self.column.tau, tau,
            new_tau, new_nu, site_tau, site_nu, &n_kept, &n_clipped
        )
        if site_scale != NULL:
            site_scale[0] += self.damping * (c + origin - site_scale[0])
        else:
            self.log_scale_total += self.damping * (c + origin)
        self.n_clipped += n_clipped
        self.n_refused += n_kept > 0
        return OK

    def sweep(
        self, X, const double[:, ::1] y not None, ptrdiff_t batch_size,
        const ptrdiff_t[::1] order, double[::1] tau, double[::1] nu, *,
        const double[::1] weight=None, double[:, ::1] site_tau=None, double[:, ::1] site_nu=None,
        double[::1] site_scale=None, double[::1] next_tau=None, double[::1] next_nu=None,
        double[:, ::1] trace=None, ptrdiff_t row_offset=0,
    ):
        """Update the factors numbered in order, each the rows [i, i + 1) * batch_size of X.

        X: a Design, or what makes one. y (n, width) holds the responses, (n, 1) their labels for a
        loss of the margin; weight (n,) their weights, None: all 1.
        tau, nu (d,) hold the posterior, in place; sites, where stored, (factors, d) and (factors,).
        next_tau, next_nu: parallel order, the posterior is read only, the changes are added here.
        trace (updates, d) takes the posterior mean after each update. row_offset is added to the
        number of a bad row. The counts and log_scale_total of the object are added to.
        """
        cdef Design design = X if isinstance(X, Design) else Design(X, self.max_rows)
        cdef ptrdiff_t n = design.n, d = self.d, u, f, first, s, j, ld = 0
        cdef const double *x = NULL
        cdef Minibatch rows
        cdef double *new_tau = &tau[0]
        cdef double *new_nu = &nu[0]
        cdef bint stored = site_tau is not None, traced = trace is not None
        cdef bint weighted = weight is not None
        cdef bint single = design.single_in_place and self.scheme.takes_floats
        cdef Status status = OK
        self.loss.check_responses(y, n)
        if next_tau is not None:
            new_tau, new_nu = &next_tau[0], &next_nu[0]
        first = 0
        with nogil:
            for u in range(order.shape[0]):
                f = order[u]
                first = f * batch_size
                s = min(batch_size, n - first)
                if not single:
                    x = design.rows(first, s, &ld)
                self.take_rows(
                    &rows, s, x, ld, &y[first, 0], &weight[first] if weighted else NULL, stored
                )
                if single:
                    rows.numbers, rows.single = design.single_rows(first, &rows.ld), True
                status = self.update(
                    &rows, &tau[0], &nu[0], new_tau, new_nu,
                    &site_tau[f, 0] if stored else NULL, &site_nu[f, 0] if stored else NULL,
                    &site_scale[f] if stored else NULL
                )
                if status == CALLBACK_FAILED or status == NOT_FINITE:
                    break
                self.n_visited += s
                if traced:
                    for j in range(d):
                        trace[u, j] = new_nu[j] / new_tau[j]
        self.raise_for(status, row_offset + first, "X")


# ---- the schemes; all O(s d) or dearer as said ----


cdef Scheme scheme_named(str name) except *:
    """The scheme of a name, see :class:`Scheme`."""
    cdef Scheme scheme
    scheme.scratch, scheme.takes_floats, scheme.one_row = OF_NONE, False, False
    if name == "laplace":
        scheme.fit, scheme.scratch = laplace, OF_HESSIAN
    elif name == "quick_laplace":
        scheme.fit, scheme.takes_floats = quick_laplace, True
    elif name == "quadrature":
        scheme.fit, scheme.scratch, scheme.takes_floats = quadrature, OF_PAIRS, True
    elif name == "variational":
        scheme.fit, scheme.scratch, scheme.takes_floats = variational, OF_PAIRS, True
    elif name == "variational_rule":
        scheme.fit, scheme.scratch = variational_rule, OF_POINTS
    elif name == "scalar":
        scheme.fit, scheme.one_row = scalar, True
    else:
        raise ValueError(
            f"scheme is {name!r}; allowed: laplace, quick_laplace, quadrature, variational, "
            "variational_rule, scalar"
        )
    return scheme


cdef Status quick_laplace(
    MinibatchSweep sweep, const Minibatch *rows, double beta, double *c
) noexcept nogil:
    """Expansion at the mean of the cavity."""
    cdef Status status = sweep.margins_at_mean(rows)
    return sweep.expand(rows, beta, c) if status == OK else status


cdef Status variational(
    MinibatchSweep sweep, const Minibatch *rows, double beta, double *c
) noexcept nogil:
    """Variational quadrature on the 2d + 1 rule: as many points as monomials, so the minimum of
    eq. 10 interpolates log f (guide). b = D / (2 step), tau = S / step^2."""
    cdef Status status = sweep.two_sided(rows, beta, c)
    if status == OK and sweep.newton and not interpolate(sweep, beta, c):
        return NO_FIT
    kernels.interpolation(
        sweep.d, beta, sweep.column.step, sweep.column.b, sweep.column.tau
    )
    return status


cdef bint interpolate(MinibatchSweep sweep, double beta, double *c) noexcept nogil:
    """D, S and c of the fit that Newton finds, from those of log f. False without one."""
    cdef double *log_f = &sweep.newton_work[0]
    cdef double *D = sweep.column.b
    cdef double *S = sweep.column.tau
    cdef ptrdiff_t j, d = sweep.d
    log_f[0] = 0.0                                  # relative to the center
    for j in range(d):
        log_f[1 + 2 * j] = 0.5 * beta * (D[j] - S[j])
        log_f[2 + 2 * j] = -0.5 * beta * (D[j] + S[j])
    if not newton_sigma(d, log_f, log_f + 2 * d + 1):
        return False
    c[0] += log_f[0]
    for j in range(d):
        D[j] = (log_f[1 + 2 * j] - log_f[2 + 2 * j]) / beta
        S[j] = (2.0 * log_f[0] - log_f[1 + 2 * j] - log_f[2 + 2 * j]) / beta
    return True


cdef Status quadrature(
    MinibatchSweep sweep, const Minibatch *rows, double beta, double *c
) noexcept nogil:
    """Gauss quadrature, eq. 7: moments under weights w_j f_j, divided by the cavity.

    With log f relative to the center, log f(+-) = (+-D - S) / 2; the largest of all is taken
    out before exp. b and tau of a coordinate whose variance vanishes are left NaN."""
    cdef Status status = sweep.two_sided(rows, beta, c)
    cdef double side = 0.5 / (sweep.gamma * sweep.gamma)
    cdef double middle = 1.0 - sweep.d / (sweep.gamma * sweep.gamma)
    cdef double top = 0.0, mass, up, down, shift, rest, second, variance
    cdef ptrdiff_t j, i
    if status != OK:
        return status
    for j in range(sweep.d):
        up = 0.5 * beta * (sweep.column.b[j] - sweep.column.tau[j])
        down = -0.5 * beta * (sweep.column.b[j] + sweep.column.tau[j])
        sweep.column.up[j], sweep.column.down[j] = up, down
        if not (isfinite(up) and isfinite(down)):
            return NO_FIT
        top = max(top, max(up, down))
    mass = middle * exp(-top)
    for j in range(sweep.d):
        sweep.column.up[j] = exp(sweep.column.up[j] - top)
        sweep.column.down[j] = exp(sweep.column.down[j] - top)
        mass += side * (sweep.column.up[j] + sweep.column.down[j])
    if not mass > 0.0:
        return NO_FIT
    c[0] += top + log(mass)
    for j in range(sweep.d):
        up = side * sweep.column.up[j] / mass
        down = side * sweep.column.down[j] / mass
        shift = up - down                           # mean - mu, in steps
        rest = 1.0 - (up + down)
        if rest < 0.5:                              # at most one j: no cancellation either
            rest = middle * exp(-top)
            for i in range(sweep.d):
                if i != j:
                    rest += side * (sweep.column.up[i] + sweep.column.down[i])
            rest /= mass
        second = (up + down) * rest + 4.0 * up * down       # variance, in steps^2
        variance = second * sweep.column.step[j] * sweep.column.step[j]
        sweep.column.tau[j] = 1.0 / variance - 1.0 / sweep.column.v[j]
        sweep.column.b[j] = shift * sweep.column.step[j] / variance
        if second > 0.0 and isfinite(sweep.column.tau[j]) and isfinite(sweep.column.b[j]):
            c[0] += 0.5 * (log(sweep.column.v[j] / variance) - shift * shift / second)
        else:
            sweep.column.tau[j] = sweep.column.b[j] = NAN
    return OK


cdef Status laplace(
    MinibatchSweep sweep, const Minibatch *rows, double beta, double *c
) noexcept nogil:
    """Expansion at the mode of cavity x factor, found by Newton with the full Hessian
    Z'WZ + diag(1/v), Z = X, or y X, and step halving.

    Where s < d the Newton system is solved in the space of the rows (Woodbury): O(s^3 + s d)
    per iteration after O(s^2 d) once; else O(s d^2 + d^3). A negative curvature counts as 0 in
    the Newton matrix only.
    """
    cdef ptrdiff_t s = rows.s, d = sweep.d, k, j
    cdef double *mu = sweep.column.mu
    cdef double *theta = sweep.column.theta
    cdef double *gradient = sweep.column.up
    cdef double *direction = sweep.column.down
    cdef double *root = sweep.row.curvature             # of beta times the curvature
    cdef double objective = 0.0, share, size, change
    cdef int _iteration
    cdef Status status = sweep.margins_at_mean(rows)
    if status != OK:
        return status
    if d == 0:                                          # rows of zeros: their factor is a number
        return sweep.expand(rows, beta, c)
    memcpy(theta, mu, d * sizeof(double))
    if s < d:
        sweep.gram(rows, &sweep.hessian[0], &sweep.hessian[0] + 2 * s * s)
    status = sweep.tilted_at(rows, beta, sweep.row.m, &objective)
    if status != OK:
        return status
    if not isfinite(objective):
        return NO_FIT
    for _iteration in range(sweep.max_iterations):
        # b and tau are free until the end: minus the slope and the curvature of log t
        status = sweep.expand(rows, beta, c)
        if status != OK:
            return status
        for j in range(d):
            gradient[j] = sweep.column.b[j] - (theta[j] - mu[j]) / sweep.column.v[j]
        for k in range(s):
            root[k] = sqrt(beta * max(root[k], 0.0))
        if s < d:
            status = newton_by_rows(sweep, rows, root, gradient, direction)
        else:
            status = newton_by_columns(sweep, rows, root, gradient, direction)
        if status != OK:
            return status
        status = climb(sweep, rows, beta, direction, &objective, &share)
        if status != OK:
            return status
        if share == 0.0:
            break                                   # at a kink, or at the limit of the arithmetic
        size = change = 0.0
        for j in range(d):
            size += theta[j] * theta[j]
            change += share * direction[j] * share * direction[j]
        if not isfinite(change):
            return NO_FIT
        # steps that are halved do not end at a kink yet
        if change <= sweep.tolerance * sweep.tolerance * size and (
            share == 1.0 or not sweep.half_sums
        ):
            break

    sweep.arguments(rows, theta, sweep.row.m)
    status = sweep.expand(rows, beta, c, sweep.half_sums)
    for j in range(d):                                  # from about theta to about mu
        change = theta[j] - mu[j]
        c[0] -= change * (sweep.column.b[j] + 0.5 * sweep.column.tau[j] * change)
        sweep.column.b[j] += sweep.column.tau[j] * change
    return status


cdef Status newton_by_rows(
    MinibatchSweep sweep, const Minibatch *rows, const double *root, const double *gradient,
    double *direction
) noexcept nogil:
    """direction = (I/v + Z'WZ)^-1 g = V g - V Z' R (I + R G R)^-1 R Z V g,  R = sqrt W, G = Z V Z'
    """
    cdef ptrdiff_t s = rows.s, k, j, i
    cdef blas_int n = <blas_int> s, one = 1, info = 0
    cdef const double *gram = &sweep.hessian[0]
    cdef const double *v = sweep.column.v
    cdef double *h = &sweep.hessian[0] + s * s
    cdef double *work = sweep.row.work
    for j in range(sweep.d):
        direction[j] = v[j] * gradient[j]
    sweep.margins(rows, direction, work)
    for k in range(s):
        work[k] *= root[k]
        for i in range(k, s):
            h[k * s + i] = root[k] * gram[k * s + i] * root[i]
        h[k * s + k] += 1.0
    dpotrf(b"L", &n, h, &n, &info)
    if info != 0:
        return NO_FIT
    dpotrs(b"L", &n, &one, h, &n, work, &n, &info)
    for k in range(s):
        work[k] *= root[k]
        if rows.sign != NULL:
            work[k] *= rows.sign[k]
    sweep.sums(rows, work, work, sweep.column.step, direction)
    for j in range(sweep.d):
        direction[j] = v[j] * (gradient[j] - sweep.column.step[j])
    return OK


cdef Status newton_by_columns(
    MinibatchSweep sweep, const Minibatch *rows, const double *root, const double *gradient,
    double *direction
) noexcept nogil:
    """direction = (I/v + Z'WZ)^-1 g"""
    cdef ptrdiff_t d = sweep.d, j
    cdef blas_int n = <blas_int> d, one = 1, info = 0
    cdef double *h = &sweep.hessian[0]
    sweep.weighted_gram(rows, root, h, h + d * d)
    for j in range(d):
        h[j * d + j] += 1.0 / sweep.column.v[j]
        direction[j] = gradient[j]
    dpotrf(b"L", &n, h, &n, &info)
    if info != 0:
        return NO_FIT
    dpotrs(b"L", &n, &one, h, &n, direction, &n, &info)
    return OK


cdef Status climb(
    MinibatchSweep sweep, const Minibatch *rows, double beta, const double *direction,
    double *objective, double *share
) noexcept nogil:
    """Halve the step until the objective does not fall. share: of it; 0: none is that short.

    theta, m and the objective are those after the step; m is linear in it.
    """
    cdef double *theta = sweep.column.theta
    cdef double *along = sweep.row.work
    cdef double new = 0.0
    cdef ptrdiff_t k, j
    cdef int _halving
    cdef Status status
    sweep.margins(rows, direction, along)
    share[0] = 1.0
    for _halving in range(MAX_HALVINGS):
        for j in range(sweep.d):
            sweep.column.step[j] = theta[j]
            theta[j] += share[0] * direction[j]
        for k in range(rows.s):
            sweep.row.trial[k] = sweep.row.m[k] + share[0] * along[k]
        status = sweep.tilted_at(rows, beta, sweep.row.trial, &new)
        if status != OK:
            return status
        # near the mode rounding must not look like a fall
        if new > objective[0] or (
            not sweep.half_sums and new >= objective[0] - 1e-15 * fabs(objective[0])
        ):
            memcpy(sweep.row.m, sweep.row.trial, rows.s * sizeof(double))
            objective[0] = new
            return OK
        memcpy(theta, sweep.column.step, sweep.d * sizeof(double))
        share[0] *= 0.5
    share[0] = 0.0
    return OK


cdef Status variational_rule(
    MinibatchSweep sweep, const Minibatch *rows, double beta, double *c
) noexcept nogil:
    """Variational quadrature on any rule, by Newton-Cholesky: O(s d z) for the factor at the
    points, O(z p^2) per Newton step, p = 2d + 1."""
    cdef ptrdiff_t s = rows.s, d = sweep.d, z = sweep.points.shape[0], w = sweep.loss.c.width
    cdef ptrdiff_t first = 0, count, k, j, i
    cdef double *scaled = &sweep.scratch[0]
    cdef double *at_points = scaled + s * d
    cdef double *values = at_points + s * POINT_BLOCK
    cdef double *responses = NULL
    cdef blas_int width = <blas_int> d, height = <blas_int> s, block
    cdef double unit = 1.0, root2 = sqrt(2.0), total
    cdef int trouble
    cdef Status status = sweep.margins_at_mean(rows)
    if status != OK:
        return status
    sweep.scaled_rows(rows, scaled)
    if w > 0:
        responses = values + s * POINT_BLOCK
        for i in range(min(z, <ptrdiff_t> POINT_BLOCK)):
            memcpy(responses + i * s * w, rows.responses, s * w * sizeof(double))
    while first < z:
        if sweep.loss.heed() != OK:
            return CALLBACK_FAILED
        count = min(z - first, <ptrdiff_t> POINT_BLOCK)
        block = <blas_int> count
        for i in range(count):
            for k in range(s):
                at_points[i * s + k] = sweep.row.m[k]
        dgemm(
            b"T", b"N", &height, &block, &width, &unit, scaled, &width,
            &sweep.points[first, 0], &width, &unit, at_points, &height
        )
        for i in range(s * count):
            if not isfinite(at_points[i]):
                return NO_FIT
        if kernels.loss(
            &sweep.loss.c, s * count, at_points, responses, w, values, NULL, NULL
        ) != 0:
            return CALLBACK_FAILED
        for i in range(count):
            total = sweep.total(rows, values + i * s)
            sweep.point_values[first + i] = -beta * total
            if not isfinite(total):
                return NO_FIT
        first += count
    trouble = newton_cholesky(
        z, sweep.basis.shape[1], &sweep.basis[0, 0], &sweep.weights[0], &sweep.point_values[0],
        False, &sweep.alpha[0], &sweep.newton_work[0], sweep.loss
    )
    if trouble != 0:
        return CALLBACK_FAILED if trouble == 2 else NO_FIT
    # alpha is in t = (theta - mu) / sqrt v and (t^2 - 1) / sqrt 2
    c[0] = sweep.alpha[0]
    for j in range(d):
        sweep.column.b[j] = sweep.alpha[1 + j] / sqrt(sweep.column.v[j])
        sweep.column.tau[j] = -root2 * sweep.alpha[1 + d + j] / sweep.column.v[j]
        c[0] -= sweep.alpha[1 + d + j] / root2
    return OK


cdef Status scalar(
    MinibatchSweep sweep, const Minibatch *rows, double beta, double *c
) noexcept nogil:
    """One row: from the triple at the cavity of h = x.theta, the moments of each theta_j.
    Of t^power; of a row of weight below 1, or without a site, of t^(power weight).

    mean_j = mu_j + v_j x_j dlZ, variance_j = v_j (1 + v_j x_j^2 d2lZ). c makes the integral of
    the fit over the cavity Z.
    """
    cdef const double *x = rows.x
    cdef double power = sweep.power, spread = 0.0, h, rest, lZ = 0.0, dlZ = 0.0, d2lZ = 0.0
    cdef ptrdiff_t j
    cdef Status status = sweep.margins_at_mean(rows)
    if status != OK:
        return status
    h = sweep.row.m[0]
    if rows.weight != NULL:
        power *= rows.weight[0] / rows.copies
    if power == 0.0:                    # t^0 = 1
        for j in range(sweep.d):
            sweep.column.tau[j] = sweep.column.b[j] = 0.0
        c[0] = 0.0
        return OK
    if rows.shift != NULL:              # from the margin back to x.theta
        h -= rows.shift[0]
    if rows.sign != NULL:
        h *= rows.sign[0]
    for j in range(sweep.d):
        spread += x[j] * x[j] * sweep.column.v[j]
    if spread == 0.0:                   # a row of zeros: its factor is the number t(0)
        spread = 1e-300
    status = sweep.moments.at(rows.given, h, spread, power, &lZ, &dlZ, &d2lZ)
    if status == CALLBACK_FAILED:
        return CALLBACK_FAILED
    if status != OK or not isfinite(spread):
        return NO_FIT
    c[0] = lZ
    for j in range(sweep.d):
        rest = 1.0 + sweep.column.v[j] * x[j] * x[j] * d2lZ
        if not rest > 0.0:
            return NO_FIT
        sweep.column.tau[j] = -x[j] * x[j] * d2lZ / rest
        sweep.column.b[j] = x[j] * dlZ / rest
        c[0] -= 0.5 * (
            log(rest) + sweep.column.b[j] * sweep.column.b[j] * sweep.column.v[j] * rest
        )
    return OK
