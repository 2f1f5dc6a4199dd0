"""Models of learned operators.

A model maps the coordinates x of a tuple of messages to standardised targets and one spread, the
variance of a target of amplitude 1: phi.mu and phi.S phi with features phi(x), weights N(mu, S).
"""

import numpy as np

from libc.math cimport fmax, isfinite, sqrt
from libc.string cimport memset

from epfast._core.vector cimport EPF_PANEL, EPF_PANEL_AT, kernels

cdef enum:
    MOST_COORDINATES = 32
    MOST_OUTPUTS = 16

# of a variance, in units of the prior's
cdef double ROUNDING = 1e-13


cdef ptrdiff_t padded(ptrdiff_t n) noexcept nogil:
    """n numbers, up to whole panels."""
    return (n + EPF_PANEL - 1) // EPF_PANEL * EPF_PANEL


cdef inline ptrdiff_t entry(ptrdiff_t i, ptrdiff_t j) noexcept nogil:
    """Where (i, j) of a packed triangle stands, j <= i; see operator.h."""
    return EPF_PANEL_AT(i // EPF_PANEL) + j * EPF_PANEL + i % EPF_PANEL


cdef double[::1] zeros(ptrdiff_t n):
    """n zeros from the beginning of a cache line."""
    room = np.zeros(n + 8)
    return room[-(room.ctypes.data // 8) % 8:][:n]


cdef int refuse(const double[:] x, str name) except -1:
    """Raise for numbers that are not finite."""
    cdef ptrdiff_t i
    for i in range(x.shape[0]):
        if not isfinite(x[i]):
            raise ValueError(f"{name} holds NaN or infinity; allowed: finite numbers")
    return 0


cdef taken(str name, value, tuple shape):
    """A fresh array (float64) of finite numbers, of that shape."""
    given = np.array(value, dtype=np.float64, order="C")
    if given.shape != shape:
        raise ValueError(f"{name} has shape {given.shape}; allowed: {shape}")
    refuse(given.ravel(), name)
    return given


cdef class Model:
    """Bayesian regression of targets (T,) on features of coordinates (k,) of a tuple: (9) to (16).

    One covariance serves all targets. S is kept as its lower triangle, packed, so that it cannot
    drift from symmetry.
    """

    cdef int reserve(self, ptrdiff_t outputs, ptrdiff_t cap) except -1:
        if not 1 <= outputs <= MOST_OUTPUTS:
            raise ValueError(f"outputs is {outputs}; allowed: 1 to {MOST_OUTPUTS}")
        if not 1 <= cap <= 1 << 15:
            raise ValueError(f"there are {cap} features; allowed: 1 to {1 << 15}")
        self.outputs, self.cap, self.ld = outputs, cap, padded(cap)
        self.phi, self.gain = zeros(self.ld), zeros(self.ld)
        self.mu = zeros(outputs * self.ld)
        self.S = zeros(EPF_PANEL_AT(self.ld // EPF_PANEL))
        return 0

    cdef double features(self, const double *x) noexcept nogil:
        """phi <- features of x; returns the variance that lies outside of them."""
        return 0.0

    cdef bint grow(self, double rest) noexcept nogil:
        """Take x, whose features are in phi, among those that features are made of."""
        return False

    cdef void look(self, const double *x, double *targets, double *spread) noexcept nogil:
        """One prediction, O(D^2) and what the features cost."""
        cdef double rest = self.features(x)
        kernels.margins(
            self.outputs, self.used, &self.mu[0], False, self.ld, NULL, &self.phi[0], targets
        )
        spread[0] = rest + fmax(
            0.0, kernels.triangle_form(self.used, &self.S[0], &self.phi[0])
        )

    def predict(self, const double[:, ::1] x not None, out=None):
        """Targets (n, T) and spread (n,) at x (n, k), into the two arrays of out where given."""
        cdef ptrdiff_t n = x.shape[0], i
        cdef double[:, ::1] targets
        cdef double[::1] spread
        if x.shape[1] != self.k:
            raise ValueError(f"x has shape {(n, x.shape[1])}; allowed: (any, {self.k})")
        if n > 0:
            refuse(<double[:n * self.k]> <double *> &x[0, 0], "x")
        if out is None:
            out = np.empty((n, self.outputs)), np.empty(n)
        targets, spread = out
        if targets.shape[0] != n or targets.shape[1] != self.outputs or spread.shape[0] != n:
            raise ValueError(
                f"out has the shapes {tuple(part.shape for part in out)}; allowed: "
                f"{(n, self.outputs)} and ({n},)"
            )
        with nogil:
            for i in range(n):
                self.look(&x[i, 0], &targets[i, 0], &spread[i])
        return tuple(out)

    def update(
        self, const double[::1] x not None, const double[::1] y not None, double noise
    ):
        """Learn targets y (T,) at x (k,), of this noise variance. O(D^2).

        The gain form of (16), after a new feature where there is room for one: returns whether.
        """
        cdef double rest, spread, change
        cdef ptrdiff_t t, i
        cdef double *mu
        cdef bint grown
        self.check(x)
        if y.shape[0] != self.outputs:
            raise ValueError(f"y has shape {(y.shape[0],)}; allowed: ({self.outputs},)")
        refuse(y, "y")
        if not (noise >= 0.0 and isfinite(noise)):
            raise ValueError(f"noise is {noise}; allowed: a finite number >= 0")
        with nogil:
            rest = self.features(&x[0])
            grown = self.grow(rest)
            spread = kernels.triangle_times(self.used, &self.S[0], &self.phi[0], &self.gain[0])
            if noise + spread > ROUNDING:   # else all of it is known
                for t in range(self.outputs):
                    mu = &self.mu[t * self.ld]
                    change = y[t]
                    for i in range(self.used):
                        change -= mu[i] * self.phi[i]
                    change /= noise + spread
                    for i in range(self.used):
                        mu[i] += self.gain[i] * change
                kernels.triangle_update(
                    self.used, &self.S[0], 1.0 / (noise + spread), &self.gain[0]
                )
        return bool(grown)

    cdef int check(self, const double[::1] x) except -1:
        if x.shape[0] != self.k:
            raise ValueError(f"x has shape {(x.shape[0],)}; allowed: ({self.k},)")
        return refuse(x, "x")

    cdef int put(self, ptrdiff_t n, mean, S) except -1:
        """Weights N(mean, S) of n features, for all outputs."""
        cdef ptrdiff_t i, j
        cdef const double[:, ::1] given_mean, given
        given_mean, given = taken("mean", mean, (self.outputs, n)), taken("S", S, (n, n))
        memset(&self.S[0], 0, self.S.shape[0] * sizeof(double))
        memset(&self.phi[0], 0, self.ld * sizeof(double))
        memset(&self.gain[0], 0, self.ld * sizeof(double))
        for i in range(n):
            for j in range(i):
                self.S[entry(i, j)] = given[i, j]
            self.S[entry(i, i)] = 0.5 * given[i, i]
            for j in range(self.outputs):
                self.mu[j * self.ld + i] = given_mean[j, i]
        self.used = n
        return 0

    cdef tuple weights(self):
        cdef ptrdiff_t n = self.used, i, j
        cdef double[:, ::1] mean = np.empty((self.outputs, n)), S = np.empty((n, n))
        for i in range(n):
            for j in range(i):
                S[i, j] = S[j, i] = self.S[entry(i, j)]
            S[i, i] = 2.0 * self.S[entry(i, i)]
            for j in range(self.outputs):
                mean[j, i] = self.mu[j * self.ld + i]
        return np.asarray(mean), np.asarray(S)


def made_again(kind, given, weights):
    """A model of this kind, made with the arguments in ``given``, with these weights."""
    model = kind(*given)
    model.set(**weights)
    return model


cdef class DictionaryModel(Model):
    """Features L^-1 k(Z, x) of a dictionary Z, K_ZZ = L L^T, k Gaussian in x / widths.

    The prior variance 1 - phi.phi outside of them is part of the spread. The triangle of L is
    kept with its blocks on the diagonal inverted: a solve costs what a product with the inverse
    of L does, without its rounding.
    """

    cdef double[::1] widths
    cdef double[::1] Z                      # (k, ld), divided by widths
    cdef double[::1] L                      # packed, blocks on the diagonal inverted
    cdef double[::1] blocks                 # (ld, EPF_PANEL), those blocks
    cdef double[::1] row, point             # scratch: k(Z, x), x / widths
    # of |phi|^2 = 1: a tuple nearer than that to the dictionary adds no row
    cdef readonly double near

    def __init__(self, ptrdiff_t k, ptrdiff_t outputs, ptrdiff_t cap, double near=1e-6):
        if not 1 <= k <= MOST_COORDINATES:
            raise ValueError(f"k is {k}; allowed: 1 to {MOST_COORDINATES}")
        self.reserve(outputs, cap)
        self.k, self.near = k, near
        self.widths, self.point = np.ones(k), zeros(k)
        self.Z, self.row = zeros(k * self.ld), zeros(self.ld)
        self.L, self.blocks = zeros(self.S.shape[0]), zeros(self.ld * EPF_PANEL)

    cdef double features(self, const double *x) noexcept nogil:
        cdef ptrdiff_t j
        for j in range(self.k):
            self.point[j] = x[j] / self.widths[j]
        kernels.gaussian_row(
            self.k, self.used, self.ld, &self.Z[0], &self.point[0], &self.row[0]
        )
        return fmax(
            0.0, 1.0 - kernels.triangle_solve(
                self.used, &self.L[0], &self.row[0], &self.phi[0]
            )
        )

    cdef bint grow(self, double rest) noexcept nogil:
        """The row (phi, sqrt(rest)) of L; phi becomes that row. O(D)"""
        cdef ptrdiff_t i = self.used, j
        if not (rest > self.near and i < self.cap):
            return False
        self.phi[i] = sqrt(rest)
        for j in range(self.k):
            self.Z[j * self.ld + i] = self.point[j]
        for j in range(self.outputs):
            self.mu[j * self.ld + i] = 0.0
        self.S[entry(i, i)] = 0.5
        self.used += 1
        self.join(i, &self.phi[0])
        return True

    cdef void join(self, ptrdiff_t i, const double *row) noexcept nogil:
        """Row i of L, after those before it."""
        cdef ptrdiff_t first = i - i % EPF_PANEL, j, c
        cdef double *block = &self.blocks[i * EPF_PANEL]
        cdef double sum
        for j in range(first):
            self.L[entry(i, j)] = row[j]
        for j in range(first, i + 1):
            block[j - first] = row[j]
        # the row (-l^T B^-1, 1) / L_ii of the inverse of the block
        for j in range(first, i):
            sum = 0.0
            for c in range(j, i):
                sum += row[c] * self.L[entry(c, j)]
            self.L[entry(i, j)] = -sum / row[i]
        self.L[entry(i, i)] = 1.0 / row[i]

    def append(self, const double[::1] x not None):
        """A row for x (k,), unless the dictionary is full or has it to ``near``; whether. O(D^2)"""
        cdef bint grown
        self.check(x)
        with nogil:
            grown = self.grow(self.features(&x[0]))
        return bool(grown)

    def set(self, widths, Z, L, mean, S):
        """Another dictionary: widths (k,), Z (D, k) divided by them, the Cholesky factor L of K_ZZ.

        mean (T, D) and S (D, D) are the weights.
        """
        cdef ptrdiff_t n = np.shape(Z)[0] if np.ndim(Z) == 2 else -1, i, j
        cdef const double[::1] width = taken("widths", widths, (self.k,))
        cdef const double[:, ::1] points, factor
        if not 0 <= n <= self.cap:
            raise ValueError(f"Z has shape {np.shape(Z)}; allowed: (D, k), D <= {self.cap}")
        points, factor = taken("Z", Z, (n, self.k)), taken("L", L, (n, n))
        if not np.min(width) > 0.0:
            raise ValueError(f"widths holds {np.min(width)}; allowed: positive numbers")
        if n > 0 and not np.min(np.diagonal(factor)) > 0.0:
            raise ValueError("L has a diagonal that is not positive; allowed: a Cholesky factor")
        self.put(n, mean, S)
        memset(&self.L[0], 0, self.L.shape[0] * sizeof(double))
        memset(&self.blocks[0], 0, self.blocks.shape[0] * sizeof(double))
        for j in range(self.k):
            self.widths[j] = width[j]
            for i in range(n):
                self.Z[j * self.ld + i] = points[i, j]
        for i in range(n):
            self.join(i, &factor[i, 0])

    def arrays(self):
        """Copies of what ``set`` takes, by name."""
        cdef ptrdiff_t n = self.used, i, j, first
        cdef double[:, ::1] Z = np.empty((n, self.k)), L = np.zeros((n, n))
        for i in range(n):
            first = i - i % EPF_PANEL
            for j in range(first):
                L[i, j] = self.L[entry(i, j)]
            for j in range(first, i + 1):
                L[i, j] = self.blocks[i * EPF_PANEL + j - first]
            for j in range(self.k):
                Z[i, j] = self.Z[j * self.ld + i]
        mean, S = self.weights()
        return {
            "widths": np.array(self.widths), "Z": np.asarray(Z), "L": np.asarray(L), "mean": mean,
            "S": S,
        }

    def __reduce__(self):
        given = self.k, self.outputs, self.cap, self.near
        return made_again, (DictionaryModel, given, self.arrays())


cdef class FourierModel(Model):
    """Random Fourier features of messages in two stages (algorithm 1).

    omega (D_in, c), b (D_in,), nu (D_out, D_in), c (D_out,). x holds the means of c messages and
    then their variances. Weights begin as N(0, I).
    """

    cdef ptrdiff_t messages, inner, row
    cdef double[:, ::1] omega, half_square  # (c, D_in): turned about
    cdef double[::1] b, c, nu               # nu (D_out, row)
    cdef double[::1] first, shrink          # scratch
    cdef double inner_scale, outer_scale

    def __init__(self, ptrdiff_t outputs, omega, b, nu, c):
        shape = np.shape(omega)
        if len(shape) != 2 or 0 in shape or shape[1] > MOST_COORDINATES // 2:
            raise ValueError(
                f"omega has shape {shape}; allowed: (D, c) with c <= {MOST_COORDINATES // 2}"
            )
        self.by_moments = True
        self.inner, self.messages = shape
        self.k = 2 * self.messages
        self.reserve(outputs, np.shape(nu)[0])
        omega = taken("omega", omega, shape)
        self.omega = np.ascontiguousarray(omega.T)
        self.half_square = np.ascontiguousarray(0.5 * (omega * omega).T)
        self.b = taken("b", b, (self.inner,))
        self.inner_scale = sqrt(2.0 / self.inner)
        self.row = padded(self.inner)
        self.first, self.shrink = zeros(self.row), zeros(self.row)
        room = np.asarray(zeros(self.cap * self.row))
        room.reshape(self.cap, self.row)[:, :self.inner] = taken("nu", nu, (self.cap, self.inner))
        self.nu, self.c = room, taken("c", c, (self.cap,))
        self.outer_scale = sqrt(2.0 / self.cap)
        self.set(np.zeros((outputs, self.cap)), np.eye(self.cap))

    cdef double features(self, const double *x) noexcept nogil:
        cdef ptrdiff_t n = self.inner, i, j
        cdef double *first = &self.first[0]
        cdef double *shrink = &self.shrink[0]
        cdef const double *omega
        for i in range(n):
            first[i], shrink[i] = self.b[i], 0.0
        for j in range(self.messages):
            omega = &self.omega[j, 0]
            for i in range(n):
                first[i] += omega[i] * x[j]
        kernels.cos(n, first, first)
        for j in range(self.messages):
            omega = &self.half_square[j, 0]
            for i in range(n):
                shrink[i] -= omega[i] * x[self.messages + j]
        kernels.exp(n, shrink, shrink)
        for i in range(n):
            first[i] *= self.inner_scale * shrink[i]
        kernels.margins(
            self.cap, n, &self.nu[0], False, self.row, NULL, first, &self.phi[0]
        )
        for i in range(self.cap):
            self.phi[i] += self.c[i]
        kernels.cos(self.cap, &self.phi[0], &self.phi[0])
        for i in range(self.cap):
            self.phi[i] *= self.outer_scale
        return 0.0

    def set(self, mean, S):
        """Weights N(mean, S) of all features: mean (T, D), S (D, D)."""
        self.put(self.cap, mean, S)

    def arrays(self):
        """Copies of the weights, by name."""
        mean, S = self.weights()
        return {"mean": mean, "S": S}

    def __reduce__(self):
        nu = np.array(self.nu).reshape(self.cap, self.row)[:, :self.inner]
        drawn = np.array(self.omega).T, np.array(self.b), nu, np.array(self.c)
        return made_again, (FourierModel, (self.outputs, *drawn), self.arrays())
