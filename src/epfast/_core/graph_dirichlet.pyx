"""Factors that choose a category by probabilities p with a Dirichlet belief.

The probabilities are a row, t(p, z) = p_z, or that of several rows which a category x selects,
t(P, x, z) = P_xz. With cavities Dir(a_x) of the rows and messages m(x), m(z), at the power b,

    W_xz = m(x) m(z) E p_z^b,    E p_z^b = Gamma(a_xz + b) Gamma(a_x0) / Gamma(a_xz) Gamma(a_x0 + b)

which for b = 1 is a_xz / a_x0, are the weights of the tilted distribution, whose rows are mixtures
of Dir(a_x), where another row is selected, and Dir(a_x + b e_z). These keep E log p_j, or the means
and the sum of the variances.
"""

import numpy as np

from libc.math cimport INFINITY, exp, fmax, isfinite, log

from epfast._core.graph cimport DIRICHLET, FAILED, FITTED, IMPOSSIBLE, Answer, GraphBatch
from epfast._core.graph_factors cimport POSSIBLE, level
from epfast._core.special cimport (
    digamma_change, dirichlet_change, log_gamma, log_multivariate_beta,
)


cdef inline bint relative(
    ptrdiff_t K, const double *logs, double *found, double *top
) noexcept nogil:
    """Numbers by their logs, the largest of which is 1; False: none is possible."""
    cdef ptrdiff_t k
    top[0] = -INFINITY
    for k in range(K):
        top[0] = fmax(top[0], logs[k])
    for k in range(K):
        found[k] = exp(logs[k] - top[0])
    return top[0] > POSSIBLE


