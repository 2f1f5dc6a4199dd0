"""Fits of every kind, small and seeded, whose results are kept in golden.npz.

    python tests/golden/fits.py                       # how far the results are from those kept
    python tests/golden/fits.py --write               # keep these results
    python tests/golden/fits.py --nudge 1e-13         # whether rounding of the data moves a fit

A group is a function that yields fits; a fit is a name, a call without arguments that returns what
is looked at (a posterior, or an estimator), and the arguments of its predictions at five new rows.
Fits with ``TIGHT`` are fixed points, on data where EP has one alone: they do not depend on the
order of the visits, nor on how sweeps are made. Fits of so many sweeps (``tol=0``) are of
schedules whose result is the path: ADF, shared sites, committee machines.

What is left out, and why:

- ``block`` and ``refresh`` of EP, which change no fixed point, and may vanish.
- ADF with a diagonal covariance and its default ``warm_up``: the EP of its first rows stops by a
  tolerance, so that its result is known to that only. ``warm_up=0`` is here.
- Samples, certificates and ``check()``: they have tests of their own.
- Loss functions with a jump by Laplace's method, and the quadrature rule with columns of unit
  variance, which have more than one fixed point, or none.
- Columns 1e-8 apart under a prior variance of 1e12: rounding keeps their sweeps from settling.
- Losses in C by ctypes and numba, which are the same calls as those in Python.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.special import log_ndtr

import epfast
from epfast import losses, priors, schemes
from tests.graph import models

FILE = Path(__file__).with_name("golden.npz")
#: sweeps until rounding
TIGHT = epfast.EP(sweeps=2000, tol=1e-11)
NEW = 5


class Fit(NamedTuple):
    """A call, and what its result predicts at."""

    name: str
    call: Callable[[], Any]
    new: tuple[Any, ...] = ()
    #: derivatives of the kernel matrix by some parameter
    slope: Any = None
    #: the fit whose evidence and latent values are kept in place of its own
    truth: Any = None


class Bounds(NamedTuple):
    """How far a result may be from the one that is kept."""

    #: of means, in standard deviations; of standard deviations, in themselves; of probabilities
    sd: float = 1e-7
    #: of log evidence and leave-one-out predictions, in nats
    nats: float = 1e-6


def tight(**numbers: Any) -> epfast.EP:
    """EP until rounding, in another order or with other numbers."""
    return epfast.EP(**{"sweeps": 2000, "tol": 1e-11} | numbers)


def path(kind: Any = epfast.EP, sweeps: int = 3, **numbers: Any) -> Any:
    """So many sweeps."""
    return kind(sweeps=sweeps, tol=0.0, **numbers)


# ---- data ----


class Data:
    """Rows and responses; the rows are off by a relative ``nudge``."""

    def __init__(self, nudge: float = 0.0) -> None:
        self.nudge = nudge

    def rows(self, n: int = 60, d: int = 4, seed: int = 0, scale: float = 1.0) -> np.ndarray:
        """Normal columns, and the last of ones."""
        rng = np.random.default_rng([seed, n, d])
        X = rng.normal(size=(n, d)) * scale
        X[:, -1] = scale
        return X * (1.0 + self.nudge * rng.normal(size=X.shape))

    def sparse_rows(self, n: int = 60, d: int = 6, seed: int = 0) -> sparse.csr_matrix:
        """A third of the entries."""
        X = self.rows(n, d, seed)
        X[:, :-1] *= np.random.default_rng([seed, 1]).random((n, d - 1)) < 0.4
        return sparse.csr_matrix(X)

    def kernel(self, n: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray, Any]:
        """A matrix between inputs, that with new inputs, and the latent values."""
        X = self.rows(n + NEW, 3, seed)[:, :2]
        K = 2.0 * np.exp(-0.5 * ((X[:, None] - X[None]) ** 2).sum(axis=2))
        f = 1.5 * np.sin(2.0 * X[:n, 0]) + X[:n, 1]
        return K[:n, :n] + 1e-3 * np.eye(n), K[n:, :n], (X[:n], f)


def latent(X: Any, seed: int = 0) -> np.ndarray:
    """Latent values at rows: of some size, whatever the columns, and not the same sign."""
    theta = np.random.default_rng([seed, 7]).normal(size=X.shape[1])
    h = np.asarray(X @ theta)
    return 1.2 * (h - h.mean()) / h.std() + 0.2


def labels(h: np.ndarray, seed: int = 0) -> np.ndarray:
    """-1 and +1, with noise."""
    return np.where(h + np.random.default_rng([seed, 8]).logistic(size=len(h)) > 0, 1.0, -1.0)


def noisy(h: np.ndarray, seed: int = 0) -> np.ndarray:
    """Numbers, a tenth of them outliers."""
    rng = np.random.default_rng([seed, 9])
    return h + np.where(rng.random(len(h)) < 0.1, 4.0, 0.5) * rng.normal(size=len(h))


def counts(h: np.ndarray, seed: int = 0) -> np.ndarray:
    """Poisson, of exp(h)."""
    return np.random.default_rng([seed, 10]).poisson(np.exp(h))


def shares(h: np.ndarray) -> np.ndarray:
    """Counts of trials, (n, 2)."""
    rng = np.random.default_rng(11)
    trials = rng.integers(1, 6, size=len(h))
    return np.column_stack([rng.binomial(trials, 1.0 / (1.0 + np.exp(-h))), trials])


def between(h: np.ndarray) -> np.ndarray:
    """Ends of intervals, (n, 2), a few of them infinite."""
    rng = np.random.default_rng(12)
    ends = np.column_stack([h - rng.exponential(size=len(h)), h + rng.exponential(size=len(h))])
    ends[::7, 0], ends[3::7, 1] = -np.inf, np.inf
    return ends


def times(h: np.ndarray) -> np.ndarray:
    """Positive numbers."""
    return np.exp(h) * np.random.default_rng(13).gamma(2.0, 0.5, size=len(h))


def ordered(h: np.ndarray) -> np.ndarray:
    """Classes 0, 1, 2."""
    return np.digitize(h + np.random.default_rng(14).normal(size=len(h)), (-1.0, 1.0))


def kinds(X: np.ndarray) -> np.ndarray:
    """Three classes, not in an order."""
    return np.argmax(X[:, :3] + np.random.default_rng(15).normal(size=(len(X), 3)), axis=1)


def _softplus(m: Any) -> Any:
    return np.logaddexp(0.0, -m)


def _probit_moments(m: Any, v: Any) -> tuple[Any, ...]:
    """Probit with noise of variance 1/4."""
    scale = np.sqrt(0.25 + v)
    z = m / scale
    ratio = np.exp(-0.5 * z * z - 0.5 * np.log(2.0 * np.pi) - log_ndtr(z))
    return log_ndtr(z), ratio / scale, -ratio * (z + ratio) / scale**2


#: of every loss of one latent value: an object, and what makes its responses
LOSSES: dict[str, tuple[Any, Callable[[np.ndarray], np.ndarray]]] = {
    "logistic": ("logistic", labels),
    "probit": ("probit", labels),
    "hinge": ("hinge", labels),
    "squared hinge": ("squared_hinge", labels),
    "quasi01": ("quasi01", labels),
    "noisy step": (epfast.NoisyStep(0.2), labels),
    "ramp": (epfast.PiecewiseLinear(knots=(-1.0, 1.0), slopes=(0.0, -1.0, 0.0), value=2.0), labels),
    "contaminated": ("contaminated", labels),
    "python": (epfast.CustomLoss(_softplus), labels),
    "python site": (epfast.CustomSite(_probit_moments), labels),
    "poisson": ("poisson", counts),
    "negative binomial": (losses.NegativeBinomial(2.0), counts),
    "binomial": ("binomial", shares),
    "gaussian": (losses.Gaussian(0.5), noisy),
    "student": (losses.StudentT(4.0, 0.7), noisy),
    "laplace": (losses.LaplaceNoise(0.7), noisy),
    "quantile": (losses.Quantile(0.8, 0.5), noisy),
    "censored": (losses.Censored(0.5, lower=-1.0), lambda h: np.maximum(noisy(h), -1.0)),
    "interval": (losses.Interval(0.5), between),
    "ordinal": ("ordinal", ordered),
    "ordinal logit": (losses.Ordinal((-1.0, 1.0), "logit"), ordered),
    "gamma": (losses.GammaNoise(2.0), times),
    "weibull": (losses.Weibull(1.5), times),
}


class Model:
    """Rows with responses of a loss, fits of which differ in one thing at a time."""

    def __init__(self, X: Any, loss: str, **common: Any) -> None:
        self.loss, response = LOSSES[loss]
        n = X.shape[0] - NEW
        self.X, self.new = X[:n], (X[n:],)
        self.h = latent(X)[:n]
        self.y = response(self.h)
        self.common = {"prior_variance": 2.0, "schedule": TIGHT} | common

    def fit(self, X: Any = None, y: Any = None, **given: Any) -> Any:
        """A posterior."""
        arguments = {"loss": self.loss} | self.common | given
        if {"prior_precision", "prior_covariance", "prior"} & set(given):
            del arguments["prior_variance"]
        rows = self.X if X is None else X
        return epfast.fit_linear(rows, self.y if y is None else y, **arguments)

    def __call__(self, name: str, X: Any = None, **given: Any) -> Fit:
        return Fit(name, lambda: self.fit(X, **given), self.new)


class Process:
    """A kernel matrix with responses of a loss."""

    def __init__(self, data: Data, loss: str, n: int = 40, **common: Any) -> None:
        self.loss, response = LOSSES[loss]
        self.K, self.K_new, (self.inputs, self.h) = data.kernel(n)
        self.y = response(self.h)
        self.new = (self.K_new, np.full(NEW, 2.0))
        self.common = {"schedule": TIGHT} | common

    def fit(self, K: Any = None, **given: Any) -> Any:
        """A posterior."""
        arguments = {"loss": self.loss} | self.common | given
        return epfast.fit_gp(self.K if K is None else K, self.y, **arguments)

    def __call__(self, name: str, K: Any = None, **given: Any) -> Fit:
        return Fit(name, lambda: self.fit(K, **given), self.new, self.K * self.K)


# ---- groups ----


def losses_of_rows(data: Data) -> Iterator[Fit]:
    """Every loss with a site per row and a full covariance."""
    for loss in LOSSES:
        yield Model(data.rows(65), loss)(loss, schedule=tight(order="sequential"))


def orders(data: Data) -> Iterator[Fit]:
    """Who goes when, damping and power; where sites stay positive, and where some do not."""
    for loss in ("logistic", "poisson", "student", "quasi01"):
        model = Model(data.rows(85), loss)
        for order in ("auto", "shuffled", "chunked", "parallel"):
            yield model(f"{loss}, {order}", schedule=tight(order=order))
        for numbers in ({"damping": 0.6}, {"power": 0.8}, {"power": 0.7, "order": "parallel"}):
            yield model(f"{loss}, {numbers}", schedule=tight(**numbers))
    yield Model(data.rows(755, 3), "probit")("auto, chunked", schedule=tight())
    yield Model(data.rows(755, 3), "probit")("threads", schedule=tight(), n_jobs=2)


def schemes_of_rows(data: Data) -> Iterator[Fit]:
    """How the moments of a row are found."""
    model = Model(data.rows(65), "logistic")
    given = {
        "laplace": schemes.Laplace(tol=1e-12),
        "quick laplace": schemes.QuickLaplace(),
        "quadrature": schemes.Quadrature(),
        "variational": schemes.Variational(),
        "variational, gamma 1.5": schemes.Variational(gamma=1.5),
    }
    for name, scheme in given.items():
        yield model(name, scheme=scheme)
    # that of samples and of the slope of a hinge have no fixed point here
    sampled = schemes.ImportanceSampling(samples=500, seed=3)
    yield model("importance", scheme=sampled, schedule=path(sweeps=1, order="sequential"))
    slope = schemes.QuickLaplace(curvature="slope")
    yield Model(data.rows(65), "hinge")("slope", scheme=slope, schedule=path(order="sequential"))


def rows(data: Data) -> Iterator[Fit]:
    """What X, y, weights, offset and prior may be."""
    for loss in ("logistic", "poisson"):
        X = data.rows(65)
        model = Model(X, loss)
        n, d = model.X.shape
        rng = np.random.default_rng(20)
        A = rng.normal(size=(d, d))
        matrix = np.eye(d) + 0.2 * A @ A.T
        priors: dict[str, dict[str, Any]] = {
            "vector": {"prior_variance": np.linspace(1.0, 5.0, d)},
            "precision": {"prior_precision": matrix},
            "covariance": {"prior_covariance": matrix},
            "mean": {"prior_mean": np.linspace(-1.0, 1.0, d)},
            "intercept": {"intercept": True},
            "intercept of a variance": {"intercept": 3.0},
            "offset": {"offset": rng.normal(size=n)},
            "whole weights": {"weights": 1.0 + np.arange(n) % 3},
            "weights below 1": {"weights": 0.2 + 0.1 * (np.arange(n) % 8)},
            "heavy rows": {"weights": np.where(np.arange(n) % 9 == 0, 9.0, 1.0)},
            "weights of 0": {"weights": np.arange(n) % 4 * 1.0},
            "beta": {"beta": 0.7},
        }
        for name, given in priors.items():
            yield model(f"{loss}, {name}", **given)
        together = {k: v for name in ("vector", "mean", "offset") for k, v in priors[name].items()}
        everything = together | {"weights": 0.3 + np.arange(n) % 3, "intercept": 100.0}
        yield model(f"{loss}, all of them", **everything)
        yield model(f"{loss}, float32", X=model.X.astype(np.float32))
        yield model(f"{loss}, Fortran", X=np.asfortranarray(model.X))
        repeated = np.repeat(np.arange(n), 1 + np.arange(n) % 3)
        yield Fit(
            f"{loss}, repeated rows",
            lambda m=model, r=repeated: m.fit(m.X[r], m.y[r]),
            model.new,
        )
        csr = Model(data.sparse_rows(65), loss)
        yield csr(f"{loss}, CSR")
        yield csr(f"{loss}, CSR, all of them", intercept=True, weights=0.3 + np.arange(n) % 3)
        yield csr(f"{loss}, CSR, chunked", schedule=tight(order="chunked"))
    model = Model(data.rows(65), "logistic")
    yield Fit("memory map", lambda: mapped(model), model.new)


def mapped(model: Model) -> Any:
    """A fit of rows in a file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rows.npy")
        np.save(file, model.X)
        return model.fit(np.load(file, mmap_mode="r"))


