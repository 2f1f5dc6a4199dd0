"""Probabilistic backpropagation: rows of a network of ReLU layers (simd/network.h).

Naturals of a belief, P = 2 W + 4 numbers: precisions of the W weights, their shifts, then
(shape - 1, rate) of the noise precision gamma and of the prior precision lambda. The weights of a
layer are an array (inputs + 1, units) in C order, the bias last. A base holds 2 W numbers more: the
sites (shape - 1, rate) of the prior factors N(w; 0, 1 / lambda) on lambda.
"""

import numpy as np

from epfast._core.lapack cimport blas_int, dgemm
from epfast._core.rows cimport in_range, long_enough
from epfast._core.vector cimport (
    EPF_NETWORK_BLOCK, EPF_NETWORK_LAYERS, EPF_NETWORK_NONE, EPF_NETWORK_OWN, EPF_NETWORK_PAD,
    EPF_NETWORK_SHARED, epf_network, kernels,
)

#: hidden layers and the output
MOST_LAYERS = EPF_NETWORK_LAYERS


cdef ptrdiff_t padded(ptrdiff_t n) noexcept:
    return (n + EPF_NETWORK_PAD - 1) // EPF_NETWORK_PAD * EPF_NETWORK_PAD


cdef void product(
    int transposed, ptrdiff_t m, ptrdiff_t n, ptrdiff_t k, double alpha, const double *A,
    ptrdiff_t lda, const double *B, ptrdiff_t stride, double beta, double *C
) noexcept nogil:
    """epf_product, by BLAS."""
    cdef blas_int rows = <blas_int> m, columns = <blas_int> n, inner = <blas_int> k
    cdef blas_int ld = <blas_int> lda, apart = <blas_int> stride
    dgemm(
        b"T" if transposed else b"N", b"N", &rows, &columns, &inner, &alpha, <double *> A, &ld,
        <double *> B, &apart, &beta, C, &apart
    )