cdef class DirichletBatch(GraphBatch):
    """Factors P_xz: the neighbours are rows of P, then x if there are several, then z.

    z: (n,), where z is observed, so that it is no neighbour; None: it is one.
    """

    cdef ptrdiff_t rows, K
    cdef const ptrdiff_t[::1] z
    cdef bint by_moments
    cdef double[::1] alpha, of_x, of_z, share, rise, d, slope, work
    cdef double[:, ::1] ratio, W        # E p_z^b of each row, and the weights

    def __init__(self, starts, at, kind, size, z, bint by_moments, bint tied):
        GraphBatch.__init__(self, starts, at, kind, size, tied)
        cdef ptrdiff_t i, e, n = self.n, edges = self.starts[1] if n else 0
        cdef bint known = z is not None
        self.rows = 0
        while self.rows < edges and self.kind[self.rows] == DIRICHLET:
            self.rows += 1
        self.K = self.size[0] if self.rows else 1
        self.z, self.by_moments = np.zeros(0, dtype=np.intp) if z is None else z, by_moments
        if self.rows == 0 or edges != self.rows + (self.rows > 1) + (not known):
            raise ValueError("the neighbours are not rows, x and z")
        for i in range(n):
            for e in range(self.starts[i], self.starts[i + 1]):
                if (
                    self.starts[i + 1] - self.starts[i] != edges
                    or (self.kind[e] == DIRICHLET) != (e - self.starts[i] < self.rows)
                    or self.size[e] != (
                        self.rows if self.rows > 1 and e - self.starts[i] == self.rows else self.K
                    )
                ):
                    raise ValueError("the neighbours differ in their families or sizes")
        if known and (
            self.z.shape[0] != n or n and not 0 <= np.min(self.z) <= np.max(self.z) < self.K
        ):
            raise ValueError("z is not of the categories")
        self.ratio, self.W = np.empty((2, self.rows, self.K))
        self.alpha, self.of_z, self.rise, self.d, self.slope, self.work = np.empty((6, self.K))
        self.of_x, self.share = np.ones((2, self.rows))

    cdef Answer fit(self, ptrdiff_t i, double power) noexcept nogil:
        cdef ptrdiff_t R = self.rows, K = self.K, r, k, x = R * K, z = x + (R if R > 1 else 0)
        cdef double of_x, of_z, total = 0.0, part
        cdef bint observed = self.z.shape[0] > 0
        self.lZ = of_x = of_z = 0.0
        if R > 1 and not relative(R, self.c + x, &self.of_x[0], &of_x):
            return IMPOSSIBLE
        if observed:
            for k in range(K):
                self.of_z[k] = self.z[i] == k
        elif not relative(K, self.c + z, &self.of_z[0], &of_z):
            return IMPOSSIBLE
        for r in range(R):
            self.find_ratio(r, power)
            part = 0.0
            for k in range(K):
                self.W[r, k] = self.of_z[k] * self.ratio[r, k]
                part += self.W[r, k]
            if R > 1:
                self.g[x + r] = log(part)
            self.share[r] = self.of_x[r] * part
            total += self.share[r]
        if not (total > 0.0 and isfinite(total)):
            return FAILED
        self.lZ += log(total) + of_x + of_z
        for r in range(R):
            part = self.of_x[r] / total
            self.share[r] /= total
            for k in range(K):
                self.W[r, k] *= part
            if not self.to_row(i, r, power):
                return FAILED
        if R > 1:
            level(R, power, POSSIBLE, self.g + x)
        if not observed:
            for k in range(K):
                part = 0.0
                for r in range(R):
                    part += self.of_x[r] * self.ratio[r, k]
                self.g[z + k] = log(part)
            level(K, power, POSSIBLE, self.g + z)
        return FITTED

    cdef void find_ratio(self, ptrdiff_t r, double power) noexcept nogil:
        """E p_k^power of a row; and lZ has the integral of its cavity."""
        cdef const double *c = self.c + r * self.K
        cdef double size = 0.0, change
        cdef ptrdiff_t k
        for k in range(self.K):
            size += c[k] + 1.0
        if power == 1.0:
            for k in range(self.K):
                self.ratio[r, k] = (c[k] + 1.0) / size
        else:
            change = log_gamma(size) - log_gamma(size + power)
            for k in range(self.K):
                self.ratio[r, k] = exp(
                    log_gamma(c[k] + 1.0 + power) - log_gamma(c[k] + 1.0) + change
                )
        self.lZ += log_multivariate_beta(c, self.K)

    cdef bint to_row(self, ptrdiff_t i, ptrdiff_t r, double power) noexcept nogil:
        """The change of a row."""
        cdef const double *belief = self.belief + self.at[self.starts[i] + r]
        cdef const double *c = self.c + r * self.K
        cdef double *g = self.g + r * self.K
        cdef double size = 0.0, common
        cdef ptrdiff_t k
        cdef bint near = False
        if not self.share[r] > 0.0:
            return True
        for k in range(self.K):
            self.alpha[k] = c[k] + 1.0
            size += self.alpha[k]
        if self.by_moments:
            return self.to_moments(size, self.share[r], &self.W[r, 0], power, g)
        common = self.share[r] * (1.0 / size if power == 1.0 else digamma_change(size, power))
        for k in range(self.K):
            self.rise[k] = -common
            if self.W[r, k] > 0.0:
                self.rise[k] += self.W[r, k] * (
                    1.0 / self.alpha[k] if power == 1.0 else digamma_change(self.alpha[k], power)
                )
            # from the belief, or where that is the cavity from what is right for one category
            g[k] = belief[k] - c[k]
            near = near or g[k] != 0.0
        if not near:
            for k in range(self.K):
                g[k] = power * self.W[r, k]
        return dirichlet_change(
            &self.alpha[0], &self.rise[0], g, &self.work[0], &self.slope[0], self.K
        )

    cdef bint to_moments(
        self, double size, double share, const double *w, double power, double *g
    ) noexcept nogil:
        """The same by means and the sum of variances: those within the parts, and between them."""
        cdef ptrdiff_t K = self.K, j, k
        cdef double large = size + power, total = 0.0, mean, own, m
        for j in range(K):
            own = self.alpha[j] / size
            mean = (1.0 - share) * own + (share * self.alpha[j] + power * w[j]) / large
            self.work[j] = mean
            total += (1.0 - share) * (
                own * (1.0 - own) / (size + 1.0) + (own - mean) * (own - mean)
            )
        for k in range(K):
            if not w[k] > 0.0:
                continue
            for j in range(K):
                m = (self.alpha[j] + (power if j == k else 0.0)) / large
                own = m - self.work[j]
                total += w[k] * (m * (1.0 - m) / (large + 1.0) + own * own)
        m = 0.0
        for j in range(K):
            m += self.work[j] * (1.0 - self.work[j])
        m = m / total - 1.0
        for j in range(K):
            g[j] = self.work[j] * m - self.alpha[j]
        return total > 0.0 and m > 0.0 and isfinite(m)