def wide(data: Data) -> Iterator[Fit]:
    """Fewer rows than columns."""
    X = data.rows(20 + NEW, 40, scale=0.4)
    for loss in ("probit", "student", "poisson"):
        yield Model(X, loss)(f"{loss}")
    model = Model(X, "logistic")
    for order in ("shuffled", "parallel"):
        yield model(order, schedule=tight(order=order))
    yield model("power", schedule=tight(power=0.8))
    yield model("vector and mean", prior_variance=np.linspace(0.5, 2.0, 40), prior_mean=np.ones(40))
    yield model("precision", prior_precision=np.eye(40) + 0.5)
    yield model("intercept, offset", intercept=True, offset=np.linspace(-1.0, 1.0, 20))
    yield model("weights", weights=0.4 + np.arange(20) % 3)
    yield Model(data.sparse_rows(20 + NEW, 40), "logistic")("CSR")
    yield model("one pass", schedule=epfast.ADF())
    yield Fit("remove", lambda: model.fit().remove([2, 5]), model.new)
    yield Fit(
        "partial_fit",
        lambda: model.fit(model.X[:15], model.y[:15]).partial_fit(
            model.X[15:], model.y[15:], schedule=TIGHT
        ),
        model.new,
    )


def one_pass(data: Data) -> Iterator[Fit]:
    """ADF: the path."""
    once = epfast.ADF(order="sequential")
    for loss in ("logistic", "poisson", "student", "hinge"):
        yield Model(data.rows(65), loss)(f"{loss}, full", schedule=once)
        yield Model(data.rows(65), loss)(
            f"{loss}, diagonal",
            schedule=epfast.ADF(order="sequential", warm_up=0),
            posterior="factorized",
        )
    model = Model(data.rows(65), "logistic")
    n = len(model.X)
    for name, schedule in {
        "two passes": epfast.ADF(passes=2, order="sequential"),
        "shuffled": epfast.ADF(order="shuffled", seed=3),
        "power": epfast.ADF(power=0.8, order="sequential"),
    }.items():
        yield model(name, schedule=schedule)
    yield model("weights, offset", schedule=once, weights=0.3 + np.arange(n) % 3, offset=model.h)
    yield Model(data.sparse_rows(65), "logistic")("CSR", schedule=once)
    yield model("batches", schedule=once, batch_size=10, scheme=schemes.Laplace(tol=1e-12))
    yield model("batches, quick", schedule=once, batch_size=10, scheme="quick_laplace")
    yield Fit("chunks", lambda: in_chunks(model, schedule=once, posterior="full"), model.new)
    yield Fit("new rows", lambda: then(model, once), model.new)
    zero = {"schedule": epfast.ADF(order="sequential", warm_up=0), "posterior": "factorized"}
    unit = Model(data.rows(65, scale=0.5), "logistic")
    yield Fit("chunks, diagonal", lambda: in_chunks(model, **zero), model.new)
    for scheme in ("laplace", "quick_laplace", "quadrature", "variational"):
        given: Any = schemes.Laplace(tol=1e-12) if scheme == "laplace" else scheme
        yield unit(f"{scheme}, diagonal batches", scheme=given, batch_size=6, **zero)
    thin = Model(data.sparse_rows(65), "logistic")
    yield thin("CSR, diagonal", **zero)
    yield thin("CSR, diagonal batches", batch_size=6, scheme=schemes.Laplace(tol=1e-12), **zero)


