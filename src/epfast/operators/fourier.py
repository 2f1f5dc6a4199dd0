"""Random Fourier features of the kernels on tuples.

Equations, steps and appendices are those of Jitkrittum et al. (2015), Kernel-based just-in-time
learning for passing expectation propagation messages. Steps are of its algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from epfast import _checks
from epfast._arrays import Array
from epfast.operators.kernels import ExpectedProduct, JointEmbedding, MeanVariance, Tuples

#: seeds that draws are made from
Seed = int | np.random.Generator
#: characteristic function of messages: parameters (n, 2) and omega (D,) to (n, D)
Characteristic = Callable[[Array, Array], NDArray[np.complex128]]


class Embedding(Protocol):
    """E cos(omega^T x + phase) under tuples of messages."""

    def __call__(self, messages: Any, omega: Array, phase: Array) -> Array:
        """Means (n, D) of n tuples, frequencies (D, c), phases (D,)."""


def by_moments(messages: Any, omega: Array, phase: Array) -> Array:
    """The embedding of the Gaussians of the same moments, end of B.3; messages: (mean, variance).

    Parameters
    ----------
    messages : tuple of ndarray
        Means (n, c) and variances (n, c).
    omega : ndarray of shape (D, c)
    phase : ndarray of shape (D,)
    """
    tuples = Tuples.checked("messages", messages, omega.shape[1])
    damping = np.exp(-0.5 * tuples.variance @ (omega**2).T)
    found: Array = np.cos(tuples.mean @ omega.T + phase) * damping
    return found


def point_mass(points: Array, omega: Array) -> NDArray[np.complex128]:
    """Characteristic function of point masses (n, 1)."""
    found: NDArray[np.complex128] = np.exp(1j * points * omega)
    return found


@dataclass(frozen=True)
class ByFamilies:
    """The exact embedding of a product of messages: Re[e^(i phase) prod_l chi_l(omega_l)].

    Called as :func:`by_moments`, with a tuple of arrays in place of the pair: the parameters
    (n, 2), or points (n, 1), of each message.

    Parameters
    ----------
    characteristics : tuple of callable
        Characteristic function of each message, by its family.
    """

    characteristics: tuple[Characteristic, ...]

    def __call__(self, messages: Any, omega: Array, phase: Array) -> Array:
        """Means (n, D)."""
        count = len(self.characteristics)
        if not isinstance(messages, tuple) or not len(messages) == count == omega.shape[1]:
            raise ValueError(
                f"messages is {_checks.describe(messages)} for {omega.shape[1]} widths; allowed: "
                f"a tuple of {count} arrays, and as many widths"
            )
        product = np.exp(1j * phase)[None, :]
        for j, (chi, given) in enumerate(zip(self.characteristics, messages, strict=True)):
            parameters = _checks.array(f"messages[{j}]", given, shape=(None, None))
            product = product * chi(parameters, omega[:, j])
        return np.ascontiguousarray(product.real)


class Features(Protocol):
    """A map of tuples to features (n, D), whose products approach a kernel."""

    def __call__(self, messages: Any) -> Array:
        """Features (n, D) of n tuples."""


@dataclass(frozen=True, eq=False)
class ProductFeatures:
    """Features of the expected product of embeddings, B.3 and steps 1 to 3.

    Parameters
    ----------
    omega : ndarray of shape (D, c)
        Frequencies.
    phase : ndarray of shape (D,)
    embedding : Embedding
        What takes the expectations: :func:`by_moments`, or :class:`ByFamilies`.
    """

    omega: Array
    phase: Array
    embedding: Embedding = by_moments

    def __post_init__(self) -> None:
        omega = _checks.array("omega", self.omega, shape=(None, None))
        phase = _checks.array("phase", self.phase, shape=(len(omega),))
        if omega.size == 0:
            raise ValueError(f"omega has shape {omega.shape}; allowed: (D, c), D, c >= 1")
        _checks.freeze(self, omega=omega, phase=phase)

    @classmethod
    def draw(
        cls, kernel: ExpectedProduct, d: int, rng: Seed, embedding: Embedding = by_moments
    ) -> ProductFeatures:
        """Features of a kernel.

        Parameters
        ----------
        kernel : ExpectedProduct
        d : int
            Number of features.
        rng : int or numpy.random.Generator
        embedding : Embedding
        """
        rng, d = _checks.generator("rng", rng), _checks.integer("d", d, least=1)
        omega = rng.standard_normal((d, len(kernel.widths))) / kernel.widths
        return cls(omega, rng.uniform(0.0, 2.0 * math.pi, d), embedding)

    def __call__(self, messages: Any) -> Array:
        """Features (n, D)."""
        scale = math.sqrt(2.0 / len(self.omega))
        return scale * self.embedding(messages, self.omega, self.phase)


@dataclass(frozen=True, eq=False)
class TwoStage:
    """Features of the Gaussian kernel on joint embeddings (7), (8): all of algorithm 1.

    Parameters
    ----------
    inner : ProductFeatures
        Steps 1 to 3, D_in features.
    nu : ndarray of shape (D_out, D_in)
        Frequencies of the features of features.
    phase : ndarray of shape (D_out,)

    Notes
    -----
    D_in (2c + 2) operations and D_in D_out multiply-adds per tuple.
    """

    inner: ProductFeatures
    nu: Array
    phase: Array

    def __post_init__(self) -> None:
        nu = _checks.array("nu", self.nu, shape=(None, len(self.inner.omega)))
        if len(nu) == 0:
            raise ValueError(f"nu has shape {nu.shape}; allowed: (D_out, D_in), D_out >= 1")
        phase = _checks.array("phase", self.phase, shape=(len(nu),))
        _checks.freeze(self, nu=nu, phase=phase)

    @classmethod
    def draw(
        cls,
        kernel: JointEmbedding,
        d_in: int,
        d_out: int,
        rng: Seed,
        embedding: Embedding = by_moments,
    ) -> TwoStage:
        """Features of a kernel.

        Parameters
        ----------
        kernel : JointEmbedding
        d_in, d_out : int
            Number of features of the embedding, and of the kernel on embeddings.
        rng : int or numpy.random.Generator
        embedding : Embedding
        """
        rng = _checks.generator("rng", rng)
        d_in = _checks.integer("d_in", d_in, least=1)
        d_out = _checks.integer("d_out", d_out, least=1)
        inner = ProductFeatures.draw(ExpectedProduct(kernel.widths), d_in, rng, embedding)
        nu = rng.standard_normal((d_out, d_in)) / kernel.outer
        return cls(inner, nu, rng.uniform(0.0, 2.0 * math.pi, d_out))

    def __call__(self, messages: Any) -> Array:
        """Features (n, D_out)."""
        scale = math.sqrt(2.0 / len(self.nu))
        found: Array = scale * np.cos(self.inner(messages) @ self.nu.T + self.phase)
        return found


@dataclass(frozen=True, eq=False)
class MeanVarianceFeatures:
    """Features of the kernel on means and variances, B.1 and B.2.

    Parameters
    ----------
    kernel : MeanVariance
    omega : ndarray of shape (D, 2c)
        Frequencies of means and variances over their widths.
    phase : ndarray of shape (D,)
    """

    kernel: MeanVariance
    omega: Array
    phase: Array

    def __post_init__(self) -> None:
        omega = _checks.array("omega", self.omega, shape=(None, 2 * len(self.kernel.mean_widths)))
        if len(omega) == 0:
            raise ValueError(f"omega has shape {omega.shape}; allowed: (D, 2c), D >= 1")
        phase = _checks.array("phase", self.phase, shape=(len(omega),))
        _checks.freeze(self, omega=omega, phase=phase)

    @classmethod
    def draw(cls, kernel: MeanVariance, d: int, rng: Seed) -> MeanVarianceFeatures:
        """Features of a kernel.

        Parameters
        ----------
        kernel : MeanVariance
        d : int
            Number of features.
        rng : int or numpy.random.Generator
        """
        rng, d = _checks.generator("rng", rng), _checks.integer("d", d, least=1)
        omega = rng.standard_normal((d, 2 * len(kernel.mean_widths)))
        return cls(kernel, omega, rng.uniform(0.0, 2.0 * math.pi, d))

    def __call__(self, messages: Any) -> Array:
        """Features (n, D)."""
        coordinates = self.kernel.coordinates("messages", messages)
        scale = math.sqrt(2.0 / len(self.omega))
        found: Array = scale * np.cos(coordinates @ self.omega.T + self.phase)
        return found


@dataclass(frozen=True, eq=False)
class _OfEach:
    """Features of each message, of tuples of one."""

    parts: tuple[Features, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.parts, tuple) or not self.parts:
            raise TypeError(
                f"parts is {_checks.describe(self.parts)}; allowed: a tuple of features, one per "
                "message"
            )

    def _each(self, messages: Any) -> list[Array]:
        tuples = Tuples.checked("messages", messages, len(self.parts))
        return [part(tuples.column(j)) for j, part in enumerate(self.parts)]


@dataclass(frozen=True, eq=False)
class Kronecker(_OfEach):
    """Features of a product of kernels, one per message, B.4: all products, D^c of them.

    Parameters
    ----------
    parts : tuple of Features
        Features of tuples of one message each.
    """

    def __call__(self, messages: Any) -> Array:
        """Features (n, D^c)."""
        found, *others = self._each(messages)
        for other in others:
            found = (found[:, :, None] * other[:, None, :]).reshape(len(found), -1)
        return found


@dataclass(frozen=True, eq=False)
class Concatenated(_OfEach):
    """Features of a sum of kernels, one per message, B.5: side by side, c D of them.

    Parameters
    ----------
    parts : tuple of Features
        Features of tuples of one message each.
    """

    def __call__(self, messages: Any) -> Array:
        """Features (n, c D)."""
        return np.concatenate(self._each(messages), axis=1)