cdef class NetworkRows:
    """The rows of a fit, what is known of the weights in between, and scratch.

    X (n, d), y (n,), labels -1 and 1 with probit; hidden: units of each hidden layer.
    """

    cdef epf_network net
    cdef readonly ptrdiff_t n_rows, n_naturals, n_weights
    cdef const double[:, ::1] X
    cdef const double[::1] y, sizes
    cdef double[::1] belief
    cdef const double[::1] base
    cdef double[:, ::1] sites
    cdef double[:, ::1] kept                # moments, naturals, sites and sums of weights
    cdef double[:, ::1] alive               # of each layer, and what else goes with
    cdef double[:, :, ::1] units            # its inputs and units
    cdef double[:, ::1] products, factors
    cdef bint derived                       # whether the one site is what q has beyond the base

    def __init__(self, X, y, hidden, bint probit):
        cdef ptrdiff_t inputs, units, length, at = 0, natural = 0, widest = 0
        cdef int k
        self.X, self.y, self.belief = X, y, None
        self.n_rows = self.X.shape[0]
        long_enough("y", self.y.shape[0], self.n_rows)
        if not 0 < len(hidden) < EPF_NETWORK_LAYERS:
            raise ValueError(f"hidden has {len(hidden)} layers; needed: 1 to {MOST_LAYERS - 1}")
        if self.X.shape[1] < 1 or min(hidden) < 1:
            raise ValueError(f"X has {self.X.shape[1]} columns, hidden is {hidden}; needed: >= 1")
        self.net.width = self.X.shape[1]
        self.net.probit = probit
        self.net.layers = <int> (len(hidden) + 1)
        inputs = self.net.width + 1
        for k in range(self.net.layers):
            units = hidden[k] if k < len(hidden) else 1
            last = k == self.net.layers - 1
            self.net.layer[k].inputs, self.net.layer[k].units = inputs, units
            self.net.layer[k].ld = padded(units)
            self.net.layer[k].at, self.net.layer[k].natural = at, natural
            at += padded(inputs) if last else inputs * padded(units)
            natural += inputs * units
            widest = max(widest, padded(inputs), padded(units))
            inputs = units + 1
        self.n_weights = self.net.weights = natural
        self.n_naturals = self.net.naturals = 2 * natural + 4
        self.net.padded = at
        length = widest + EPF_NETWORK_PAD
        self.kept = np.zeros((10, at))
        self.alive = np.zeros((self.net.layers, length))
        self.units = np.zeros((9 * self.net.layers, EPF_NETWORK_BLOCK, length))
        self.products = np.zeros((3 * EPF_NETWORK_BLOCK, length))
        self.factors = np.zeros((length, 3 * EPF_NETWORK_BLOCK))
        self.net.M, self.net.V = &self.kept[0, 0], &self.kept[1, 0]
        self.net.tau, self.net.nu = &self.kept[2, 0], &self.kept[3, 0]
        self.net.base_tau = &self.kept[4, 0]
        self.net.site_tau, self.net.site_nu = &self.kept[5, 0], &self.kept[6, 0]
        self.net.sum_tau, self.net.sum_nu = &self.kept[7, 0], &self.kept[8, 0]
        self.net.square, self.net.product, self.net.stride = &self.kept[9, 0], product, length
        self.net.products, self.net.factors = &self.products[0, 0], &self.factors[0, 0]
        for k in range(self.net.layers):
            self.net.layer[k].alive = &self.alive[k, 0]
            self.net.layer[k].z = &self.units[9 * k, 0, 0]
            self.net.layer[k].s = &self.units[9 * k + 1, 0, 0]
            self.net.layer[k].second = &self.units[9 * k + 2, 0, 0]
            self.net.layer[k].mean_by_a = &self.units[9 * k + 3, 0, 0]
            self.net.layer[k].mean_by_b = &self.units[9 * k + 4, 0, 0]
            self.net.layer[k].variance_by_a = &self.units[9 * k + 5, 0, 0]
            self.net.layer[k].variance_by_b = &self.units[9 * k + 6, 0, 0]
            self.net.layer[k].g = &self.units[9 * k + 7, 0, 0]
            self.net.layer[k].k = &self.units[9 * k + 8, 0, 0]
        if self.n_rows:
            self.net.X, self.net.y = &self.X[0, 0], &self.y[0]

    cdef void scatter(self, const double *natural, double *to, double rest) noexcept nogil:
        """Numbers of all weights to their places, and to padding the rest."""
        cdef ptrdiff_t i, j, lines, length, ld
        cdef int k
        for i in range(self.net.padded):
            to[i] = rest
        for k in range(self.net.layers):
            self.shape_of(k, &lines, &length, &ld)
            for j in range(lines):
                for i in range(length):
                    to[self.net.layer[k].at + j * ld + i] = natural[
                        self.net.layer[k].natural + j * length + i
                    ]

    cdef void gather(self, const double *place, double *to) noexcept nogil:
        """The other way round."""
        cdef ptrdiff_t i, j, lines, length, ld
        cdef int k
        for k in range(self.net.layers):
            self.shape_of(k, &lines, &length, &ld)
            for j in range(lines):
                for i in range(length):
                    to[self.net.layer[k].natural + j * length + i] = place[
                        self.net.layer[k].at + j * ld + i
                    ]

    cdef void shape_of(
        self, int k, ptrdiff_t *lines, ptrdiff_t *length, ptrdiff_t *ld
    ) noexcept nogil:
        """Weights of a layer as lines; those of the last are one."""
        cdef bint last = k == self.net.layers - 1
        lines[0] = 1 if last else self.net.layer[k].inputs
        length[0] = self.net.layer[k].inputs if last else self.net.layer[k].units
        ld[0] = 0 if last else self.net.layer[k].ld

    cdef void to_moments(self, const double[::1] belief) noexcept nogil:
        """(M, V) of a belief."""
        cdef ptrdiff_t i
        self.scatter(&belief[0], self.net.V, 1.0)
        self.scatter(&belief[self.n_weights], self.net.M, 0.0)
        for i in range(self.net.padded):
            self.net.V[i] = 1.0 / self.net.V[i]
            self.net.M[i] *= self.net.V[i]

    def begin(
        self, double[::1] belief not None, const double[::1] base not None, double[:, ::1] sites,
        const double[::1] sizes, double damping, bint alone
    ):
        """Take in a state; ``sites`` and ``belief`` change in place, the latter in ``end``.

        sites: None, (K, P) with sizes (K,), or (n, P) without. alone: each batch is one row.
        """
        cdef ptrdiff_t j, W = self.n_weights
        cdef int k
        long_enough("belief", belief.shape[0], self.n_naturals)
        long_enough("base", base.shape[0], self.n_naturals + 2 * W)
        self.belief, self.base, self.sizes = belief, base, sizes
        self.sites, self.net.sites = sites, NULL
        if sites is not None:
            self.net.sites = &self.sites[0, 0]
        self.derived = False
        if sites is None:
            self.net.store, self.net.pull = EPF_NETWORK_NONE, 0.0
        else:
            if sites.shape[1] != self.n_naturals:
                raise ValueError(f"sites have {sites.shape[1]} numbers; needed: {self.n_naturals}")
            self.net.pull = 0.0
            if sizes is None:
                long_enough("sites", sites.shape[0], self.n_rows)
                self.net.store = EPF_NETWORK_OWN
            else:
                long_enough("sizes", sizes.shape[0], sites.shape[0])
                self.net.sizes = &self.sizes[0]
                self.derived = sites.shape[0] == 1 and alone and damping == 1.0
                self.net.store = EPF_NETWORK_NONE if self.derived else EPF_NETWORK_SHARED
                if self.derived:
                    self.net.pull = 1.0 / sizes[0]
        self.net.damping, self.net.running = damping, 0
        self.net.log_z, self.net.n_refused, self.net.n_failed = 0.0, 0, 0
        self.net.n_weights = 0
        for k in range(self.net.layers):
            for j in range(self.net.layer[k].ld):
                self.net.layer[k].alive[j] = 0.0
        for j in range(2):
            self.net.noise[j], self.net.base_noise[j] = belief[2 * W + j], base[2 * W + j]
        with nogil:
            self.scatter(&base[0], self.net.base_tau, 1.0)
            if self.net.store == EPF_NETWORK_NONE:
                self.to_moments(belief)
            else:
                self.scatter(&belief[0], self.net.tau, 1.0)
                self.scatter(&belief[W], self.net.nu, 0.0)
                for j in range(self.net.padded):
                    self.net.M[j], self.net.V[j] = 0.0, 1.0
                    self.net.site_tau[j] = self.net.site_nu[j] = 0.0

    cdef int check_begun(self) except -1:
        """Raise ValueError where there is no state."""
        if self.belief is None:
            raise ValueError("there is no state; needed: begin first")

    def visit(
        self, const ptrdiff_t[::1] rows not None, const ptrdiff_t[::1] group,
        const unsigned char[::1] last
    ):
        """Fit some rows, in their order; with group and last where sites are shared."""
        self.check_begun()
        if rows.shape[0] == 0:
            return
        in_range("rows", rows, self.n_rows)
        if self.net.store != EPF_NETWORK_SHARED:
            with nogil:
                kernels.network_rows(&self.net, rows.shape[0], &rows[0], NULL, NULL)
            return
        if group is None or last is None:
            raise ValueError("sites are shared; needed: group and last")
        long_enough("group", min(group.shape[0], last.shape[0]), rows.shape[0])
        in_range("group", group, self.sites.shape[0])
        with nogil:
            kernels.network_rows(&self.net, rows.shape[0], &rows[0], &group[0], &last[0])

    def end(self):
        """Write the belief. Returns sum of log Z, rows refused in part, and as a whole."""
        cdef ptrdiff_t j, W = self.n_weights
        cdef double share
        self.check_begun()
        with nogil:
            if self.net.store == EPF_NETWORK_NONE:
                self.gather(self.net.V, &self.belief[0])
                self.gather(self.net.M, &self.belief[W])
                for j in range(W):
                    self.belief[j] = 1.0 / self.belief[j]
                    self.belief[W + j] *= self.belief[j]
            else:
                self.gather(self.net.tau, &self.belief[0])
                self.gather(self.net.nu, &self.belief[W])
            for j in range(2):
                self.belief[2 * W + j] = self.net.noise[j]
            if self.derived:
                share = self.net.pull
                for j in range(self.n_naturals):
                    self.sites[0, j] = share * (self.belief[j] - self.base[j])
        return self.net.log_z, self.net.n_refused, self.net.n_failed

    def refine(self, double[::1] belief not None, double[::1] base not None):
        """Fit the factors of the prior again, in place: their sites on weights and on lambda."""
        long_enough("belief", belief.shape[0], self.n_naturals)
        long_enough("base", base.shape[0], self.n_naturals + 2 * self.n_weights)
        with nogil:
            kernels.network_refine(self.n_weights, &belief[0], &base[0])

    def predict(self, const double[::1] belief not None, const double[:, ::1] X not None):
        """Mean and variance of the output, (m,) each, for rows X; not between begin and end."""
        cdef ptrdiff_t m = X.shape[0]
        cdef double[::1] mean = np.empty(m), variance = np.empty(m)
        long_enough("belief", belief.shape[0], self.n_naturals)
        if X.shape[1] != self.net.width:
            raise ValueError(f"X has {X.shape[1]} columns; needed: {self.net.width}")
        if m:
            with nogil:
                self.to_moments(belief)
                kernels.network_predict(&self.net, m, &X[0, 0], &mean[0], &variance[0])
        return np.asarray(mean), np.asarray(variance)

    @property
    def n_refused_weights(self):
        """Weights that kept their site, summed over the rows since ``begin``."""
        return self.net.n_weights

    @property
    def n_dead(self):
        """Hidden units that no row since ``begin`` was within 37 standard deviations of."""
        return sum(
            self.net.layer[k].alive[j] == 0.0
            for k in range(self.net.layers - 1)
            for j in range(self.net.layer[k].units)
        )


def relu_moments(const double[::1] a not None, const double[::1] b not None):
    """Of max(0, N(a, b)), (n,) each: mean, variance, and their slopes: mean by a, mean by b,
    variance by a, variance by b; (6, n)."""
    cdef ptrdiff_t n = a.shape[0]
    cdef double[:, ::1] out = np.empty((6, n))
    long_enough("b", b.shape[0], n)
    if n:
        with nogil:
            kernels.relu_moments(n, &a[0], &b[0], &out[0, 0])
    return np.asarray(out)