def in_chunks(model: Model, **given: Any) -> Any:
    """A fit of an iterable."""
    cuts = (0, 11, 40, len(model.X))
    pairs = [(model.X[i:j], model.y[i:j]) for i, j in itertools.pairwise(cuts)]
    return epfast.fit_linear(iter(pairs), loss=model.loss, prior_variance=2.0, **given)


def then(model: Model, schedule: Any) -> Any:
    """ADF of the second half after the first."""
    first = model.fit(model.X[:30], model.y[:30], schedule=schedule)
    return first.partial_fit(model.X[30:], model.y[30:], schedule=schedule)


def shared(data: Data) -> Iterator[Fit]:
    """Sites that rows share: the path of three sweeps, and the fixed point."""
    for loss in ("probit", "poisson"):
        model = Model(data.rows(45), loss)
        groups = np.arange(40) % 3
        for kind, given in (
            (epfast.SEP, {}),
            (epfast.AEP, {}),
            (epfast.DSEP, {"groups": 4}),
            (epfast.DAEP, {"groups": 4}),
        ):
            name = f"{loss}, {kind.__name__}"
            yield model(name, schedule=path(kind, **given))
            yield model(f"{name}, numbers", schedule=path(kind, **given, damping=0.7, power=0.8))
        yield model(f"{loss}, batches", schedule=path(epfast.SEP, batch=5))
        yield model(f"{loss}, fixed point", schedule=epfast.AEP(sweeps=2000, tol=1e-10))
        yield model(
            f"{loss}, fixed point of groups",
            schedule=epfast.DAEP(groups=groups, sweeps=2000, tol=1e-10),
        )
        yield model(f"{loss}, ends over whole groups", schedule=epfast.SEP(sweeps=2000, tol=1e-10))
        yield model(
            f"{loss}, parallel groups",
            schedule=path(epfast.DSEP, groups=groups, order="parallel"),
        )
        yield model(f"{loss}, shuffled", schedule=path(epfast.SEP, order="shuffled", seed=4))
        yield model(f"{loss}, weights", schedule=path(epfast.SEP), weights=0.3 + np.arange(40) % 3)
        yield Model(data.sparse_rows(45), loss)(f"{loss}, CSR", schedule=path(epfast.AEP))


