"""Likelihoods with several latent values per row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn, Self

import numpy as np
from scipy import special

from epfast import _checks
from epfast._arrays import Array, Given, Which
from epfast._core.latents import HETEROSCEDASTIC, MULTICLASS, LatentMoments
from epfast.losses.base import Loss
from epfast.losses.quantiles import root

#: the most classes
MOST_CLASSES = 10_000
#: most weights of all classes together, and most classes, for which a fit has covariances between
#: classes where ``correlated`` is None
CORRELATED_WEIGHTS, CORRELATED_CLASSES = 1000, 30


@dataclass(frozen=True)
class LatentLoss(Loss):
    """Base of the likelihoods with ``latents`` values h_k = x.theta_k per row.

    Means, variances and offsets are (n, latents) where those of another loss are (n,).
    """

    beta: float = field(default=1.0, init=False, repr=False)

    by_margin = False
    is_likelihood = True

    def __post_init__(self) -> None:
        self._set(gives=frozenset({"values", "continuous"}))

    @property
    def labels(self) -> tuple[str, ...]:
        """A name for each latent."""
        raise NotImplementedError

    def latents_in(self, y: Given) -> int:
        """The number of latents, where y tells it."""
        return self.latents

    def filled(self, latents: int, correlated: bool | None) -> Self:
        """The loss with numbers in place of None."""
        return self

    def with_correlations(self, weights: int) -> bool:
        """Whether a linear model of so many weights per latent should have one Gaussian."""
        return False

    def latent_moments(self) -> LatentMoments:
        """Tilted moments for the core."""
        raise NotImplementedError

    def core(self) -> NoReturn:
        raise ValueError(f"loss is {self!r}, with several latents; allowed here: one latent")

    def add_offset(self, responses: Array, offset: Array) -> Array:
        return np.concatenate([responses, offset], axis=1)

    def offset_of(self, responses: Array) -> Array | float:
        return responses[:, -self.latents :] if self.has_offset else 0.0

    def tilted_moments(
        self, responses: Array, mean: Array, variance: Array
    ) -> tuple[Array, Array, Array]:
        """log Z, (n,), and its first two derivatives by the means, (n, latents) each.

        Parameters
        ----------
        responses : ndarray of shape (n, 1), or (n, 1 + latents) with offsets
        mean, variance : ndarray of shape (n, latents)
            Of the cavities, which are products over the latents.
        """
        mean, variance = (np.ascontiguousarray(x, np.float64) for x in (mean, variance))
        n = len(mean)
        lZ, d, d2 = np.empty(n), np.empty((n, self.latents)), np.empty((n, self.latents))
        self.latent_moments().moments(np.ascontiguousarray(responses), mean, variance, lZ, d, d2)
        return lZ, d, d2

    def values(self, latent: Array, responses: Array) -> Array:
        """Minus the log likelihood, (..., n), at latent values (..., n, latents)."""
        shape = latent.shape[:-1]
        flat = latent.reshape(-1, self.latents)
        width = responses.shape[1]
        rows = np.broadcast_to(responses, (*shape, width)).reshape(len(flat), width)
        log_likelihood = self.tilted_moments(rows, flat, np.zeros(flat.shape))[0]
        return np.asarray(-log_likelihood.reshape(shape))

    def log_predictive(self, responses: Array, mean: Array, variance: Array) -> Array:
        return self.tilted_moments(responses, mean, variance)[0]

    def predict_log_proba(self, mean: Array, variance: Array) -> Array:
        """Log probability of each class, (n, latents), of a loss that has classes."""
        return np.log(self.predict_proba(mean, variance))


@dataclass(frozen=True)
class Multiclass(LatentLoss):
    """Classes 0 ... n_classes - 1 by multinomial probit: y = argmax_k (h_k + e_k), e_k ~ N(0, 1).

    p(y | h) = ∫ N(u; 0, 1) Π_{j≠y} Φ(u + h_y - h_j) du. Log-concave, so that no site is ever
    negative. Two classes are probit with noise of variance 2.

    Parameters
    ----------
    n_classes : int, optional
        At least 2. By default the largest class of y and one, set by the fit.
    correlated : bool, optional
        True: one Gaussian over all classes by nested EP, for linear models of up to 3,000 weights
        in all. Its standard deviations and evidence are close to exact. False: a product over the
        classes, whose standard deviations are too small for what classes have in common, up to 17
        times in our measurements, and whose evidence is too low. Probabilities differ little.
        None, set by the fit: True for linear models of up to 1,000 weights in all and 30 classes,
        in automatic or parallel order. There it takes 0.4 to 3 times as long as the product (up to
        5 with more than 10 classes). Else, and for processes, False.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> from epfast import losses
    >>> X = np.array([[-2.0], [-1.5], [0.1], [-0.1], [1.5], [2.0]])
    >>> post = epfast.fit_linear(X, [0, 0, 1, 1, 2, 2], loss=losses.Multiclass(3), intercept=True)
    >>> post.predict([[-3.0], [3.0]])
    array([0., 2.])

    References
    ----------
    Riihimäki, Jylänki & Vehtari (2013), JMLR 14. Girolami & Rogers (2006), Neural Computation 18.
    """

    n_classes: int | None = None
    correlated: bool | None = None  # type: ignore[assignment]

    #: jointly in all latents
    log_concave = True
    bounded = True

    def __post_init__(self) -> None:
        super().__post_init__()
        count, together = self.n_classes, self.correlated
        if count is not None:
            count = _checks.integer("n_classes", count, least=2, most=MOST_CLASSES)
        if together is not None:
            together = _checks.flag("correlated", together)
        self._set(n_classes=count, latents=count or 0, correlated=together)

    def latents_in(self, y: Given) -> int:
        """n_classes. None: the largest class of y and one."""
        if self.n_classes is not None:
            return self.n_classes
        given = _checks.array("y", y, shape=(None,))
        most = given.max(initial=-1.0)
        if not (1.0 <= most < MOST_CLASSES and most == np.floor(most)):
            raise ValueError(
                f"y has a maximum of {most:g} and n_classes is None; allowed: classes 0, 1, ... of "
                f"which there are two or more, and at most {MOST_CLASSES}; or "
                "losses.Multiclass(n_classes). LinearClassifier takes labels of any kind"
            )
        return int(most) + 1

    def filled(self, latents: int, correlated: bool | None) -> Self:
        count = latents if self.n_classes is None else self.n_classes
        together = correlated if self.correlated is None else self.correlated
        if (count, together) == (self.n_classes, self.correlated):
            return self
        return self.with_parameters(n_classes=count, correlated=together)

    def with_correlations(self, weights: int) -> bool:
        """Whether a linear model of so many weights per class should have them."""
        few = self.latents * weights <= CORRELATED_WEIGHTS and self.latents <= CORRELATED_CLASSES
        return few if self.correlated is None else self.correlated

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(f"class {k}" for k in range(self._count()))

    def latent_moments(self) -> LatentMoments:
        return LatentMoments(MULTICLASS, self._count())

    def _count(self) -> int:
        if self.n_classes is None:
            raise ValueError("n_classes is None; allowed outside of a fit: the number of classes")
        return self.n_classes

    def responses(self, name: str, y: Given, n: int) -> Array:
        """Check the classes, and return them as (n, 1) numbers."""
        most = self._count() - 1
        given = _checks.array(name, y, shape=(n,))
        return _checks.whole(name, given, most, f"whole numbers from 0 to {most}")[:, None].copy()

    def predict_log_proba(self, mean: Array, variance: Array) -> Array:
        """Log probability of each class, (n, n_classes), accurate where that underflows."""
        result = np.empty(mean.shape)
        for k in range(self._count()):
            responses = np.full((len(mean), 1), float(k))
            result[:, k] = self.tilted_moments(responses, mean, variance)[0]
        return np.asarray(result - special.logsumexp(result, axis=1, keepdims=True))

    def predict_proba(self, mean: Array, variance: Array) -> Array:
        """Probability of each class, (n, n_classes). Rows add up to 1."""
        return np.exp(self.predict_log_proba(mean, variance))

    def predict(self, mean: Array, variance: Array) -> Array:
        """The most probable class, (n,)."""
        return np.asarray(self.predict_proba(mean, variance).argmax(axis=1), dtype=np.float64)

    def predict_variance(self, mean: Array, variance: Array) -> Array:
        """Variance of the class as 0 or 1 for each class, (n, n_classes): p (1 - p)."""
        p = self.predict_proba(mean, variance)
        return np.asarray(p * (1.0 - p))

    def predict_quantile(self, level: float, mean: Array, variance: Array) -> NoReturn:
        raise ValueError(f"loss is {self!r}, whose classes have no order; allowed: predict_proba")

    def sample(self, latent: Array, rng: np.random.Generator) -> Array:
        """Draw classes (...) given latent values (..., n_classes)."""
        noisy = latent + rng.standard_normal(latent.shape)
        return np.asarray(noisy.argmax(axis=-1), dtype=np.float64)


@dataclass(frozen=True)
class Heteroscedastic(LatentLoss):
    """Real numbers with noise of their own variance: y ~ N(h, e^g), latents (h, g).

    The approximation is a product over the two. Not log-concave in both: sites may be negative, and
    rows go one after the other by default.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> from epfast import losses
    >>> rng = np.random.default_rng(0)
    >>> x = rng.uniform(-1, 1, (400, 1))
    >>> y = 2.0 * x[:, 0] + np.exp(x[:, 0]) * rng.normal(size=400)  # g = 2 x
    >>> post = epfast.fit_linear(x, y, loss=losses.Heteroscedastic(), intercept=True)
    >>> bool(abs(post.mean[1, 0] - 2.0) < 0.5)
    True
    """

    latents = 2
    log_concave = False
    labels = "mean", "log variance"

    def latent_moments(self) -> LatentMoments:
        return LatentMoments(HETEROSCEDASTIC, 2)

    def responses(self, name: str, y: Given, n: int) -> Array:
        """Check y, and return it as (n, 1) numbers."""
        return _checks.array(name, y, shape=(n,))[:, None].copy()

    def predict(self, mean: Array, variance: Array) -> Array:
        """Mean of y, (n,)."""
        return mean[:, 0].copy()

    def predict_variance(self, mean: Array, variance: Array) -> Array:
        """Variance of y, (n,): that of h, and the mean of e^g."""
        with np.errstate(over="ignore"):
            return np.asarray(variance[:, 0] + np.exp(mean[:, 1] + 0.5 * variance[:, 1]))

    def predict_quantile(self, level: float, mean: Array, variance: Array) -> Array:
        """Quantiles of y, (n,), from a mixture of normal distributions over g."""
        nodes, weights = special.roots_hermitenorm(60)
        log_variance = mean[:, 1:] + np.sqrt(variance[:, 1:]) * nodes
        sd, weights = np.sqrt(variance[:, :1] + np.exp(log_variance)), weights / weights.sum()

        def tails(x: Array, rows: Which) -> tuple[Array, Array]:
            z = x[:, None] / sd[rows]
            return special.ndtr(z) @ weights, special.ndtr(-z) @ weights

        deviation = root(tails, level, np.zeros(len(mean)), sd @ weights)
        return np.asarray(mean[:, 0] + deviation)

    def sample(self, latent: Array, rng: np.random.Generator) -> Array:
        """Draw responses (...) given latent values (..., 2)."""
        with np.errstate(over="ignore"):
            sd = np.exp(0.5 * latent[..., 1])
        return np.asarray(latent[..., 0] + sd * rng.standard_normal(sd.shape))