def shards(data: Data) -> Iterator[Fit]:
    """DEP: a fixed point of EP, but for what one sweep makes."""
    model = Model(data.rows(65), "logistic")
    inner = epfast.EP(sweeps=50, tol=1e-12)
    common: dict[str, Any] = {"sweeps": 500, "tol": 1e-10, "inner": inner}
    by_label = np.arange(60) % 4
    for name, schedule in {
        "sequential": epfast.DEP(shards=4, **common),
        "parallel": epfast.DEP(shards=by_label, order="parallel", **common),
        "shuffled": epfast.DEP(shards=3, order="shuffled", **common),
        "power": epfast.DEP(
            shards=4, sweeps=500, tol=1e-10, inner=epfast.EP(sweeps=50, tol=1e-12, power=0.8)
        ),
        "one sweep of ADF": epfast.DEP(
            shards=4, sweeps=1, tol=0.0, order="parallel", inner=epfast.ADF()
        ),
    }.items():
        yield model(name, schedule=schedule)
    yield model(
        "weights, offset",
        schedule=epfast.DEP(shards=4, **common),
        weights=0.3 + np.arange(60) % 3,
        offset=np.linspace(-1.0, 1.0, 60),
    )
    yield Model(data.sparse_rows(65), "poisson")("CSR", schedule=epfast.DEP(shards=3, **common))
    yield model(
        "diagonal",
        schedule=epfast.DEP(shards=4, order="parallel", **common),
        posterior="factorized",
    )
    yield Fit(
        "threads, parallel",
        lambda: on_threads(model, schedule=epfast.DEP(shards=4, order="parallel", **common)),
        model.new,
    )


def on_threads(model: Model, **given: Any) -> Any:
    """A fit with an executor."""
    with ThreadPoolExecutor(2) as pool:
        return model.fit(executor=pool, **given)


LAPLACE = schemes.Laplace(tol=1e-13)


def batches(data: Data) -> Iterator[Fit]:
    """A site per minibatch, full covariance: Laplace propagation."""
    for loss in ("logistic", "poisson", "squared hinge"):
        model = Model(data.rows(67), loss, batch_size=10, scheme=LAPLACE)
        yield model(loss)
        yield model(f"{loss}, parallel", schedule=tight(order="parallel", damping=0.7))
        yield model(f"{loss}, committee", schedule=path(sweeps=1, order="parallel"))
    model = Model(data.rows(67), "logistic", batch_size=10, scheme=LAPLACE)
    n = len(model.X)
    yield model("quick", scheme="quick_laplace")
    yield model("power", schedule=tight(power=0.8))
    yield model("shuffled", schedule=tight(order="shuffled"))
    yield model("weights", weights=0.3 + np.arange(n) % 3)
    yield model("offset, intercept", offset=np.linspace(-1.0, 1.0, n), intercept=True)
    yield model("precision", prior_precision=np.eye(4) + 0.3)
    yield Model(data.sparse_rows(67), "logistic", batch_size=10, scheme=LAPLACE)("CSR")
    yield Model(data.rows(67), "hinge", batch_size=10)(
        "slope", scheme=schemes.QuickLaplace(curvature="slope"), schedule=path()
    )
    yield Fit(
        "threads",
        lambda: on_threads(model, schedule=tight(order="parallel", damping=0.7)),
        model.new,
    )


def diagonal_batches(data: Data) -> Iterator[Fit]:
    """A site per minibatch, diagonal covariance: Roche's quadrature."""
    common: dict[str, Any] = {"posterior": "factorized", "batch_size": 6}
    for loss in ("logistic", "probit", "poisson"):
        model = Model(data.rows(65, scale=0.5), loss, **common)
        for scheme in (LAPLACE, "quick_laplace", "quadrature", "variational"):
            if (loss, scheme) != ("poisson", "quadrature"):  # its sweeps do not converge
                name = scheme if isinstance(scheme, str) else "laplace"
                yield model(f"{loss}, {name}", scheme=scheme)
    for rule in ("nonnegative", "keep"):  # with "keep" a quarter of the precisions are negative
        ramp = Model(data.rows(65, scale=0.3), "ramp", scheme="variational", **common)
        yield ramp(f"ramp, {rule}", schedule=tight(site_rule=rule))
    model = Model(data.rows(65, scale=0.5), "logistic", scheme="variational", **common)
    for name, given in {
        "parallel": {"schedule": tight(order="parallel", damping=0.5)},
        "shuffled": {"schedule": tight(order="shuffled")},
        "damping": {"schedule": tight(damping=0.6)},
        "power": {"schedule": tight(power=0.8)},
        "keep": {"schedule": tight(site_rule="keep")},
        "floor": {"schedule": tight(site_rule="floor")},
        "weights": {"weights": 0.3 + np.arange(60) % 3},
        "offset, intercept": {"offset": np.linspace(-1.0, 1.0, 60), "intercept": True},
        "vector and mean": {
            "prior_variance": np.linspace(0.5, 3.0, 4),
            "prior_mean": np.linspace(-1.0, 1.0, 4),
        },
        "newton": {"scheme": schemes.Variational(solver="newton")},
        "fifth": {"scheme": schemes.Variational(rule="fifth")},
        "gamma": {"scheme": schemes.Variational(gamma=1.8)},
        "shards": {"schedule": epfast.DEP(shards=2, sweeps=500, tol=1e-10)},
    }.items():
        yield model(name, **given)
    csr = Model(data.sparse_rows(65), "logistic", **common)
    yield csr("CSR", scheme=LAPLACE)
    yield csr("CSR, variational", scheme="variational")
    yield csr("CSR, weights", scheme=LAPLACE, weights=0.3 + np.arange(60) % 3)


def diagonal_rows(data: Data) -> Iterator[Fit]:
    """A site per row, diagonal covariance."""
    for loss in ("logistic", "probit", "poisson", "student", "hinge", "ordinal"):
        yield Model(data.rows(65), loss, posterior="factorized")(loss)
        yield Model(data.sparse_rows(65), loss, posterior="factorized")(f"{loss}, CSR")
    model = Model(data.rows(65), "logistic", posterior="factorized")
    for name, given in {
        "parallel": {"schedule": tight(order="parallel")},
        "sequential": {"schedule": tight(order="sequential")},
        "shuffled": {"schedule": tight(order="shuffled")},
        "power": {"schedule": tight(power=0.8)},
        "weights": {"weights": 0.3 + np.arange(60) % 3},
        "offset, intercept": {"offset": np.linspace(-1.0, 1.0, 60), "intercept": True},
        "mean": {"prior_mean": np.linspace(-1.0, 1.0, 4)},
        "laplace": {"scheme": LAPLACE},
    }.items():
        yield model(name, **given)


def latents(data: Data) -> Iterator[Fit]:
    """Several latent values per row."""
    X = data.rows(65)
    y = kinds(X[:60])
    common = {"prior_variance": 2.0, "schedule": TIGHT}
    cases: dict[str, dict[str, Any]] = {
        "": {},
        "parallel": {"schedule": tight(order="parallel", damping=0.5)},
        "shuffled": {"schedule": tight(order="shuffled")},
        "chunked": {"schedule": tight(order="chunked")},
        "damping": {"schedule": tight(damping=0.7)},
        "vector, intercept": {"prior_variance": np.linspace(0.5, 2.0, 4), "intercept": True},
        "mean": {"prior_mean": np.linspace(-1.0, 1.0, 4)},
        "whole weights": {"weights": 1.0 + np.arange(60) % 3},
    }
    for correlated in (False, True):
        loss = losses.Multiclass(correlated=correlated)
        for name, given in cases.items():
            if correlated and name in ("shuffled", "chunked"):  # refused
                continue
            yield Fit(
                f"{'joint' if correlated else 'product'}, {name}",
                lambda given=given, loss=loss: epfast.fit_linear(
                    X[:60], y, loss=loss, **common | given
                ),
                (X[60:],),
            )
        yield Fit(
            f"CSR, {'joint' if correlated else 'product'}",
            lambda loss=loss: epfast.fit_linear(sparse.csr_matrix(X[:60]), y, loss=loss, **common),
            (X[60:],),
        )
    z = noisy(latent(X))[:60]
    for name, given in list(cases.items())[:4]:
        yield Fit(
            f"heteroscedastic, {name}",
            lambda given=given: epfast.fit_linear(
                X[:60], z, loss=losses.Heteroscedastic(), **common | given
            ),
            (X[60:],),
        )
    K, K_new, (_, h) = data.kernel()
    classes = ordered(h)
    for name, (loss, response) in {
        "process, classes": (losses.Multiclass(correlated=False), classes),
        "process, heteroscedastic": (losses.Heteroscedastic(), noisy(h)),
    }.items():
        for order in ("auto", "sequential", "parallel"):
            schedule = tight(order=order, damping=0.5 if order == "parallel" else None)
            yield Fit(
                f"{name}, {order}",
                lambda loss=loss, response=response, schedule=schedule: epfast.fit_gp(
                    K, response, loss=loss, schedule=schedule
                ),
                (K_new, np.full(NEW, 2.0)),
            )
    yield Fit(
        "process, a matrix for each",
        lambda: epfast.fit_gp(
            [K, 0.5 * K + np.eye(40), K], classes, loss="multiclass", schedule=TIGHT
        ),
    )


def prior_sites(data: Data) -> Iterator[Fit]:
    """A prior of each weight that is a site."""
    X = data.rows(65, 6)
    for name, prior in {
        "spike and slab": losses.SpikeAndSlab(0.4, 2.0),
        "laplace": losses.LaplacePrior(0.7),
        "student": losses.StudentTPrior(4.0, 0.7),
        "horseshoe": losses.Horseshoe(0.5),
    }.items():
        for loss in ("gaussian", "logistic"):
            yield Model(X, loss)(f"{name}, {loss}", prior=prior)
        wide_rows = data.rows(20 + NEW, 30, scale=0.5)
        yield Model(wide_rows, "gaussian")(f"{name}, wide", prior=prior)
    model = Model(X, "poisson")
    slab = losses.SpikeAndSlab(0.4, 2.0)
    yield model("counts", prior=slab)
    yield model("intercept", X=model.X[:, :-1], prior=slab, intercept=True)._replace(
        new=(X[60:, :-1],)
    )
    yield model(
        "weights, offset", prior=slab, weights=0.3 + np.arange(60) % 3, offset=0.1 * model.h
    )
    yield model("damping", prior=slab, schedule=tight(damping=0.7))
    yield Model(data.sparse_rows(65), "gaussian")("CSR", prior=losses.LaplacePrior(0.7))


def processes(data: Data) -> Iterator[Fit]:
    """A kernel matrix."""
    concave = ("logistic", "probit", "poisson", "ordinal", "interval", "gaussian", "python")
    for loss in concave:
        yield Process(data, loss)(loss)
    model, n = Process(data, "probit"), 40
    for name, given in {
        "sequential": {"schedule": tight(order="sequential")},
        "shuffled": {"schedule": tight(order="shuffled")},
        "parallel": {"schedule": tight(order="parallel")},
        "power": {"schedule": tight(power=0.8)},
        "damping": {"schedule": tight(damping=0.7)},
        "jitter": {"jitter": 0.1},
        "offset": {"offset": np.linspace(-1.0, 1.0, n)},
        "weights": {"weights": 0.3 + np.arange(n) % 3},
        "beta": {"beta": 0.7},
        "laplace": {"scheme": LAPLACE},
        "quick": {"scheme": "quick_laplace"},
    }.items():
        yield model(name, **given)
    yield Process(data, "logistic", n=135)("joint steps")
    yield Process(data, "student", n=135)("joint steps, student")
    for loss in ("student", "quasi01", "contaminated"):
        other = Process(data, loss)
        yield other(f"{loss}, sweeps", schedule=tight(order="sequential", damping=0.8))
        few = epfast.EP(sweeps=2, tol=1e-12, order="sequential")
        yield other(f"{loss}, double loop", schedule=epfast.DoubleLoop(start=few, match=1e-9))
    relaxed = Process(data, "quasi01")
    for objective in ("sequential", "joint", "printed"):
        # the longer the path of "printed", the more it makes of rounding
        sweeps = 1 if objective == "printed" else 4
        yield relaxed(
            f"relaxed, {objective}",
            scheme=schemes.Relaxed(0.03, objective),
            schedule=path(sweeps=sweeps, order="sequential"),
        )
    yield relaxed(
        "relaxed, frozen, damped",
        scheme=schemes.Relaxed(0.03, freeze=2),
        schedule=path(sweeps=4, order="sequential", damping=0.7),
    )


def low_rank(data: Data) -> Iterator[Fit]:
    """A factor of a kernel matrix."""

    def reduced(model: Process, name: str, K: Any = None, **given: Any) -> Fit:
        def call() -> Any:
            post = model.fit(
                K, **{} if isinstance(K, epfast.LowRankFactor) else {"rank": 8}, **given
            )
            return At(post, (model.K_new[:, post.pivots], model.new[1]))

        return Fit(name, call)

    model = Process(data, "logistic")
    for name, given in {
        "rows": {},
        "chunked": {"schedule": tight(order="chunked")},
        "parallel": {"schedule": tight(order="parallel")},
        "power": {"schedule": tight(power=0.8)},
        "one pass": {"schedule": epfast.ADF(order="sequential")},
        "SEP": {"schedule": path(epfast.SEP)},
        "AEP": {"schedule": epfast.AEP(sweeps=2000, tol=1e-10)},
        "DSEP": {"schedule": path(epfast.DSEP, groups=3)},
        "DAEP": {"schedule": path(epfast.DAEP, groups=3)},
        "shards": {"schedule": epfast.DEP(shards=3, sweeps=500, tol=1e-10)},
        "batches": {"batch_size": 8, "scheme": LAPLACE},
        "offset": {"offset": np.linspace(-1.0, 1.0, 40)},
        "weights": {"weights": 0.3 + np.arange(40) % 3},
        "rank_tol": {"rank_tol": 0.1},
    }.items():
        yield reduced(model, name, **given)
    for loss in ("poisson", "student"):
        yield reduced(Process(data, loss), loss)
    columns = epfast.KernelColumns.rbf(model.inputs, length_scale=1.0, variance=2.0)
    yield reduced(model, "columns", columns)
    yield reduced(model, "factor", epfast.incomplete_cholesky(model.K, 6))


def later(data: Data) -> Iterator[Fit]:
    """Starts, more rows, and fewer rows."""
    for loss in ("logistic", "student"):
        model = Model(data.rows(65), loss)

        def start(model: Model = model) -> Any:
            first = model.fit(schedule=path(order="sequential"))
            return model.fit(start=first)

        def more(model: Model = model) -> Any:
            first = model.fit(model.X[:50], model.y[:50])
            return first.partial_fit(model.X[50:], model.y[50:], schedule=TIGHT)

        def fewer(model: Model = model) -> Any:
            return model.fit().remove([1, 5, 20])

        for call in (start, more, fewer):
            yield Fit(f"{loss}, {call.__name__}", call, model.new)

    model = Model(data.rows(65), "logistic", posterior="factorized")
    yield Fit("diagonal, start", lambda: model.fit(start=model.fit(schedule=path())), model.new)
    process = Process(data, "probit")
    yield Fit(
        "process, start", lambda: process.fit(start=process.fit(schedule=path())), process.new
    )
    weighted = Model(data.rows(65), "logistic", weights=0.3 + np.arange(60) % 3)
    yield Fit("weights, remove", lambda: weighted.fit().remove([1, 5, 20]), weighted.new)
    kept = Model(data.sparse_rows(65), "poisson")
    yield Fit("CSR, remove", lambda: kept.fit().remove([1, 5, 20]), kept.new)


def estimators(data: Data) -> Iterator[Fit]:
    """The faces of scikit-learn, with given hyper-parameters."""
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    X = data.rows(65)[:, :-1]
    h = latent(X)
    y, z, classes = labels(h), noisy(h), ordered(h)
    names = np.where(y > 0, "yes", "no")
    fixed: dict[str, Any] = {"prior_variance": 2.0, "schedule": TIGHT}
    new = (X[60:],)
    for name, given in {
        "classifier": {},
        "classifier, probit, balanced": {"loss": "probit", "class_weight": "balanced"},
        "classifier, diagonal": {"posterior": "factorized"},
        "classifier without intercept": {"fit_intercept": False},
    }.items():
        yield Fit(
            name,
            lambda given=given: epfast.LinearClassifier(**fixed | given).fit(X[:60], names[:60]),
            new,
        )
    yield Fit(
        "three classes", lambda: epfast.LinearClassifier(**fixed).fit(X[:60], classes[:60]), new
    )
    weights = 0.3 + np.arange(60) % 3
    yield Fit(
        "classifier, weights",
        lambda: epfast.LinearClassifier(**fixed).fit(X[:60], names[:60], sample_weight=weights),
        new,
    )
    for loss in (losses.Gaussian(0.5), losses.StudentT(4.0, 0.7)):
        yield Fit(
            f"regressor, {loss!r}",
            lambda loss=loss: epfast.LinearRegressor(loss=loss, learn=(), **fixed).fit(
                X[:60], z[:60]
            ),
            new,
        )
    kernel = ConstantKernel(2.0) * RBF(1.3)
    common: dict[str, Any] = {"kernel": kernel, "optimizer": None, "schedule": TIGHT}
    yield Fit(
        "process", lambda: epfast.GPClassifier(**common).fit(X[:60, :2], names[:60]), (X[60:, :2],)
    )
    yield Fit(
        "process, three classes",
        lambda: epfast.GPClassifier(**common).fit(X[:60, :2], classes[:60]),
        (X[60:, :2],),
    )
    yield Fit(
        "process of numbers",
        lambda: epfast.GPRegressor(loss=losses.Gaussian(0.5), learn=(), **common).fit(
            X[:60, :2], z[:60]
        ),
        (X[60:, :2],),
    )


def defaults(data: Data) -> Iterator[Fit]:
    """Calls of README and docstrings as they stand, which stop at the default tolerance."""
    rng = np.random.default_rng(0)
    ring = rng.uniform(-2, 2, size=(150, 2)) * (1.0 + data.nudge * rng.normal(size=(150, 2)))
    y = np.where(np.hypot(*ring.T) < 1.2, 1, -1)
    yield Fit("ring", lambda: epfast.fit_linear(ring, y, intercept=True), (ring[:NEW],))
    x = np.linspace(-3, 3, 30)
    K = 4.0 * np.exp(-0.5 * np.subtract.outer(x, x) ** 2)
    yield Fit(
        "wave",
        lambda: epfast.fit_gp(K, np.where(np.sin(2 * x) > 0, 1, -1)),
        (K[:NEW], np.full(NEW, 4.0)),
    )
    for loss in ("logistic", "hinge", "poisson", "student"):
        yield Model(data.rows(85), loss)(f"{loss}", schedule=epfast.EP())
    diagonal = Model(data.rows(85), "logistic", posterior="factorized")
    yield diagonal("diagonal", schedule=epfast.EP())
    yield diagonal("diagonal, one pass", schedule=epfast.ADF())
    yield Process(data, "student")("process, outliers", schedule=None)


def learned(data: Data) -> Iterator[Fit]:
    """Estimators at the best of their hyper-parameters."""
    from sklearn.datasets import load_breast_cancer
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel
    from sklearn.preprocessing import StandardScaler

    kernel = ConstantKernel(4.0, (1e-2, 1e5)) * RBF(1.0, (1e-2, 1e2))
    X = data.rows(105, 5)[:, :-1]
    h = latent(X)
    train, new = X[:100], X[100:]
    for name, model, response in (
        ("LinearClassifier", epfast.LinearClassifier(standardize=False), labels(h)),
        ("LinearClassifier, three classes", epfast.LinearClassifier(standardize=False), ordered(h)),
        ("LinearRegressor", epfast.LinearRegressor(integrate=False, standardize=False), noisy(h)),
        (
            "LinearRegressor, counts",
            epfast.LinearRegressor(loss="poisson", integrate=False, standardize=False),
            counts(h),
        ),
    ):
        yield Fit(name, lambda m=model, r=response: m.fit(train, r[:100]), (new,))
    for name, model, response in (
        ("GPClassifier", epfast.GPClassifier(kernel, integrate=False), labels(h)),
        ("GPRegressor", epfast.GPRegressor(kernel, integrate=False), noisy(h)),
    ):
        yield Fit(name, lambda m=model, r=response: m.fit(train[:60, :2], r[:60]), (new[:, :2],))
    cells, benign = load_breast_cancer(return_X_y=True)
    cells = StandardScaler().fit_transform(cells)
    yield Fit("README", lambda: epfast.LinearClassifier().fit(cells, benign), (cells[:NEW],))


def averages(data: Data) -> Iterator[Fit]:
    """Averages over hyper-parameters, by each strategy and of each wing."""
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    half, n = priors.HalfNormal(1.0), 60
    plain, level = data.rows(n + NEW, 2, 3), np.arange(n + NEW) % 5
    effects = np.eye(5)[level]
    X = np.column_stack([plain, effects, effects * plain[:, :1]])
    h = latent(plain) + np.linspace(-1.0, 1.0, 5)[level] * (1.0 + plain[:, 0])
    train, new = X[:n], (X[n:],)
    sds = {"1|g": (slice(2, 7), half), "x|g": (slice(7, 12), half)}
    one, noise = {"1|g": sds["1|g"]}, {"learn": {"sd": half}}
    for name, loss, response, given in (
        ("an sd and noise", "gaussian", noisy(h), {"sds": one, **noise}),
        ("the mode", "gaussian", noisy(h), {"sds": one, "strategy": "eb", **noise}),
        ("three by ccd", "gaussian", noisy(h), {"sds": sds, "strategy": "ccd", **noise}),
        ("three by sobol", "gaussian", noisy(h), {"sds": sds, "strategy": "sobol", **noise}),
        ("labels", "logistic", labels(h), {"sds": sds, "intercept": True}),
        ("counts with weights", "poisson", counts(h), {"sds": one, "weights": 1.0 + level[:n]}),
        (
            "correlated effects",
            "probit",
            labels(h),
            {"sds": sds, "correlations": {("1|g", "x|g"): priors.LKJ(2.0)}},
        ),
    ):
        yield Fit(
            name,
            lambda loss=loss, y=response[:n], given=given: epfast.fit_hyper(
                train, y, loss=loss, **given
            ),
            new,
        )
    rows, inputs = plain[:30, :1], (plain[n:, :1],)
    curve = np.sin(2.0 * plain[:30, 0])
    kernel = ConstantKernel(1.0) * RBF(1.0)
    over = {"length_scale": priors.Gamma(3.0, 2.0), "sd": priors.HalfNormal(2.0)}
    for name, loss, response, given in (
        ("a process and noise", "gaussian", noisy(curve), noise),
        ("a process of labels", "probit", labels(curve), {}),
    ):
        yield Fit(
            name,
            lambda loss=loss, y=response, given=given: epfast.fit_hyper_gp(
                kernel, rows, y, loss=loss, priors=over, **given
            ),
            inputs,
        )
    for name, model, response in (
        ("LinearRegressor", epfast.LinearRegressor(integrate=True, standardize=False), noisy(h)),
        ("LinearClassifier", epfast.LinearClassifier(integrate=True, standardize=False), labels(h)),
    ):
        yield Fit(name, lambda m=model, r=response: m.fit(train, r[:n]).posterior_, new)


def graphs(data: Data) -> Iterator[Fit]:
    """Graphs of all kinds of factors and beliefs, by each store."""
    stored = {
        "fixed point": tight(order="sequential"),
        "damped": path(damping=0.7, order="parallel"),
        "one pass": epfast.ADF(),
    }
    one = {"one site": path(epfast.SEP), "averaged": path(epfast.AEP)}
    for make in (*models.RECORDED.values(), models.shared):
        for how, schedule in (stored | (one if make is models.shared else {})).items():
            graph = make(np.random.default_rng(3))
            yield Fit(f"{make.__name__}, {how}", lambda g=graph, how=schedule: g.fit(how))


def networks(data: Data) -> Iterator[Fit]:
    """Networks and mixtures of Gaussians, by each store."""
    X = data.rows(40 + NEW, 3)[:, :2]
    h = latent(X)
    rows, new = X[:40], (X[40:],)
    for how, schedule in (
        ("sweeps", path()),
        ("one pass", epfast.ADF()),
        ("one site", path(epfast.SEP)),
        ("averaged", path(epfast.AEP)),
    ):
        for loss, y in (("gaussian", noisy(h)), ("probit", labels(h))):
            yield Fit(
                f"network, {loss}, {how}",
                lambda y=y, loss=loss, how=schedule: epfast.fit_network(
                    rows, y[:40], hidden=(3,), loss=loss, schedule=how
                ),
                new,
            )
        for known in (0.5, None):
            yield Fit(
                f"mixture, {known}, {how}",
                lambda known=known, how=schedule: epfast.fit_mixture(rows, 2, known, schedule=how),
                new,
            )


def badly_conditioned(data: Data) -> Iterator[Fit]:
    """Columns that are nearly the same, under a wide prior.

    What is kept is the fit of the same model in other coordinates, where nothing is lost: of the
    sum of both weights, and of the second times the distance of the columns.
    """
    for loss in ("logistic", "probit", "poisson"):
        for apart, variance in ((1e-5, 1e6), (1e-6, 1e8), (1e-7, 1e10)):
            X = data.rows(65)
            prior = variance * np.eye(4)
            prior[:2, :2] = variance * np.array([[2.0, apart], [apart, apart**2]])
            good = Model(X, loss)
            X = X.copy()
            X[:, 1] = X[:, 0] + apart * X[:, 1]
            bad = Model(X, loss, prior_variance=variance, schedule=epfast.EP())
            bad.y = good.y
            yield bad(f"{loss}, {apart:g}")._replace(truth=good("", prior_covariance=prior))


GROUPS: dict[str, tuple[Callable[[Data], Iterator[Fit]], Bounds]] = {
    "losses": (losses_of_rows, Bounds()),
    "orders": (orders, Bounds()),
    "schemes": (schemes_of_rows, Bounds()),
    "rows": (rows, Bounds()),
    "wide": (wide, Bounds()),
    "one pass": (one_pass, Bounds()),
    "shared": (shared, Bounds()),
    "shards": (shards, Bounds()),
    "batches": (batches, Bounds()),
    "diagonal batches": (diagonal_batches, Bounds()),
    "diagonal rows": (diagonal_rows, Bounds()),
    "latents": (latents, Bounds()),
    "prior sites": (prior_sites, Bounds()),
    "processes": (processes, Bounds()),
    "low rank": (low_rank, Bounds()),
    "graphs": (graphs, Bounds()),
    "networks": (networks, Bounds()),
    "later": (later, Bounds()),
    "estimators": (estimators, Bounds()),
    # two fits that stop at tol=1e-5 may be some times that apart
    "defaults": (defaults, Bounds(1e-4, 1e-4)),
    # a search of the evidence finds a variance to some 1e-3 of itself, which is 7e-4 sd of a mean
    "learned": (learned, Bounds(5e-3, 1e-4)),
    # the points of an average are about a mode that a search finds
    "averages": (averages, Bounds(1e-4, 1e-4)),
    # of a sweep as it runs: 4e-6 sd, 8e-5 nats; of a q rebuilt from its sites, up to 2e-3 nats
    "badly conditioned": (badly_conditioned, Bounds(1e-4, 2e-3)),
}


# ---- what is looked at ----


class At(NamedTuple):
    """A result whose new rows depend on it."""

    result: Any
    new: tuple[Any, ...]


#: what a class does not have, or not for this loss
ABSENT = (AttributeError, FloatingPointError, NotImplementedError, TypeError, ValueError)
Numbers = dict[str, np.ndarray]


def numbers(fit: Fit) -> tuple[Numbers, bool]:
    """What a fit gives, by the name of each quantity, and whether it says that it converged."""
    result, new = fit.call(), fit.new
    if isinstance(result, At):
        result, new = result
    found: Numbers = {}

    def take(name: str, compute: Callable[[], Any]) -> None:
        try:
            value = compute()
        except ABSENT:
            return
        if isinstance(value, tuple):
            found[f"{name} mean"], found[f"{name} variance"] = (np.ravel(part) for part in value)
        elif np.size(value) and np.asarray(value).dtype.kind in "fiu":
            found[name] = np.ravel(np.asarray(value, dtype=np.float64))

    for name in ("mean", "variance", "log_evidence", "log_evidence_", "inclusion_probability"):
        take(name, lambda name=name: getattr(result, name))
    take("beliefs", lambda: np.arcsinh(result.state.beliefs))  # as logs, where they are large
    take("hyper", lambda: result.hyper.to_numpy(np.float64))
    take("loss_gradient", lambda: list(result.loss_gradient().values()))
    if fit.slope is not None:
        take("gradient", lambda: result.log_evidence_gradient(fit.slope))
    take("loo", lambda: result.loo_log_predictive()[::3])
    if new:
        take("latent", lambda: result.predict_latent(*new))
        take("proba", lambda: result.predict_proba(*new))
    if new and "proba" not in found:
        take("predict mean", lambda: result.predict(*new))
        take("predict variance", lambda: result.predict_variance(*new))
    return found, bool(getattr(result, "converged", getattr(result, "converged_", True)))


def distances(kept: Numbers, found: Numbers, bounds: Bounds) -> dict[str, float]:
    """How far each quantity is from the one that is kept, in units of its bound."""
    apart = {}
    for name, old in kept.items():
        new = found.get(name, np.empty(0))
        if new.shape != old.shape or not np.array_equal(np.isfinite(new), np.isfinite(old)):
            apart[name] = np.inf
            continue
        bound: Any = bounds.nats
        if name.endswith("mean"):
            variance = kept.get(name.replace("mean", "variance"), np.ones(1))
            bound = bounds.sd * np.sqrt(variance)
        elif name.endswith("variance"):
            bound = 2.0 * bounds.sd * old
        elif "proba" in name:
            bound = bounds.sd
        gap = np.where(np.isfinite(old), np.abs(new - old) / bound, 0.0)
        apart[name] = float(gap.max(initial=0.0))
    return apart


def kept() -> dict[str, dict[str, Numbers]]:
    """What the file holds: group, fit, quantity."""
    with np.load(FILE) as file:
        parts = np.split(file["numbers"], np.cumsum(file["sizes"])[:-1])
        names = file["names"]
    found: dict[str, dict[str, Numbers]] = {}
    for name, part in zip(names, parts, strict=True):
        group, fit, quantity = str(name).split(" | ")
        found.setdefault(group, {}).setdefault(fit, {})[quantity] = part
    return found


def write(found: dict[str, dict[str, Numbers]]) -> None:
    """Keep results."""
    flat = {
        f"{group} | {fit} | {quantity}": value
        for group, fits in found.items()
        for fit, quantities in fits.items()
        for quantity, value in quantities.items()
    }
    np.savez_compressed(
        FILE,
        names=np.array(list(flat)),
        sizes=np.array([value.size for value in flat.values()]),
        numbers=np.concatenate(list(flat.values())),
    )


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="keep the results of these groups")
    parser.add_argument("--nudge", type=float, default=0.0, help="relative error of the rows")
    parser.add_argument("--group", nargs="+", default=list(GROUPS), choices=GROUPS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    before = kept()
    results: dict[str, dict[str, Numbers]] = {}
    for group in options.group:
        make, bounds = GROUPS[group]
        began, worst = time.perf_counter(), 0.0
        results[group] = {}
        for fit in make(Data(options.nudge)):
            found, converged = numbers(fit.truth if options.write and fit.truth else fit)
            if fit.truth:
                found = {k: v for k, v in found.items() if "latent" in k or k == "log_evidence"}
            assert fit.name not in results[group], f"two fits are named {fit.name}"
            results[group][fit.name] = found
            if not converged:
                print(f"  {group} | {fit.name}: not converged")
            if not options.write:
                far = distances(before[group].get(fit.name, {"": np.ones(1)}), found, bounds)
                worst = max(worst, *far.values())
                if max(far.values()) > (1e-2 if options.nudge else 1.0):
                    print(f"  {group} | {fit.name}:", {k: f"{v:.2g}" for k, v in far.items()})
        seconds = time.perf_counter() - began
        print(f"{group}: {len(results[group])} fits, {seconds:.1f} s, farthest {worst:.2g} bounds")
    if options.write:
        write(before | results)
        print(f"{FILE}: {FILE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
