"""Fits by the arguments of public calls, and what they gave before a change, in many.npz.

    python tests/golden/many.py --write                # keep the results of the epfast on the path
    python tests/golden/many.py --write --only GPy     # of the fits with this in their name alone
    python tests/golden/many.py --compare              # how far its results are from those kept
    python tests/golden/many.py --compare --only wide  # of the fits with this in their name
    python tests/golden/many.py --compare --nudge 1e-15    # whether rounding of the data moves them

These are other fits than those of ``fits.py``, which has the forms of engines: here are losses,
schedules and schemes by each form, arguments by each function, estimators and formulas by their
options, and calls of the documentation. A refactoring that keeps the order of operations gives the
same bits, and ``--compare`` says of how many fits it does. What else a fit may differ by are its
bounds:

- SETTLED: fixed points and paths of some sweeps, to 1e-7 standard deviations and 1e-6 nats.
- ONCE: one pass, or moments without sweeps, to 1e-12 standard deviations and 1e-9 nats.
- SEARCHED: at hyper-parameters that a search has found, to 1e-5 of both. They are within SETTLED if
  the rows are off by rounding; ``--compare`` names those that are not.

Variances may differ by twice the share of a standard deviation. What is left out, and why:

- Dask, which needs a cluster, and orders "as_completed", of which no two fits are the same.
- Simulators (``SampledFactor``), whose draws make much of rounding.
- The fifth-degree rule on wide cavities, and quadrature of gamma noise, for the same reason.
- Plots, which have no numbers of their own.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import expit, gammaln, log_expit

sys.path.append(str(Path(__file__).parents[2]))  # as a script

import epfast
from epfast import backend, graph, losses, priors, schemes
from tests.golden.fits import (
    LOSSES,
    NEW,
    At,
    Bounds,
    Data,
    Fit,
    Model,
    Process,
    counts,
    in_chunks,
    kinds,
    labels,
    latent,
    noisy,
    on_threads,
    ordered,
    path,
    shares,
    then,
    times,
)
from tests.golden.record import ONCE, SEARCHED, SETTLED, Record
from tests.graph import models

Given = dict[str, Any]


def moved(A: Any, data: Data) -> Any:
    """Numbers that are off by a relative nudge."""
    return A * (1.0 + data.nudge * np.random.default_rng(98).normal(size=np.shape(A)))


def having(**given: Any) -> Given:
    """Arguments of a call."""
    return given


def settled(**given: Any) -> epfast.EP:
    """EP until rounding."""
    return epfast.EP(**{"sweeps": 1000, "tol": 1e-10} | given)


def fits_of(
    make: Callable[..., Any], table: Mapping[str, Given], *rows: Any, new: Any = (), **given: Any
) -> Iterator[Fit]:
    """A call for each entry of a table, which has other arguments by name."""
    for name, more in table.items():
        yield Fit(name, partial(make, *rows, **given | more), new)


def fitted(make: Any, X: Any, y: Any = None, *, fit: Given | None = None, **given: Any) -> Any:
    """An estimator with these arguments, after its fit."""
    return make(**given).fit(X, y, **fit or {})


# ---- rows and processes by loss, schedule and scheme ----

#: losses whose sites may be negative
HARD = {"quasi01", "noisy step", "ramp", "contaminated", "student"}


def order_of(loss: str) -> Given:
    """Sequential where sweeps at once do not converge."""
    return {"order": "sequential"} if loss in HARD else {}


def rows_by_loss(data: Data) -> Iterator[Fit]:
    """Each loss by each form of q, with intercept and offsets."""
    for loss in LOSSES:
        model = Model(data.rows(65, 5, 1)[:, :-1], loss, schedule=settled(**order_of(loss)))
        offset = 0.3 * np.cos(np.arange(60))
        yield model(f"{loss}, full", intercept=5.0, offset=offset)
        yield model(f"{loss}, diagonal", posterior="factorized", prior_variance=0.8)
        if loss not in HARD:
            rows = Model(data.sparse_rows(65, 8, 1), loss, posterior="sparse", schedule=settled())
            yield rows(f"{loss}, sparse", intercept=True)
        wide = Model(data.rows(20 + NEW, 30, 1, scale=0.4), loss)
        yield wide(f"{loss}, wide", schedule=settled(**order_of(loss)), offset=offset[:20])


def passes_by_loss(data: Data) -> Iterator[Fit]:
    """One pass by each loss."""
    once = epfast.ADF(order="sequential")
    for loss in LOSSES:
        model = Model(data.rows(65, 5, 2)[:, :-1], loss, schedule=once)
        yield model(f"{loss}, full", intercept=2.0)
        yield model(
            f"{loss}, diagonal",
            posterior="factorized",
            schedule=epfast.ADF(order="sequential", warm_up=0),
        )


def passes(data: Data) -> Iterator[Fit]:
    """One pass by its options."""
    once, cold = epfast.ADF(order="sequential"), epfast.ADF(order="sequential", warm_up=0)
    model = Model(data.rows(65, 5, 3), "probit", schedule=once)
    rows, n = model.X[:, :-1], len(model.X)
    thin = Model(data.sparse_rows(65, 8, 3), "poisson", schedule=once)
    for name, given in {
        "shuffled": having(schedule=epfast.ADF(order="shuffled", seed=7)),
        "three passes": having(schedule=epfast.ADF(passes=3, order="shuffled")),
        "power": having(schedule=epfast.ADF(power=0.6, order="sequential")),
        "weights": having(weights=0.4 + np.arange(n) % 4),
        "offset": having(offset=np.sin(np.arange(n))),
        "precision": having(prior_precision=np.eye(5) + 0.4),
        "covariance": having(prior_covariance=np.eye(5) + 0.4),
        "mean": having(prior_mean=np.linspace(-1.0, 1.0, 5)),
        "beta": having(beta=0.5),
        "default order": having(schedule=epfast.ADF()),
        "quick batches": having(batch_size=7, scheme="quick_laplace"),
        "diagonal, power": having(
            posterior="factorized", schedule=epfast.ADF(order="sequential", warm_up=0, power=0.7)
        ),
        "diagonal, floor": having(
            posterior="factorized",
            schedule=epfast.ADF(order="sequential", warm_up=0, site_rule="floor"),
        ),
        "diagonal, quadrature": having(
            posterior="factorized",
            batch_size=5,
            scheme="quadrature",
            schedule=cold,
            X=0.5 * model.X,
        ),
    }.items():
        yield model(name, **given)
    yield thin("CSR, weights", weights=0.4 + np.arange(n) % 4, intercept=True)
    yield thin("CSR, diagonal", posterior="factorized", schedule=cold)
    yield Fit("stream", lambda: in_chunks(model, schedule=once, intercept=True), model.new)
    cuts = [(thin.X[at], thin.y[at]) for at in (slice(None, 25), slice(25, None))]
    yield Fit(
        "stream of CSR", partial(epfast.fit_linear, cuts, loss="poisson", schedule=once), thin.new
    )
    yield Fit("new rows", lambda: then(thin, once), thin.new)
    yield Fit(
        "stream that goes on",
        lambda: epfast.fit_linear(
            [(rows[30:], model.y[30:])],
            loss="probit",
            schedule=once,
            intercept=True,
            start=epfast.fit_linear(
                [(rows[:30], model.y[:30])], loss="probit", schedule=once, intercept=True
            ),
        ),
        (model.new[0][:, :-1],),
    )


#: schedules of rows with a full covariance
SCHEDULES: dict[str, Any] = {
    "EP": settled(),
    "EP, shuffled": settled(order="shuffled", seed=5),
    "EP, chunked": settled(order="chunked", seed=2),
    "EP, chunks of 6": settled(order="chunked", block=6),
    "EP, blocks of 3": settled(order="sequential", block=3),
    "EP, parallel, damping": settled(order="parallel", damping=0.7),
    "EP, chunked, power": settled(order="chunked", power=0.7),
    "EP, damping and power": settled(order="sequential", damping=0.6, power=0.5),
    "EP, two sweeps": path(sweeps=2, order="parallel"),
    "SEP": path(epfast.SEP, order="shuffled", seed=1),
    "SEP, batches": path(epfast.SEP, batch=7, damping=0.8),
    "SEP, power": path(epfast.SEP, power=0.6),
    "AEP": epfast.AEP(sweeps=2000, tol=1e-10),
    "AEP, power": epfast.AEP(sweeps=2000, tol=1e-10, power=0.6),
    "DSEP": path(epfast.DSEP, groups=5, order="shuffled"),
    "DSEP, batches": path(epfast.DSEP, groups=3, batch=4),
    "DSEP, parallel": path(epfast.DSEP, groups=6, order="parallel", damping=0.5),
    "DAEP": epfast.DAEP(groups=5, sweeps=2000, tol=1e-10),
    "DAEP, parallel": epfast.DAEP(groups=4, sweeps=2000, tol=1e-10, order="parallel"),
    "DAEP, shuffled": path(epfast.DAEP, groups=4, order="shuffled", power=0.8),
    "DEP": epfast.DEP(sweeps=500, tol=1e-10),
    "DEP, parallel": epfast.DEP(shards=5, sweeps=500, tol=1e-10, order="parallel"),
    "DEP, shuffled": epfast.DEP(shards=3, sweeps=500, tol=1e-10, order="shuffled", seed=3),
    "DEP, damping, inner": epfast.DEP(
        shards=3, sweeps=500, tol=1e-10, damping=0.8, inner=epfast.EP(sweeps=4, tol=1e-11)
    ),
    "DEP, passes": epfast.DEP(
        shards=4, sweeps=1, tol=0.0, order="parallel", inner=epfast.ADF(order="sequential")
    ),
}


def schedules(data: Data) -> Iterator[Fit]:
    """Each schedule with rows of two losses; some with other forms."""
    for loss in ("logistic", "ordinal"):
        model = Model(data.rows(55, 4, 4), loss)
        for name, schedule in SCHEDULES.items():
            yield model(f"{loss}, {name}", schedule=schedule)
    thin = Model(data.sparse_rows(55, 8, 4), "weibull")
    for name in ("EP, chunked", "SEP", "AEP", "DSEP, parallel", "DEP, parallel"):
        yield thin(f"CSR, {name}", schedule=SCHEDULES[name])
    diagonal = Model(data.rows(55, 4, 4), "negative binomial", posterior="factorized")
    for name, schedule in {
        "EP": settled(),
        "parallel": settled(order="parallel"),
        "shuffled, damping": settled(order="shuffled", damping=0.7, seed=1),
        "floor": settled(site_rule="floor"),
        "nonnegative": settled(site_rule="nonnegative", order="sequential"),
        "DEP": epfast.DEP(shards=3, sweeps=500, tol=1e-10),
    }.items():
        yield diagonal(f"diagonal, {name}", schedule=schedule)


SCHEMES: dict[str, Any] = {
    "laplace": schemes.Laplace(tol=1e-13),
    "quick laplace": "quick_laplace",
    "quadrature": schemes.Quadrature(gamma=1.6),
    "variational": "variational",
    "newton": schemes.Variational(solver="newton"),
    "fifth": schemes.Variational(rule="fifth"),
    "rule": schemes.Variational(rule=schemes.fifth_degree_rule(1)),
}


def schemes_by_form(data: Data) -> Iterator[Fit]:
    """Each scheme by rows, minibatches and processes."""
    common = {"posterior": "factorized", "batch_size": 5}
    for loss in ("logistic", "gamma"):
        model = Model(data.rows(65, 3, 5, scale=0.5), loss)
        process = Process(data, loss, 25, schedule=settled())
        for name, scheme in SCHEMES.items():
            yield model(f"{loss}, rows, {name}", scheme=scheme, schedule=settled())
            if (loss, name) != ("gamma", "quadrature"):  # its sweeps do not converge
                yield process(f"{loss}, process, {name}", scheme=scheme)
            if name != "rule" and (loss, name) != ("gamma", "quadrature"):
                yield model(
                    f"{loss}, batches, {name}", scheme=scheme, schedule=path(sweeps=4), **common
                )
    model = Model(data.rows(65, 3, 5), "probit")
    for name, given in {
        "batches, full": having(batch_size=8, scheme=SCHEMES["laplace"]),
        "batches, full, parallel": having(
            batch_size=8, schedule=settled(order="parallel", damping=0.6), scheme=SCHEMES["laplace"]
        ),
        "importance": having(
            scheme=schemes.ImportanceSampling(samples=301, seed=1), schedule=path(sweeps=2)
        ),
        "relaxed": having(scheme="relaxed", schedule=settled(order="sequential")),
        "relaxed, joint": having(
            scheme=schemes.Relaxed(0.1, "joint"), schedule=path(order="sequential")
        ),
    }.items():
        yield model(name, **{"schedule": settled()} | given)
    hinge = Model(data.rows(65, 3, 5), "hinge", batch_size=8)
    slope = schemes.Laplace(curvature="slope", half_sums=True)
    yield hinge("batches, slope", scheme=slope, schedule=path())
    yield hinge("batches, diagonal, default", posterior="factorized", schedule=path())


# ---- arguments of rows ----


def options(n: int, d: int) -> dict[str, Given]:
    """What one argument may be, for n rows of d columns."""
    rng = np.random.default_rng([n, d])
    A = rng.normal(size=(d, d)) / np.sqrt(d)
    matrix = np.eye(d) + 0.5 * A @ A.T
    chain = sparse.diags_array(
        [np.full(d - 1, -0.8), np.full(d, 2.0), np.full(d - 1, -0.8)], offsets=[-1, 0, 1]
    )
    everything = {"prior_mean": np.ones(d), "prior_variance": np.linspace(1.0, 2.0, d)}
    return {
        "variance": having(prior_variance=0.3),
        "variances": having(prior_variance=np.geomspace(0.5, 5.0, d)),
        "precision": having(prior_precision=matrix),
        "diagonal precision": having(prior_precision=np.diag(np.linspace(1.0, 3.0, d))),
        "sparse precision": having(prior_precision=chain.tocsr()),
        "covariance": having(prior_covariance=matrix),
        "mean": having(prior_mean=rng.normal(size=d)),
        "constraints": having(constraints=np.vstack([np.ones(d), np.arange(d) % 2])),
        "intercept": having(intercept=True),
        "intercept of a variance": having(intercept=0.5),
        "offset": having(offset=rng.normal(size=n)),
        "whole weights": having(weights=1.0 + np.arange(n) % 3),
        "weights": having(weights=rng.uniform(0.2, 2.5, size=n)),
        "weights of 0": having(weights=np.arange(n) % 3 * 1.0),
        "beta": having(beta=0.6),
        "damping": having(schedule=settled(damping=0.7)),
        "power": having(schedule=settled(power=0.7)),
        "two threads": having(n_jobs=2, schedule=settled(order="parallel")),
        "all": everything | having(weights=0.5 + np.arange(n) % 2, intercept=9.0, beta=0.8),
    }


#: what a form of q refuses
REFUSED = {
    "diagonal": {"precision", "sparse precision", "covariance", "constraints"},
    "sparse": {"covariance"},
}


def arguments(data: Data) -> Iterator[Fit]:
    """Each argument of fit_linear by each form of q."""
    forms = {
        "full": Model(data.rows(55, 6, 6), "negative binomial", posterior="full"),
        "sparse": Model(data.sparse_rows(55, 9, 6), "logistic", posterior="sparse"),
        "diagonal": Model(data.rows(55, 6, 6), "probit", posterior="factorized"),
        "wide": Model(data.rows(20 + NEW, 32, 6, scale=0.3), "binomial"),
    }
    for form, model in forms.items():
        for name, given in options(*model.X.shape).items():
            if name not in REFUSED.get(form, ()):
                yield model(f"{form}, {name}", **{"schedule": settled()} | given)


def walks(data: Data) -> Iterator[Fit]:
    """Sparse precisions: walks, levels of groups, areas, sums of 0."""
    rng = np.random.default_rng(30)
    n, m = 60, 25
    step = sparse.diags_array([-np.ones(m), np.ones(m)], offsets=[0, 1], shape=(m - 1, m))
    place = rng.integers(0, m, size=n)
    at = sparse.csr_array((np.ones(n), (np.arange(n), place)), shape=(n, m))
    h = np.sin(0.3 * np.arange(m))[place]
    walk = (step.T @ step * 4.0 + 0.01 * sparse.eye_array(m)).tocsr()
    twice = (walk @ walk + 0.1 * sparse.eye_array(m)).tocsr()
    area = sparse.random_array((m, m), density=0.08, rng=rng)
    area = area + area.T
    near = (sparse.diags_array(np.asarray(area.sum(axis=1)).ravel() + 0.2) - area).tocsr()
    zero = np.ones((1, m))
    cases: dict[str, Given] = {
        "walk of counts": having(loss="poisson", y=counts(h), prior_precision=walk),
        "walk of labels": having(loss="probit", y=labels(h), prior_precision=walk, intercept=True),
        "smooth walk": having(loss=losses.Gaussian(0.3), y=noisy(h), prior_precision=twice),
        "areas": having(loss=losses.NegativeBinomial(3.0), y=counts(h), prior_precision=near),
        "areas, sum of 0": having(
            loss="poisson", y=counts(h), prior_precision=near, constraints=zero, intercept=True
        ),
        "levels": having(loss="logistic", y=labels(h), prior_variance=0.5),
        "levels, sum of 0, dense": having(
            loss="logistic", y=labels(h), constraints=zero, posterior="full"
        ),
        "walk, mean, weights": having(
            loss="binomial",
            y=shares(h),
            prior_precision=walk,
            prior_mean=np.full(m, 0.5),
            weights=1.0 + place % 2,
        ),
        "walk, damping": having(
            loss="poisson",
            y=counts(h),
            prior_precision=walk,
            schedule=settled(damping=0.6, order="parallel"),
        ),
    }
    common: Given = {"posterior": "sparse", "schedule": settled()}
    yield from fits_of(epfast.fit_linear, cases, at, new=(at[:NEW],), **common)
    yield Fit(
        "walk, the form that is cheaper",
        partial(epfast.fit_linear, at, counts(h), loss="poisson", prior_precision=walk),
        (at[:NEW],),
    )


def prior_sites(data: Data) -> Iterator[Fit]:
    """Priors that are a site of each weight, by rows, options, and learned."""
    X = data.rows(65, 7, 7)
    table = {
        "spike and slab": losses.SpikeAndSlab(0.3, 1.5),
        "laplace": losses.LaplacePrior(0.5),
        "student": losses.StudentTPrior(5.0, 0.6),
        "horseshoe": losses.Horseshoe(0.4),
    }
    for name, prior in table.items():
        for loss in ("probit", "poisson"):
            yield Model(X, loss)(f"{name}, {loss}", prior=prior, schedule=settled())
        thin = Model(data.sparse_rows(65, 8, 7), "gaussian", schedule=settled())
        yield thin(f"{name}, CSR", prior=prior, weights=0.5 + np.arange(60) % 2)
        wide = Model(data.rows(20 + NEW, 30, 7, scale=0.5), "logistic", schedule=settled())
        yield wide(f"{name}, wide", prior=prior, intercept=True)


def learned_priors(data: Data) -> Iterator[Fit]:
    """Priors of weights at the most probable numbers."""
    X = data.rows(65, 7, 7)
    model = Model(X, "gaussian", schedule=settled())

    def learned(prior: Any, names: Any = None) -> Given:
        post = model.fit(prior=prior).learned(names)
        numbers = [getattr(post.prior, name) for name in prior.learnable]
        return of_posterior(post) | {"numbers": np.array(numbers)}

    yield Fit("laplace", partial(learned, losses.LaplacePrior(0.5)))
    yield Fit("student", partial(learned, losses.StudentTPrior(5.0, 0.6)))
    yield Fit("horseshoe", partial(learned, losses.Horseshoe(0.4)))
    yield Fit("slab and noise", partial(learned, losses.SpikeAndSlab(0.5, 1.0), ("variance",)))
    both = ["scale", "loss.variance"]
    yield Fit("laplace and noise", partial(learned, losses.LaplacePrior(0.5), both))


def of_posterior(post: Any) -> Given:
    """Moments and evidence."""
    return {"mean": post.mean, "variance": post.variance, "log_evidence": post.log_evidence}


def later(data: Data) -> Iterator[Fit]:
    """Starts, rows that come and go, files, and methods of posteriors."""
    schedule = settled()
    forms = {
        "full": Model(data.rows(55, 4, 8), "ordinal", schedule=schedule, posterior="full"),
        "sparse": Model(data.sparse_rows(55, 8, 8), "logistic", schedule=schedule),
        "wide": Model(data.rows(20 + NEW, 30, 8, scale=0.4), "probit", schedule=schedule),
    }
    forms["sparse"].common["posterior"] = "sparse"

    def more(model: Model, k: int, **given: Any) -> Any:
        first = model.fit(model.X[:-k], model.y[:-k])
        return first.partial_fit(model.X[-k:], model.y[-k:], **given)

    def restored(model: Model, **given: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "post.npz")
            model.fit(**given).save(file)
            post = epfast.load(file)
        return post.with_rows(model.X, model.y)

    calls: dict[str, Callable[[Model], Any]] = {
        "partial_fit": lambda model: more(model, 6, schedule=schedule),
        "partial_fit, all again": lambda model: model.fit(start=more(model, 6)),
        "remove": lambda model: model.fit().remove([0, 3, 4]),
        "start of another prior": lambda model: model.fit(start=model.fit(prior_variance=1.0)),
        "with_rows": restored,
        "joint predictions": lambda model: joint(model.fit(), *model.new),
        "methods": methods,
    }
    for form, model in forms.items():
        for name, call in calls.items():
            if not (form == "sparse" and "partial_fit" in name):  # refused
                yield Fit(f"{form}, {name}", partial(call, model), model.new)
    full = forms["full"]
    diagonal = Model(data.rows(55, 4, 8), "ordinal", schedule=schedule, posterior="factorized")
    others: dict[str, Callable[[], Any]] = {
        "diagonal, start": lambda: diagonal.fit(start=diagonal.fit(schedule=path())),
        "diagonal, with_rows": partial(restored, diagonal),
        "diagonal, methods": partial(methods, diagonal),
        "ADF, with_rows": partial(restored, full, schedule=epfast.ADF(order="sequential")),
        "AEP, with_rows": partial(restored, full, schedule=SCHEDULES["AEP"]),
        "AEP, start": lambda: full.fit(
            schedule=path(epfast.AEP), start=full.fit(schedule=path(epfast.AEP))
        ),
        "threads": lambda: on_threads(full, schedule=SCHEDULES["DEP, parallel"]),
    }
    for name, other in others.items():
        yield Fit(name, other, full.new)


def joint(post: Any, new: Any) -> Given:
    """Latent values at rows with their covariance, and densities of responses."""
    mean, covariance = post.predict_latent(new, joint=True)
    return {"mean": mean, "variance": covariance.diagonal(), "covariance": covariance}


def methods(model: Model) -> Given:
    """What a posterior says of rows, responses and itself."""
    post = model.fit()
    draws = post.sample(3, rng=0)
    found: Given = of_posterior(post) | {
        "sample": draws,
        "log likelihood": post.log_likelihood(draws),
        "interval": post.credible_interval(0.9),
        "score": post.score(model.X, model.y),
        "nats of rows": post.log_predictive(model.X, model.y),
        "nats left out": post.loo_log_predictive(),
        "covariance": post.covariance,
        "residual": post.residual < 1e-6,
    }
    check = post.check(draws=200, rng=1)
    return found | {"check": check.mean, "check sd": check.sd, "nats": check.log_evidence}


def latents(data: Data) -> Iterator[Fit]:
    """Several latent values per row or observation."""
    X = data.rows(55, 4, 9)
    y, z = kinds(X[:50]), noisy(latent(X))[:50]
    offset = 0.3 * np.cos(np.arange(150)).reshape(50, 3)
    table: dict[str, Given] = {
        "joint, offset": having(loss=losses.Multiclass(correlated=True), offset=offset),
        "product, offset": having(loss=losses.Multiclass(correlated=False), offset=offset),
        "joint, precision": having(
            loss="multiclass", prior_precision=np.eye(4) + 0.3, prior_variance=None
        ),
        "joint, parallel": having(loss="multiclass", schedule=settled(order="parallel")),
        "four classes": having(loss=losses.Multiclass(4), intercept=True),
        "product, sequential": having(
            loss=losses.Multiclass(3, correlated=False),
            schedule=settled(order="sequential", damping=0.8),
        ),
    }
    yield from fits_of(
        epfast.fit_linear, table, X[:50], y, new=(X[50:],), prior_variance=1.5, schedule=settled()
    )
    table = {
        "heteroscedastic": having(intercept=True),
        "heteroscedastic, offset": having(offset=offset[:, :2]),
        "heteroscedastic, variances": having(prior_variance=[1.0, 0.5, 2.0, 1.0]),
    }
    given: Given = {"loss": losses.Heteroscedastic(), "schedule": settled()}
    yield from fits_of(epfast.fit_linear, table, X[:50], z, new=(X[50:],), **given)
    K, K_new, (_, h) = data.kernel(30, 9)
    new = (K_new, np.full(NEW, 2.0))
    table = {
        "process of classes": having(y=ordered(h), loss="multiclass"),
        "process of classes, damping": having(
            y=ordered(h), loss=losses.Multiclass(3), schedule=settled(damping=0.7)
        ),
        "process of noise": having(y=noisy(h), loss="heteroscedastic"),
        "process of classes, offset": having(
            y=ordered(h), loss="multiclass", offset=0.2 * np.ones((30, 3)), jitter=0.05
        ),
    }
    yield from fits_of(epfast.fit_gp, table, K, new=new, schedule=settled())


# ---- processes ----


def processes_by_loss(data: Data) -> Iterator[Fit]:
    """Each loss by a kernel matrix."""
    for loss in LOSSES:
        model = Process(data, loss, 30)
        start = epfast.EP(sweeps=100, tol=1e-10)
        schedule = epfast.DoubleLoop(start=start) if loss in HARD else settled()
        yield model(loss, schedule=schedule, offset=0.2 * np.sin(np.arange(30)))


def processes(data: Data) -> Iterator[Fit]:
    """Arguments of fit_gp."""
    model, n = Process(data, "ordinal", 35), 35
    singular = model.K - 1e-3 * np.eye(n)
    low = np.column_stack([np.ones(n), model.inputs])
    for name, given in {
        "auto": {},
        "sequential": having(schedule=settled(order="sequential")),
        "shuffled": having(schedule=settled(order="shuffled", seed=2)),
        "parallel": having(schedule=settled(order="parallel", damping=0.6)),
        "blocks": having(schedule=settled(order="sequential", block=4)),
        "power": having(schedule=settled(power=0.6)),
        "two sweeps": having(schedule=path(sweeps=2)),
        "whole weights": having(weights=1.0 + np.arange(n) % 3),
        "weights": having(weights=np.linspace(0.2, 2.0, n)),
        "jitter": having(jitter=0.3),
        "beta": having(beta=0.5),
        "singular": having(K=singular),
        "float32": having(K=model.K.astype(np.float32)),
        "two threads": having(n_jobs=2),
        "all": having(weights=1.0 + np.arange(n) % 2, offset=np.ones(n), jitter=0.1),
    }.items():
        yield model(name, **{"schedule": settled()} | given)
    yield Fit("overwritten", lambda: model.fit(model.K.copy(), overwrite_K=True), model.new)
    yield Fit("start", lambda: model.fit(start=model.fit(schedule=path())), model.new)
    yield Fit(
        "start of another kernel", lambda: model.fit(start=model.fit(0.5 * model.K)), model.new
    )
    yield Fit("joint predictions", lambda: of_process(model))
    yield model("matrix of a line", low @ low.T, schedule=settled())._replace(new=())
    for loss in ("student", "contaminated"):
        hard = Process(data, loss, 35)
        yield hard(f"{loss}, default", schedule=None)
        yield hard(f"{loss}, descent", schedule=epfast.DoubleLoop(start=settled(power=0.8)))


def relaxed(data: Data) -> Iterator[Fit]:
    """Relaxed EP, whose factors are found by a search."""
    step = Process(data, "noisy step", 30)
    for name, scheme in {
        "relaxed": schemes.Relaxed(),
        "relaxed, joint": schemes.Relaxed(0.1, "joint"),
        "relaxed, normal": schemes.Relaxed(0.03, factor="normal"),
        "relaxed, of a scheme": schemes.Relaxed(0.05, scheme=schemes.Exact()),
        "relaxed, frozen": schemes.Relaxed(0.03, freeze=3),
    }.items():
        yield step(name, scheme=scheme, schedule=path(sweeps=3, order="sequential"))


def of_process(model: Process) -> Given:
    """Latent values at new inputs with their covariance, draws of them, and left-out rows."""
    post = model.fit()
    prior = np.eye(NEW) + model.K_new @ np.linalg.solve(model.K, model.K_new.T)
    mean, covariance = post.predict_latent(model.K_new, prior, joint=True)
    return {
        "mean": mean,
        "variance": covariance.diagonal(),
        "covariance": covariance,
        "gradient": post.log_evidence_gradient(model.K),
        "nats left out": post.loo_log_predictive(),
        "gain": post.loss_gain(losses.Ordinal((-0.5, 1.0))),
    }


def low_rank(data: Data) -> Iterator[Fit]:
    """A factor of a kernel matrix: arguments and sources."""
    from sklearn.gaussian_process.kernels import Matern

    def call(model: Process, K: Any = None, **given: Any) -> Any:
        given = {"schedule": settled()} | given
        if not isinstance(K, epfast.LowRankFactor):
            given = {"rank": 9} | given
        post = model.fit(K, **given)
        return At(post, (model.K_new[:, post.pivots], model.new[1]))

    for loss in ("probit", "negative binomial", "laplace", "censored", "binomial", "student"):
        model = Process(data, loss, 35)
        yield Fit(loss, partial(call, model, schedule=settled(**order_of(loss))))
    model = Process(data, "probit", 35)
    line = epfast.KernelColumns.from_sklearn(Matern(1.5, nu=2.5), model.inputs)
    own = epfast.KernelColumns(model.K.diagonal(), lambda i: model.K[i])
    for name, given in {
        "shuffled": having(schedule=settled(order="shuffled")),
        "damping": having(schedule=settled(damping=0.6)),
        "beta": having(beta=0.6),
        "all ranks": having(rank=35),
        "share of the trace": having(rank=30, rank_tol=0.03),
        "quick batches": having(batch_size=5, scheme="quick_laplace"),
        "SEP": having(schedule=path(epfast.SEP, order="shuffled")),
        "DEP": having(schedule=SCHEDULES["DEP, parallel"]),
        "columns of a kernel": having(K=line),
        "own columns": having(K=own),
        "factor": having(K=epfast.incomplete_cholesky(model.K, 12, tol=1e-2)),
        "columns of texts": having(K=epfast.KernelColumns.rbf(sparse.csr_array(model.inputs), 0.8)),
        "weights": having(weights=np.linspace(0.3, 1.8, 35)),
    }.items():
        yield Fit(f"probit, {name}", partial(call, model, **given))
    yield Fit("probit, start", lambda: call(model, start=model.fit(rank=5)))


# ---- averages over hyper-parameters ----


def hyper(data: Data) -> Iterator[Fit]:
    """fit_hyper by losses, priors, strategies and arguments."""
    n, levels = 60, 6
    plain, level = data.rows(n + NEW, 3, 11)[:, :2], np.arange(n + NEW) % levels
    dummies = np.eye(levels)[level]
    X = np.column_stack([plain, dummies, dummies * plain[:, :1]])
    h = 0.7 * plain[:, 0] + np.linspace(-1.2, 1.2, levels)[level] * (1.0 + 0.5 * plain[:, 1])
    train, new, y = X[:n], (X[n:],), h[:n]
    half, wide = priors.HalfNormal(1.0), priors.HalfCauchy(1.0)
    a, b = slice(2, 2 + levels), slice(2 + levels, None)
    one, two = {"1|g": (a, half)}, {"1|g": (a, half), "x|g": (b, wide)}
    only = X[:, : 2 + levels]
    pair = ("1|g", "x|g")
    table: dict[str, Given] = {
        "one sd": having(loss="logistic", y=labels(y), sds=one),
        "one sd, weights": having(loss="probit", y=labels(y), sds=one, weights=1.0 + level[:n] % 2),
        "one sd, offset": having(loss="poisson", y=counts(0.5 * y), sds=one, offset=0.1 * h[:n]),
        "gamma prior": having(
            loss="poisson", y=counts(0.5 * y), sds={"g": (a, priors.Gamma(2.0, 2.0))}
        ),
        "PC prior": having(loss="binomial", y=shares(y), sds={"g": (a, priors.PC(1.0, 0.05))}),
        "exponential prior": having(
            loss="binomial", y=shares(y), sds={"g": (a, priors.Exponential(1.0))}
        ),
        "inverse gamma prior": having(
            loss="gamma_noise", y=times(y), sds={"g": (a, priors.InverseGamma(2.0, 1.0))}
        ),
        "Student prior": having(
            loss="ordinal", y=ordered(y), sds={"g": (a, priors.HalfStudentT(4.0, 1.0))}
        ),
        "uniform prior": having(loss="logistic", y=labels(y), sds={"g": (a, priors.Uniform(3.0))}),
        "noise": having(loss="gaussian", y=noisy(y), learn={"sd": half}),
        "size": having(
            loss="negative_binomial", y=counts(y), learn={"size": priors.HalfNormal(5.0)}
        ),
        "scale and df": having(
            loss="student_t", y=noisy(y), learn={"scale": half, "df": priors.Gamma(2.0, 0.1)}
        ),
        "sd and noise, mode": having(
            loss="gaussian", y=noisy(y), sds=one, learn={"sd": half}, strategy="eb"
        ),
        "sd and noise, ccd": having(
            loss="gaussian", y=noisy(y), sds=one, learn={"sd": half}, strategy="ccd"
        ),
        "sd and noise, sobol": having(
            loss="gaussian", y=noisy(y), sds=one, learn={"sd": half}, strategy="sobol", rng=3
        ),
        "two sds": having(loss="logistic", y=labels(y), sds=two, intercept=4.0, strategy="ccd"),
        "correlations": having(
            loss="gaussian",
            y=noisy(y),
            sds=two,
            correlations={pair: priors.LKJ(2.0)},
            strategy="ccd",
        ),
        "correlations, turned": having(
            loss="logistic",
            y=labels(y),
            sds=two,
            correlations={pair: (priors.LKJ(1.5), np.array([[1.0, -0.3], [0.0, 1.0]]))},
            strategy="eb",
        ),
        "precision of others": having(
            loss="probit",
            y=labels(y),
            sds=one,
            prior_precision=([0, 1], np.array([[1.0, 0.3], [0.3, 2.0]])),
        ),
        "mean of others": having(
            loss="probit", y=labels(y), sds=one, prior_mean=np.append([0.5, -0.5], np.zeros(levels))
        ),
        "mask": having(loss="logistic", y=labels(y), sds={"g": (np.arange(8) > 1, half)}),
    }
    for name, given in table.items():
        many = any(columns is b for columns, _ in given.get("sds", {}).values())
        rows, at = (train, new) if many else (only[:n], (only[n:],))
        yield Fit(name, partial(epfast.fit_hyper, rows, schedule=settled(), **given), at)
    csr = sparse.csr_array(only[:n])
    yield Fit(
        "CSR",
        partial(epfast.fit_hyper, csr, labels(y), loss="logistic", sds=one, schedule=settled()),
        (sparse.csr_array(only[n:]),),
    )
    yield Fit("rows that come", lambda: hyper_with_more(only[:n], labels(y), one), (only[n:],))


def hyper_with_more(X: Any, y: Any, sds: Any) -> Any:
    """An average to which rows are added, and from which some are removed."""
    post = epfast.fit_hyper(X[:50], y[:50], loss="logistic", sds=sds, schedule=settled())
    return post.partial_fit(X[50:], y[50:], schedule=settled()).remove([3, 4])


def hyper_processes(data: Data) -> Iterator[Fit]:
    """fit_hyper_gp by kernels, losses and arguments."""
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, Matern

    n = 25
    X = data.rows(n + NEW, 3, 12)[:, :2]
    rows, new = X[:n], (X[n:],)
    h = 1.2 * np.sin(2.0 * rows[:, 0]) + 0.5 * rows[:, 1]
    length, sd = priors.Gamma(3.0, 2.0), priors.HalfNormal(2.0)
    kernel = ConstantKernel(1.0) * RBF(1.0)
    both = {"length_scale": length, "sd": sd}
    table: dict[str, Given] = {
        "counts": having(y=counts(0.5 * h), loss="poisson", priors=both),
        "labels": having(y=labels(h), loss="logistic", priors=both),
        "one length": having(y=labels(h), loss="probit", priors={"length_scale": length}),
        "noise": having(
            y=noisy(h), priors={"length_scale": length}, learn={"sd": priors.HalfNormal(1.0)}
        ),
        "two lengths": having(
            y=labels(h),
            loss="probit",
            priors=both,
            kernel=ConstantKernel(1.0) * RBF([1.0, 1.0]),
            strategy="ccd",
        ),
        "Matern": having(y=noisy(h), priors=both, kernel=ConstantKernel(1.0) * Matern(1.0)),
        "sum of kernels": having(
            y=noisy(h),
            kernel=ConstantKernel(1.0) * RBF(1.0) + DotProduct(1.0),
            priors={"k1__k2__length_scale": length, "sigma_0": sd},
            strategy="eb",
        ),
        "weights": having(
            y=labels(h), loss="probit", priors={"sd": sd}, weights=1.0 + np.arange(n) % 2
        ),
        "offset": having(
            y=counts(0.5 * h), loss="poisson", priors={"sd": sd}, offset=0.2 * np.ones(n)
        ),
    }
    for name, given in table.items():
        arguments = {"kernel": kernel, "X": rows, "schedule": settled()} | given
        yield Fit(name, partial(epfast.fit_hyper_gp, **arguments), new)


# ---- estimators ----


def linear_classifiers(data: Data) -> Iterator[Fit]:
    """LinearClassifier by its options."""
    X = data.rows(85, 6, 13)[:, :-1] * [1.0, 3.0, 0.5, 1.0, 2.0]
    h = latent(X)
    y, three = np.where(labels(h) > 0, "yes", "no")[:80], ordered(h)[:80]
    train, new = X[:80], (X[80:],)
    weights = 1.0 + np.arange(80) % 3
    make = partial(fitted, epfast.LinearClassifier)
    table: dict[str, Given] = {
        "defaults": {},
        "probit": having(loss="probit"),
        "evidence": having(prior_variance="evidence"),
        "ard": having(prior_variance="ard"),
        "variance": having(prior_variance=0.7),
        "variance, standardised": having(prior_variance=0.7, standardize=True),
        "variances": having(prior_variance=np.linspace(0.5, 2.5, 5)),
        "units of X": having(standardize=False),
        "groups": having(prior_groups=["a", "a", "b", "b", "b"]),
        "no prior scale": having(prior_scale=None),
        "prior scale": having(prior_scale=0.5),
        "average": having(integrate=True),
        "most probable": having(integrate=False),
        "no intercept": having(fit_intercept=False),
        "intercept variance": having(intercept_variance=1.0),
        "diagonal": having(posterior="factorized"),
        "hinge": having(loss="hinge"),
        "quasi01": having(loss="quasi01", schedule=settled(order="sequential")),
        "noisy step": having(loss="noisy_step", prior_variance=1.0, learn=("epsilon",)),
        "flipped labels": having(
            loss=losses.Contaminated(losses.Logistic()), learn=("share",), integrate=False
        ),
        "batches": having(
            batch_size=8,
            prior_variance=1.0,
            posterior="factorized",
            scheme="variational",
            standardize=True,
        ),
        "beta": having(beta=0.5),
        "class weights": having(class_weight={"yes": 2.0, "no": 0.5}),
        "balanced": having(class_weight="balanced"),
        "chunked": having(schedule=settled(order="chunked"), random_state=3),
        "two threads": having(n_jobs=2),
        "DEP": having(schedule=SCHEDULES["DEP"], prior_variance=1.0),
        "weights": having(fit=having(sample_weight=weights)),
        "weights, ard": having(prior_variance="ard", fit=having(sample_weight=0.5 + weights % 2)),
    }
    for fit in fits_of(make, table, train, y, new=new, schedule=settled()):
        yield fit._replace(name=f"two classes, {fit.name}")
    table = {
        "defaults": {},
        "ard": having(prior_variance="ard"),
        "probit, groups": having(loss="probit", prior_groups=[0, 0, 1, 1, 1]),
        "average": having(integrate=True),
        "together": having(loss="multiclass"),
        "together, product": having(loss=losses.Multiclass(correlated=False), prior_variance=1.0),
        "balanced": having(class_weight="balanced", n_jobs=2),
    }
    for fit in fits_of(make, table, train, three, new=new, schedule=settled()):
        yield fit._replace(name=f"three classes, {fit.name}")
    thin = sparse.csr_array(np.where(np.abs(X) > 0.5, X, 0.0))
    yield from fits_of(
        make,
        {
            "CSR": {},
            "CSR, ard": having(prior_variance="ard"),
            "CSR, units": having(standardize=True),
        },
        thin[:80],
        y,
        new=(thin[80:],),
        schedule=settled(),
    )
    wide = data.rows(40 + NEW, 60, 13, scale=0.3)
    yield from fits_of(
        make,
        {"wide": {}, "wide, groups": having(prior_groups=np.arange(60) % 2)},
        wide[:40],
        labels(latent(wide))[:40],
        new=(wide[40:],),
        schedule=settled(),
    )
    yield Fit("default schedule", partial(make, train, y), new)
    table = {
        "defaults": {},
        "one pass": having(schedule=epfast.ADF(), prior_variance=1.0, posterior="full"),
        "given": having(prior_variance=0.5, schedule=settled()),
        "three classes": having(schedule=settled()),
    }
    for name, given in table.items():
        response = three if name == "three classes" else y
        call = partial(in_parts, epfast.LinearClassifier, train, response, given)
        yield Fit(f"partial_fit, {name}", call, new)
    yield Fit(
        "warm start",
        lambda: (
            epfast.LinearClassifier(warm_start=True, schedule=settled())
            .fit(train, y)
            .set_params(prior_variance=3.0)
            .fit(train, y)
        ),
        new,
    )


def in_parts(make: Any, X: Any, y: Any, given: Given) -> Any:
    """An estimator of rows that come in three chunks."""
    model, classes = make(**given), np.unique(y)
    for part in np.array_split(np.arange(len(y)), 3):
        model.partial_fit(X[part], y[part], classes=classes)
    return model


def linear_regressors(data: Data) -> Iterator[Fit]:
    """LinearRegressor by its losses and options."""
    X = data.rows(75, 5, 14)[:, :-1] * [1.0, 4.0, 0.3, 1.0]
    h = latent(X)
    train, new, h = X[:70], (X[70:],), h[:70]
    weights = 0.5 + np.arange(70) % 3
    make = partial(fitted, epfast.LinearRegressor, train)
    numbers: dict[str, Given] = {
        "defaults": {},
        "average": having(integrate=True),
        "most probable": having(integrate=False),
        "ard": having(prior_variance="ard"),
        "evidence": having(prior_variance="evidence"),
        "groups": having(prior_groups=[1, 1, 2, 2]),
        "units of X": having(standardize=False),
        "variance": having(prior_variance=2.0),
        "no prior scale": having(prior_scale=None),
        "nothing to learn": having(learn=(), loss=losses.Gaussian(0.4)),
        "no intercept": having(fit_intercept=False),
        "intercept variance": having(intercept_variance=3.0),
        "diagonal": having(posterior="factorized"),
        "Student": having(loss="student_t", integrate=False),
        "Student, both": having(loss="student_t", learn=("scale", "df"), integrate=False),
        "Student, average": having(loss="student_t", integrate=True),
        "Laplace": having(loss="laplace_noise"),
        "quantile": having(loss=losses.Quantile(0.8), integrate=False),
        "censored": having(loss=losses.Censored(upper=1.0)),
        "weights": having(fit=having(sample_weight=weights)),
        "offset": having(fit=having(offset=np.sin(np.arange(70)))),
    }
    others: dict[str, Given] = {
        "counts": having(y=counts(0.6 * h), loss="poisson"),
        "counts, offset": having(
            y=counts(0.6 * h), loss="poisson", fit=having(offset=0.1 * np.ones(70))
        ),
        "counts, size": having(y=counts(0.6 * h), loss="negative_binomial"),
        "trials": having(y=shares(h), loss="binomial"),
        "times": having(y=times(0.5 * h), loss="weibull"),
        "times, gamma": having(y=times(0.5 * h), loss="gamma_noise", integrate=False),
        "classes in order": having(y=ordered(h), loss="ordinal"),
        "classes in order, given cuts": having(y=ordered(h), loss="ordinal", learn=()),
        "intervals": having(
            y=np.column_stack([np.floor(h), np.ceil(h)]), loss="interval", integrate=False
        ),
    }
    yield from fits_of(make, numbers, noisy(h), new=new, schedule=settled())
    yield from fits_of(make, others, new=new, schedule=settled())
    thin = sparse.csr_array(np.where(np.abs(X) > 0.5, X, 0.0))
    yield Fit(
        "CSR",
        partial(fitted, epfast.LinearRegressor, thin[:70], noisy(h), schedule=settled()),
        (thin[70:],),
    )


def process_classifiers(data: Data) -> Iterator[Fit]:
    """GPClassifier by its options."""
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

    n = 40
    X = data.rows(n + NEW, 3, 15)[:, :2]
    h = 2.0 * np.sin(2.0 * X[:, 0]) + X[:, 1]
    train, new = X[:n], (X[n:],)
    y, three = labels(h)[:n], ordered(h)[:n]
    kernel = ConstantKernel(2.0, (1e-2, 1e4)) * RBF(1.0, (0.1, 10.0))
    fixed: Given = {"kernel": kernel, "optimizer": None}
    make = partial(fitted, epfast.GPClassifier, train)
    table: dict[str, Given] = {
        "defaults": {},
        "average": having(integrate=True),
        "most probable": having(integrate=False),
        "kernel": having(kernel=kernel, integrate=False),
        "fixed": fixed,
        "Matern": having(kernel=Matern(1.0, nu=1.5), integrate=False),
        "two lengths": having(kernel=ConstantKernel(2.0) * RBF([1.0, 1.0]), integrate=False),
        "logistic": having(loss="logistic", integrate=False),
        "flipped labels": having(loss=losses.Contaminated(), learn=("share",), integrate=False),
        "jitter": fixed | having(jitter=0.1),
        "balanced": having(class_weight="balanced", integrate=False),
        "weights": fixed | having(fit=having(sample_weight=1.0 + np.arange(n) % 2)),
        "rank": having(rank=10),
        "rank, fixed": fixed | having(rank=8),
        "nearest": having(method="nearest", n_neighbors=8, integrate=False),
        "nearest, fixed": fixed | having(method="nearest", n_neighbors=12),
        "restarts": having(n_restarts_optimizer=1, random_state=1, integrate=False),
    }
    for fit in fits_of(make, table, y, new=new, schedule=settled()):
        yield fit._replace(name=f"two classes, {fit.name}")
    table = {
        "fixed": fixed,
        "defaults": {},
        "together": having(loss="multiclass"),
        "together, fixed": fixed | having(loss="multiclass"),
        "rank, fixed": fixed | having(rank=8),
    }
    for fit in fits_of(make, table, three, new=new, schedule=settled()):
        yield fit._replace(name=f"three classes, {fit.name}")


def process_regressors(data: Data) -> Iterator[Fit]:
    """GPRegressor by its losses and options."""
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    n = 40
    X = data.rows(n + NEW, 3, 16)[:, :2]
    h = np.sin(2.0 * X[:, 0]) + 0.5 * X[:, 1]
    train, new, h = X[:n], (X[n:],), h[:n]
    kernel = ConstantKernel(1.0) * RBF(1.0)
    fixed: Given = {"kernel": kernel, "optimizer": None}
    make = partial(fitted, epfast.GPRegressor, train)
    point: Given = {"integrate": False}
    table: dict[str, Given] = {
        "defaults": having(y=noisy(h)),
        "average": having(y=noisy(h), integrate=True),
        "most probable": point | having(y=noisy(h)),
        "fixed": fixed | having(y=noisy(h)),
        "no centre": point | having(y=noisy(h), center=False),
        "white noise": point | having(y=noisy(h), kernel=kernel + WhiteKernel(0.1), learn=()),
        "Student": point | having(y=noisy(h), loss="student_t"),
        "Student, both": point | having(y=noisy(h), loss="student_t", learn=("scale", "df")),
        "Laplace": point | having(y=noisy(h), loss="laplace_noise"),
        "counts": point | having(y=counts(h), loss="poisson"),
        "counts, offset": fixed
        | having(y=counts(h), loss="poisson", fit=having(offset=0.3 * np.ones(n))),
        "counts, size": point | having(y=counts(h), loss="negative_binomial"),
        "trials": fixed | having(y=shares(h), loss="binomial"),
        "classes in order": point | having(y=ordered(h), loss="ordinal"),
        "times": fixed | having(y=times(h), loss="gamma_noise"),
        "weights": fixed | having(y=noisy(h), fit=having(sample_weight=0.5 + np.arange(n) % 2)),
        "rank": having(y=noisy(h), rank=12),
        "rank, counts": fixed | having(y=counts(h), loss="poisson", rank=12),
        "nearest": point | having(y=counts(h), loss="poisson", method="nearest", n_neighbors=9),
    }
    yield from fits_of(make, table, new=new, schedule=settled())


# ---- formulas ----


def formulas(data: Data) -> Iterator[Fit]:
    """formula.fit by families, terms and arguments."""
    import pandas as pd

    from epfast import formula

    rng = np.random.default_rng(17)
    n = 90
    x = data.rows(n, 2, 17)
    frame = pd.DataFrame({"x": x[:, 0], "z": rng.normal(size=n)})
    frame["g"] = np.array(list("abcdef"))[np.arange(n) % 6]
    frame["k"] = np.array(["low", "mid", "high"])[rng.integers(0, 3, n)]
    own = rng.normal(size=(6, 2)) * [0.8, 0.5]
    level = np.arange(n) % 6
    h = 0.3 + 0.6 * frame["x"].to_numpy() + own[level, 0] + own[level, 1] * frame["x"].to_numpy()
    frame["y"], frame["count"] = noisy(h), counts(0.5 * h)
    frame["label"] = np.where(labels(h) > 0, "yes", "no")
    frame["won"], frame["tried"] = shares(h).T
    frame["time"], frame["w"] = times(0.5 * h), 1.0 + np.arange(n) % 2
    table: dict[str, Given] = {
        "numbers": having(formula="y ~ x + (1 | g)", family="gaussian"),
        "slopes": having(formula="y ~ x + (x | g)", family="gaussian", strategy="ccd"),
        "independent slopes": having(formula="y ~ x + (x || g)", family="gaussian", strategy="ccd"),
        "labels": having(formula="label ~ x + (1 | g)", family="bernoulli"),
        "labels of a level": having(formula="label['no'] ~ x * z", family="bernoulli"),
        "counts": having(formula="count ~ x + offset(z) + (1 | g)", family="poisson"),
        "counts, size": having(formula="count ~ x", family="negativebinomial"),
        "trials": having(
            formula="prop(won, tried) ~ x + (1 | g)", family="binomial", strategy="eb"
        ),
        "times": having(formula="time ~ x", family="gamma"),
        "times, weibull": having(formula="time ~ x + k", family="weibull", strategy="eb"),
        "outliers": having(formula="y ~ x", family="t", strategy="eb"),
        "Laplace": having(formula="y ~ x", family="laplace"),
        "interactions": having(formula="y ~ x:z + C(k)", family="gaussian"),
        "splines": having(formula="y ~ bs(x, df=4)", family="gaussian", strategy="eb"),
        "powers": having(formula="y ~ I(x ** 2) + scale(z) - 1", family="gaussian"),
        "nested": having(formula="y ~ x + (1 | g/k)", family="gaussian", strategy="eb"),
        "weights": having(formula="label ~ x + (1 | g)", family="bernoulli", weights="w"),
        "priors": having(
            formula="y ~ x + (1 | g)",
            family="gaussian",
            priors={"x": (0.0, 0.5), "1|g": priors.HalfCauchy(1.0)},
        ),
        "sobol": having(formula="y ~ x + (1 | g)", family="gaussian", strategy="sobol", rng=2),
    }
    yield from fits_of(formula.fit, table, data=frame, new=(frame.iloc[:NEW],))
    fresh = frame.iloc[:NEW].assign(g="new")
    yield Fit("levels that are new", lambda: new_levels(formula.fit, frame, fresh))


def new_levels(fit: Any, frame: Any, fresh: Any) -> Given:
    """Predictions for levels that the fit did not have."""
    model = fit("y ~ x + (1 | g)", frame)
    found: Given = {}
    for how in ("integrate", "zero"):
        mean, variance = model.predict_latent(fresh, new_levels=how)
        found |= {f"{how} mean": mean, f"{how} variance": variance}
    return found


# ---- the backend ----

CAVITIES = np.linspace(-3.0, 3.0, 7), np.geomspace(0.05, 8.0, 7)


def moments(data: Data) -> Iterator[Fit]:
    """Tilted moments of every loss, of every scheme, and fits of minibatches."""
    mean, variance = (part.ravel() for part in np.meshgrid(*CAVITIES))
    h = mean + 0.5
    for loss, (given, response) in LOSSES.items():
        y = response(h)

        def powers(given: Any = given, y: Any = y) -> Given:
            found: Given = {}
            for name, numbers in {
                "plain": {},
                "power": having(power=0.7),
                "beta": having(beta=0.6),
            }.items():
                try:
                    parts = backend.tilted_moments(given, y, mean, variance, **numbers)
                except ValueError:  # powers are not for all
                    continue
                found[name] = np.stack(parts)
            return found

        yield Fit(loss, powers)
    for name, scheme in SCHEMES.items():
        yield Fit(
            f"poisson, {name}",
            partial(backend.tilted_moments, "poisson", counts(h), mean, variance, scheme=scheme),
        )
    X = data.rows(8, 3, 18)
    at = np.linspace(-0.5, 0.5, 3), np.array([0.05, 0.1, 0.2])
    for name in ("laplace", "quick laplace", "quadrature", "variational", "newton", "fifth"):
        for loss in ("logistic", "poisson"):
            y = labels(latent(X)) if loss == "logistic" else counts(latent(X))
            factor = partial(backend.Minibatch, loss, SCHEMES[name], 3)
            call = partial(lambda factor, y: factor().fit(X, *at, y), factor, y)
            yield Fit(f"{loss}, minibatch, {name}", call)
    yield Fit(
        "multiclass",
        partial(
            backend.tilted_moments,
            losses.Multiclass(3),
            [0, 1, 2],
            np.eye(3) - 0.3,
            np.full((3, 3), 0.7),
        ),
    )
    yield Fit("sigma points", partial(backend.sigma_points, *at))


def own_sweeps(
    A: Any, y: Any, prior: np.ndarray, sweeps: int = 4, *, mean: Any = None, **given: Any
) -> Given:
    """Sweeps of the caller's arrays, and their evidence."""
    d, n = len(prior), len(y)
    mu = np.zeros(d) if mean is None else mean.copy()
    Sigma, sites = prior.copy(), np.zeros((3, n))
    for _ in range(sweeps):
        backend.sweep(Sigma, mu, A, y, *sites[:2], log_scale=sites[2], **given)
    evidence = backend.log_evidence((sites[0], sites[1], sites[2]), mu, Sigma, mean, prior)
    variance = Sigma.diagonal()
    return {"mean": mu, "variance": variance, "sites": sites, "log_evidence": evidence}


def sweeps(data: Data) -> Iterator[Fit]:
    """backend.sweep by its arguments, and moments of sites by hand."""
    X = data.rows(40, 5, 19)
    h = latent(X)
    K, _, (_, f) = data.kernel(30, 19)
    prior = np.eye(5) + 0.2
    step = {"loss": losses.StudentT(4.0, 0.6), "damping": 0.8}
    table: dict[str, tuple[Any, Any, Any, Given]] = {
        "rows": (X, labels(h), prior, {}),
        "rows, mean": (X, labels(h), prior, having(mean=np.linspace(-1.0, 1.0, 5))),
        "rows, CSR": (sparse.csr_array(X), labels(h), prior, {}),
        "rows, order": (X, labels(h), prior, having(order=np.arange(40)[::-1].copy())),
        "rows, blocks": (X, counts(h), prior, having(loss="poisson", block=2)),
        "rows, power, damping": (X, labels(h), prior, having(power=0.7, damping=0.8)),
        "rows, beta": (X, labels(h), prior, having(loss="hinge", beta=0.5)),
        "rows, laplace": (X, counts(h), prior, having(loss="poisson", scheme="laplace")),
        "process": (None, labels(f), K, having(loss="logistic")),
        "process, blocks": (None, labels(f), K, having(block=4, order=np.arange(30)[::2].copy())),
        "process, outliers": (None, noisy(f), K, step),
        "process, many sweeps": (None, counts(f), K, having(loss="poisson", sweeps=30)),
    }
    for name, (A, y, covariance, given) in table.items():
        yield Fit(name, partial(own_sweeps, A, y, covariance, **given))


# ---- graphs, ratings, networks, mixtures, machines, learned messages, GPy ----


def graphs(data: Data) -> Iterator[Fit]:
    """Graphs of the documentation, and what may be done with one."""
    rng = np.random.default_rng(5)
    wine, taster = np.divmod(np.arange(40), 5)
    score = 6 + rng.normal(0, 1, 8)[wine] + rng.normal(0, 1, 5)[taster] + rng.normal(0, 0.5, 40)
    score = moved(score, data)

    def tasters(g: Any, moods: bool = True) -> Any:
        quality, mood = g.gaussian(8), g.gaussian(5)
        level, precision = g.gaussian(mean=5.0, variance=10.0), g.gamma(shape=1.0, rate=0.1)
        form = level + quality[wine]
        g.add(graph.Noise(precision), score - (form + mood[taster] if moods else form))
        return quality

    def wines(moods: bool = True, **given: Any) -> Any:
        g = epfast.Graph()
        tasters(g, moods)
        return g.fit(settled(), **given)

    def bought() -> Any:
        g = epfast.Graph()
        quality = tasters(g)
        first = g.fit(settled())
        g.add("logistic", 2.0 * quality[[0, 2, 3, 5]], [1, -1, 1, -1])
        return g.fit(settled(), start=first)

    def block() -> Any:
        g = epfast.Graph()
        x = g.block(14, variance=[1.0] * 13 + [10.0], mean=[0.0] * 13 + [5.0])
        precision = g.gamma(shape=1.0, rate=0.1)
        g.add(graph.Noise(precision), score - (x[13] + x[wine] + x[8 + taster]))
        return g.fit(settled())

    def removed() -> Any:
        g = epfast.Graph()
        quality = tasters(g)
        batch = g.add("probit", quality, np.where(np.arange(8) % 2, 1, -1))
        g.remove(batch, [1, 2])
        return g.fit(settled())

    def form_and_skill() -> Any:
        def log_t(skill: Any, form: Any, y: Any) -> Any:
            return -np.logaddexp(0.0, -y * (skill + np.tanh(form)))

        g = epfast.Graph()
        skill, form = g.gaussian(3), g.gaussian(variance=0.5)
        g.add(graph.Factor(log_t, scheme="quadrature"), skill, form, y=[1.0, -1.0, 1.0])
        return g.fit(settled())

    def nile() -> Any:
        flow = moved(np.sin(0.2 * np.arange(30)) + 0.4 * rng_of(6).normal(size=30), data)
        g = epfast.Graph()
        level = g.gaussian(variance=np.append(100.0, np.full(29, np.inf)))
        noise, step = g.gamma(shape=1.0, rate=0.1), g.gamma(shape=1.0, rate=0.1)
        g.add(graph.Noise(noise), flow - level)
        g.add(graph.Noise(step), level[1:] - level[:-1])
        return g.fit(settled())

    def clutter() -> Any:
        y = np.where(rng_of(7).random(25) < 0.3, 5.0, 1.0) * rng_of(8).normal(size=25) + 1.0
        g = epfast.Graph()
        x = g.gaussian(variance=100.0)
        base = losses.Contaminated(losses.Gaussian(1.0), 0.3, log_density=-4.0)
        g.add(base, x + np.zeros(25), y)
        return g.fit(settled(order="sequential", damping=0.8))

    def schools() -> Any:
        effect = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
        error = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
        g = epfast.Graph()
        mean, own = g.gaussian(variance=25.0), g.gaussian(8, variance=np.inf)
        precision = g.gamma(shape=1.0, rate=10.0)
        g.add(graph.Noise(precision), own - mean)
        g.add(losses.Gaussian(1.0), own, effect, noise=error**2 - 1.0)
        return g.fit(settled())

    calls: dict[str, Callable[[], Any]] = {
        "tasters": wines,
        "tasters without moods": partial(wines, False),
        "more factors": bought,
        "block": block,
        "factors removed": removed,
        "factor by a log density": form_and_skill,
        "walk of unknown steps": nile,
        "clutter": clutter,
        "schools": schools,
    }
    for name, call in calls.items():
        yield Fit(name, call)
    for make in (*models.RECORDED.values(), models.shared):
        for how, schedule in (
            ("default", None),
            ("damping", settled(damping=0.6)),
            ("parallel", settled(order="parallel", damping=0.5)),
        ):
            small = partial(lambda m, s: m(rng_of(9)).fit(schedule=s), make, schedule)
            yield Fit(f"{make.__name__}, {how}", small)


def rng_of(seed: int) -> np.random.Generator:
    """A generator."""
    return np.random.default_rng([99, seed])


def ratings(data: Data) -> Iterator[Fit]:
    """Ratings of players by their games."""
    from epfast import rating

    rng = np.random.default_rng(20)
    a = rng.integers(0, 6, 40)
    b = (a + rng.integers(1, 6, 40)) % 6
    better = rng.random(40) < 1.0 / (1.0 + np.exp(0.5 * (a - b)))
    games = {"winner": np.where(better, a, b), "loser": np.where(better, b, a)}
    games |= {"day": np.sort(rng.integers(0, 50, 40)), "drawn": rng.random(40) < 0.2}
    games |= {"home": rng.choice([-1, 0, 1], 40)}

    def found(*rows: Any, more: Any = None, **given: Any) -> Given:
        result = rating.fit(*rows, **given)
        if more is not None:
            result = result.update(more)
        table = result.table().sort_index()
        mean, sd = (table[name].to_numpy(np.float64) for name in ("rating", "sd"))
        return {"mean": mean, "variance": sd**2, "log_evidence": result.log_evidence}

    fixed = {"prior_sd": 1.0, "schedule": settled()}
    first = {name: column[:30] for name, column in games.items()}
    rest = {name: column[30:] for name, column in games.items()}
    sides = {"teams": [[[0, 1], [2, 3]], [[1, 4], [5]], [[2], [3], [0, 5]]], "margin": 0.2}
    for name, call in {
        "constant": partial(found, games, **fixed),
        "through time": partial(found, games, time="day", drift=0.02, **fixed),
        "draws": partial(found, games, draw="drawn", margin=0.3, **fixed),
        "home": partial(found, games, home="home", **fixed),
        "teams": partial(found, ranks=[[0, 1], [0, 0], [0, 1, 1]], **sides, **fixed),
        "update": partial(found, first, time="day", drift=0.02, more=rest, **fixed),
    }.items():
        yield Fit(name, call)


def parametric(data: Data) -> Iterator[Fit]:
    """Networks, mixtures and their estimators."""
    X = data.rows(60 + NEW, 4, 21)[:, :3]
    h = latent(X)
    train, new = X[:60], (X[60:],)
    y, z = labels(h)[:60], noisy(h)[:60]
    table: dict[str, Given] = {
        "network, two layers": having(hidden=(4, 3), schedule=epfast.ADF(passes=3)),
        "network, DSEP": having(hidden=(4,), schedule=path(epfast.DSEP, groups=4)),
        "network, AEP": having(hidden=(4,), schedule=path(epfast.AEP)),
        "network, prior": having(hidden=(5,), prior=1.0, noise=(3.0, 1.0), schedule=path()),
        "network, units of X": having(hidden=(3,), standardize=False, schedule=epfast.ADF()),
    }
    yield from fits_of(epfast.fit_network, table, train, z, new=new)
    table = {
        "mixture": having(n_components=3, schedule=settled()),
        "mixture, default": having(n_components=2),
        "mixture, weights": having(
            n_components=2,
            weights=[0.3, 0.7],
            noise_variance=0.5,
            schedule=path(epfast.DSEP, groups=3),
        ),
        "mixture, prior": having(
            n_components=2,
            prior_mean=np.array([[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]),
            prior_variance=0.5,
            concentration=3.0,
            schedule=path(epfast.AEP),
        ),
    }
    yield from fits_of(epfast.fit_mixture, table, train, new=new)
    small: Given = {"hidden": (4,), "schedule": epfast.ADF(passes=3)}
    for name, make, response in (
        ("NetworkRegressor", epfast.NetworkRegressor, z),
        ("NetworkClassifier", epfast.NetworkClassifier, y),
        ("NetworkClassifier, three classes", epfast.NetworkClassifier, ordered(h)[:60]),
    ):
        yield Fit(name, partial(fitted, make, train, response, **small), new)
    yield Fit("GaussianMixtureEP", partial(fitted, epfast.GaussianMixtureEP, train, n_components=2))


def machines(data: Data) -> Iterator[Fit]:
    """Support vector machines."""
    X = data.rows(60 + NEW, 4, 22)[:, :3]
    y = labels(latent(X))[:60]

    def machine(K: Any, new: Any, **given: Any) -> Given:
        svm = epfast.fit_svm(K, y, tol=1e-10, **given)
        return {"alpha": svm.alpha, "decision": svm.decision_function(new)}

    train, new = X[:60], X[60:]
    for name, call in {
        "rbf": partial(machine, train, new),
        "linear": partial(machine, train, new, kernel="linear", C=0.5),
        "precomputed": partial(machine, train @ train.T, new @ train.T, kernel="precomputed"),
        "CSR": partial(machine, sparse.csr_matrix(train), sparse.csr_matrix(new), gamma=0.4),
        "chunks": partial(machine, train, new, chunks=4, sweeps=2),
        "parallel chunks": partial(machine, train, new, chunks=3, order="parallel"),
    }.items():
        yield Fit(name, call)


def operators(data: Data) -> Iterator[Fit]:
    """Messages that a regression learns."""
    X = data.rows(60 + NEW, 3, 23)
    h = latent(X)
    softplus = epfast.CustomLoss(lambda m: np.logaddexp(0.0, -m))

    yield Fit(
        "a loss in Python",
        lambda: epfast.fit_linear(
            X[:60],
            labels(h)[:60],
            loss=softplus,
            scheme=epfast.Learned(oracle="exact", tolerance=0.01),
            schedule=path(order="sequential"),
        ),
        (X[60:],),
    )
    yield Fit(
        "a loss in Python, polished",
        lambda: epfast.fit_linear(
            X[:60],
            labels(h)[:60],
            loss=softplus,
            scheme=epfast.Learned(oracle="exact", tolerance=0.01, polish=2),
        ),
        (X[60:],),
    )


def of_gpy(data: Data) -> Iterator[Fit]:
    """Models of GPy by our inference."""

    def model(kind: str) -> Given:
        import GPy

        import epfast.gpy

        X = data.rows(40 + NEW, 3, 25)[:, :2]
        h = np.sin(2.0 * X[:, 0]) + X[:, 1]
        kinds_of: dict[str, tuple[Any, np.ndarray]] = {
            "Bernoulli": (GPy.likelihoods.Bernoulli(), (labels(h) > 0) * 1.0),
            "Gaussian": (GPy.likelihoods.Gaussian(variance=0.3), noisy(h)),
            "Student": (GPy.likelihoods.StudentT(deg_free=4, sigma2=0.1), noisy(h)),
            "Poisson": (GPy.likelihoods.Poisson(GPy.likelihoods.link_functions.Log()), counts(h)),
        }
        likelihood, y = kinds_of[kind]
        gp = GPy.core.GP(
            X[:40],
            1.0 * y[:40, None],
            kernel=GPy.kern.RBF(2, variance=2.0),
            likelihood=likelihood,
            inference_method=epfast.gpy.EP(),
        )
        mean, variance = gp.predict_noiseless(X[40:])
        found = {"mean": mean, "variance": variance, "log_evidence": gp.log_likelihood()}
        return found | {"gradient": gp.kern.gradient}

    for kind in ("Bernoulli", "Gaussian", "Student", "Poisson"):
        yield Fit(kind, partial(model, kind))


def large(data: Data) -> Iterator[Fit]:
    """Sizes from which sweeps go another way: chunks, joint steps, half a matrix, Newton steps."""
    many = Model(data.rows(455, 4, 26), "logistic", schedule=settled())
    yield many("rows in chunks")
    yield many("rows in chunks, two threads", n_jobs=2)
    yield many("rows at once, two threads", n_jobs=2, schedule=settled(order="parallel"))
    yield many("rows, diagonal", posterior="factorized")
    yield many("rows, diagonal, two threads", posterior="factorized", n_jobs=2)
    yield many("rows, Student", loss=losses.StudentT(4.0, 0.8), y=latent(many.X))
    thin = Model(data.sparse_rows(405, 40, 26), "poisson", schedule=settled())
    yield thin("CSR, the form that is cheaper")
    yield thin("CSR, diagonal", posterior="factorized")
    square = Model(data.rows(300, 260, 26, scale=0.1), "probit")
    yield square("260 columns", schedule=path(sweeps=2, order="sequential"))
    yield square("260 columns, shuffled", schedule=path(sweeps=2, order="shuffled"))
    wide = Model(data.rows(130 + NEW, 140, 26, scale=0.15), "logistic", schedule=settled())
    yield wide("wide, joint steps")
    for loss in ("probit", "poisson", "laplace", "student"):
        schedule = None if loss == "student" else settled()
        yield Process(data, loss, 140, schedule=schedule)(f"process, joint steps, {loss}")
    classes = Process(data, "ordinal", 130)
    several = partial(epfast.fit_gp, classes.K, classes.y, loss="multiclass", schedule=settled())
    yield Fit("process of classes", several, classes.new)
    row_of_classes = kinds(many.X)
    together = partial(epfast.fit_linear, many.X, row_of_classes, schedule=settled())
    yield Fit("classes", partial(together, loss="multiclass"), many.new)
    product = losses.Multiclass(correlated=False)
    yield Fit("classes, product", partial(together, loss=product), many.new)


def asked(data: Data) -> Iterator[Fit]:
    """What estimators and formulas say besides their predictions."""
    import pandas as pd

    from epfast import formula

    X = data.rows(65, 4, 27)[:, :-1]
    h = latent(X)
    train, new = X[:60], X[60:]

    def classifier(make: Any, y: Any, **given: Any) -> Given:
        model = make(schedule=settled(), **given).fit(train, y)
        mean, variance = model.predict_latent(new)
        return {
            "latent mean": mean,
            "latent variance": variance,
            "log proba": model.predict_log_proba(new),
            "score": model.score(train, y),
        }

    def regressor(make: Any, y: Any, **given: Any) -> Given:
        model = make(schedule=settled(), **given).fit(train, y)
        return {
            "quantile": model.predict_quantile(new, [0.1, 0.5, 0.9]),
            "nats": model.score_samples(train, y),
            "score": model.score(train, y),
            "sample": model.sample_y(new, 4),
        }

    def table() -> Given:
        frame = pd.DataFrame(train, columns=["a", "b", "c"])
        model = epfast.LinearClassifier(schedule=settled()).fit(frame, labels(h)[:60])
        return {"summary": model.summary(0.9).to_numpy(np.float64)}

    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=counts(0.5 * h), g=np.arange(65) % 5)

    def formulas_fit() -> Given:
        model = formula.fit("y ~ a + (1 | g)", frame.iloc[:60], "poisson")
        mean, covariance = model.predict_latent(frame.iloc[60:], joint=True)
        later = model.remove([0, 7]).partial_fit(frame.iloc[60:])
        return {
            "fixed": model.fixed.to_numpy(np.float64),
            "random": model.random.to_numpy(np.float64)[:, -4:],
            "summary": model.summary().to_numpy(np.float64),
            "quantile": model.quantile(0.2),
            "interval": model.credible_interval(0.8),
            "nats left out": model.loo_log_predictive(),
            "nats": model.log_predictive(frame.iloc[60:]),
            "score": model.score(frame.iloc[:60]),
            "mean": mean,
            "variance": covariance.diagonal(),
            "sample": model.sample_y(frame.iloc[60:], 4, rng=0),
            "later": later.summary().to_numpy(np.float64),
        }

    def compared() -> Given:
        one, two = (
            epfast.fit_linear(train, labels(h)[:60], loss=loss, schedule=settled())
            for loss in ("logistic", "probit")
        )
        compared = epfast.compare({"one": one, "two": two})
        return {"nats": compared.select_dtypes("number").to_numpy(np.float64)}

    linear, process = epfast.LinearClassifier, epfast.GPClassifier
    calls: dict[str, Callable[[], Given]] = {
        "LinearClassifier": partial(classifier, linear, labels(h)[:60]),
        "LinearClassifier, three classes": partial(classifier, linear, ordered(h)[:60]),
        "GPClassifier": partial(classifier, process, labels(h)[:60], integrate=False),
        "LinearRegressor": partial(regressor, epfast.LinearRegressor, noisy(h)[:60]),
        "LinearRegressor, counts": partial(
            regressor, epfast.LinearRegressor, counts(h)[:60], loss="poisson"
        ),
        "GPRegressor": partial(regressor, epfast.GPRegressor, noisy(h)[:60], integrate=False),
        "a table of coefficients": table,
        "formula": formulas_fit,
        "compare": compared,
    }
    for name, call in calls.items():
        yield Fit(name, call)


def records(data: Data) -> Iterator[Fit]:
    """What each sweep records and tells a callback, by the forms of q and what is stored."""

    def recorded(fit: Callable[..., Any], **given: Any) -> Given:
        told: list[float] = []
        ticks: list[int] = []
        post = fit(
            callback=lambda info, state: told.append(info.log_evidence),
            progress=ticks.append,
            **given,
        )
        history = post.history
        costs = [info.factor_cost for info in history if info.factor_cost is not None]
        found: Given = of_posterior(post) | {
            "change": [info.change for info in history],
            "nats of sweeps": [info.log_evidence for info in history],
            "nats told": told,
            "counts": [[i.sweep, i.n_refused, i.n_failed, i.n_clipped] for i in history],
            "ticks": sum(ticks),
        }
        if history[0].cost is not None:
            found["nats of costs"] = [info.cost for info in history]
        return found | ({"nats of factors": np.concatenate(costs)} if costs else {})

    def first(fit: Callable[..., Any]) -> Given:
        post = fit(callback=lambda info, state: info.sweep == 2)
        return of_posterior(post) | {"sweeps": len(post.history)}

    model = Model(data.rows(55, 4, 32), "logistic", schedule=path())
    wide = Model(data.rows(20 + NEW, 30, 32, scale=0.4), "probit", schedule=path())
    thin = Model(data.sparse_rows(55, 8, 32), "poisson", schedule=path(order="parallel"))
    outliers = Model(data.rows(55, 4, 32), "student", schedule=path())
    slabs: Given = {"posterior": "factorized", "batch_size": 6, "scheme": "variational"}
    classes = having(loss="multiclass", y=kinds(model.X))
    for name, fit, given in (
        ("full", model.fit, having(record="cost")),
        ("full, ADF", model.fit, having(record="cost", schedule=epfast.ADF())),
        ("full, SEP", model.fit, having(record="cost", schedule=path(epfast.SEP))),
        ("full, DAEP", model.fit, having(schedule=path(epfast.DAEP))),
        ("full, DEP", model.fit, having(schedule=path(epfast.DEP, shards=4))),
        ("full, chunked", model.fit, having(schedule=path(order="chunked"))),
        ("full, batches", model.fit, having(batch_size=7, record="cost")),
        ("full, prior sites", model.fit, having(prior=losses.LaplacePrior(0.5))),
        ("full, outliers", outliers.fit, having(record="cost")),
        ("diagonal", model.fit, having(posterior="factorized", record="factor")),
        ("diagonal, ADF", model.fit, slabs | having(schedule=epfast.ADF(warm_up=0))),
        ("diagonal, batches", model.fit, slabs | having(record="factor")),
        ("sparse", thin.fit, having(posterior="sparse", record="cost")),
        ("wide", wide.fit, having(record="cost")),
        ("classes", model.fit, classes),
        ("process", Process(data, "probit", 30).fit, having(schedule=path())),
        ("process, outliers", Process(data, "student", 30).fit, having(schedule=path())),
        ("low rank", Process(data, "probit", 30).fit, having(schedule=path(), rank=6)),
    ):
        yield Fit(name, partial(recorded, fit, **given))
    yield Fit("ended by a callback", lambda: first(partial(model.fit, schedule=settled())))
    yield Fit("process ended by a callback", lambda: first(Process(data, "probit", 30).fit))


def descents(data: Data) -> Iterator[Fit]:
    """Double loops whose sweeps do not converge."""
    few = epfast.EP(sweeps=2, tol=1e-12, order="sequential")
    for loss in ("student", "contaminated", "quasi01", "noisy step", "ramp", "poisson"):
        model = Process(data, loss, 35)
        yield model(loss, schedule=epfast.DoubleLoop(start=few, match=1e-10))
    model, power = Process(data, "student", 35), epfast.EP(2, 1e-12, power=0.7)
    yield model("power", schedule=epfast.DoubleLoop(start=power, match=1e-10))
    yield model("few steps", schedule=epfast.DoubleLoop(start=few, steps=3))
    start = epfast.DoubleLoop(start=few, match=1e-10)
    yield Fit("start", lambda: model.fit(schedule=start, start=model.fit(schedule=start)))


def roundabout(data: Data) -> Iterator[Fit]:
    """Warm-ups, refused sites, threads, tables and other detours."""
    import pandas as pd

    model = Model(data.rows(65, 4, 33), "logistic")
    thin = Model(data.sparse_rows(65, 8, 33), "logistic", posterior="factorized")
    for name, given in {
        "warm-up": having(schedule=epfast.ADF()),
        "warm-up of some rows": having(schedule=epfast.ADF(warm_up=20)),
        "warm-up, batches": having(batch_size=6, scheme="variational", schedule=epfast.ADF()),
        "keep": having(schedule=path(site_rule="keep"), batch_size=5, scheme="variational"),
    }.items():
        yield model(f"diagonal, {name}", posterior="factorized", **given)
        yield thin(f"CSR, diagonal, {name}", **given)
    for loss in ("student", "contaminated", "quasi01", "ramp"):
        hard = Model(data.rows(85, 4, 33), loss)
        for order in ("chunked", "parallel"):
            yield hard(f"{loss}, {order}", schedule=path(sweeps=4, order=order))
        yield hard(f"{loss}, keep", posterior="factorized", schedule=path(site_rule="keep"))
    batches = Model(data.rows(67, 4, 33), "probit", batch_size=10, scheme=SCHEMES["laplace"])
    for name, one, schedule in (
        ("DSEP", model, path(epfast.DSEP, groups=4, order="parallel")),
        ("DAEP", model, path(epfast.DAEP, groups=4, order="parallel")),
        ("DEP", thin, epfast.DEP(shards=4, sweeps=500, tol=1e-10, order="parallel")),
        ("batches", batches, settled(order="parallel", damping=0.7)),
    ):
        yield Fit(f"threads, {name}", partial(on_threads, one, schedule=schedule), one.new)
    names = ["a", "b", "c", "d"]
    frame, new = pd.DataFrame(model.X, columns=names), pd.DataFrame(*model.new, columns=names)
    both: Given = {"intercept": True, "schedule": settled()}
    yield Fit("a table", partial(model.fit, frame, pd.Series(model.y), **both), (new,))
    parts = [(frame.iloc[at], model.y[at]) for at in (slice(0, 40), slice(40, None))]
    once: Given = {"schedule": epfast.ADF(), "intercept": True}
    yield Fit("tables that come", partial(epfast.fit_linear, parts, **once), (new,))
    cold = having(schedule=epfast.ADF(), posterior="factorized")
    yield Fit("tables that come, diagonal", partial(epfast.fit_linear, parts, **cold), (new,))
    many = data.rows(205, 160, 33, scale=0.2)[:, :-1]
    h = latent(many)
    classifier = partial(fitted, epfast.LinearClassifier, many[:200], labels(h)[:200])
    yield Fit("a search in directions", partial(classifier, schedule=settled()), (many[200:],))


def checks(data: Data) -> Iterator[Fit]:
    """Checks by importance sampling, of each kind of posterior."""
    model = Model(data.rows(55, 4, 34), "logistic", schedule=settled())
    thin = Model(data.sparse_rows(55, 8, 34), "poisson", schedule=settled())
    process = Process(data, "probit", 25, schedule=settled())
    outliers = Process(data, "student", 25)
    classes = having(y=kinds(model.X), loss="multiclass")

    def checked(fit: Callable[..., Any], **given: Any) -> Given:
        check = fit(**given).check(draws=300, rng=2)
        found = {"mean": check.mean, "variance": check.sd**2, "nats": check.log_evidence}
        return found | {"shift": check.shifts, "draws": check.effective_draws}

    for name, fit, given in (
        ("beta", model.fit, having(beta=0.5)),
        ("ADF", model.fit, having(schedule=epfast.ADF())),
        ("SEP", model.fit, having(schedule=path(epfast.SEP))),
        ("batches", model.fit, having(batch_size=9, scheme=SCHEMES["laplace"])),
        ("sparse", thin.fit, having(posterior="sparse")),
        ("slab", model.fit, having(prior=losses.SpikeAndSlab(0.5))),
        ("Laplace prior", model.fit, having(prior=losses.LaplacePrior(0.5))),
        ("classes", model.fit, classes),
        ("classes, product", model.fit, classes | having(loss=losses.Multiclass(correlated=False))),
        ("process", process.fit, {}),
        ("process, outliers", outliers.fit, {}),
        ("low rank", process.fit, having(rank=6)),
    ):
        yield Fit(name, partial(checked, fit, **given))


# ---- calls of the documentation ----


@dataclass(frozen=True)
class Guessing(epfast.Loss):
    """Right or wrong answers to questions with four options (docs/tutorial_loss.rst)."""

    by_margin = False
    is_likelihood = True
    response_width = 1
    gives = frozenset({"values", "continuous", "powers"})

    def responses(self, name: str, y: Any, n: int) -> np.ndarray:
        return np.asarray(y, dtype=float).reshape(n, 1)

    def core(self) -> Any:
        def value(h: Any, r: Any) -> Any:
            right = np.log(0.25 + 0.75 * expit(h))
            return -np.where(r[:, 0] > 0, right, np.log(0.75) + log_expit(-h))

        return losses.CoreLoss.python(value, beta=self.beta, width=1)


@dataclass(frozen=True)
class Rate(epfast.Loss):
    """Counts with a span of time (docs/extending.rst)."""

    by_margin = False
    is_likelihood = True
    response_width = 3

    def responses(self, name: str, y: Any, n: int) -> np.ndarray:
        count, span = np.asarray(y, dtype=float).reshape(n, 2).T
        return np.column_stack([count, span, gammaln(count + 1.0) - count * np.log(span)])

    def core(self) -> Any:
        return losses.CoreLoss.python(
            lambda h, r: r[:, 1] * np.exp(h) - r[:, 0] * h + r[:, 2],
            lambda h, r: r[:, 1] * np.exp(h) - r[:, 0],
            lambda h, r: r[:, 1] * np.exp(h),
            beta=self.beta,
            width=3,
        )

    def predict(self, mean: Any, variance: Any) -> Any:
        return np.exp(mean + 0.5 * variance)


class GaussHermite(schemes.RowScheme):
    """Tilted moments by twenty points (docs/extending.rst)."""

    def moments(self, loss: Any, y: Any, mean: Any, variance: Any, power: Any) -> Any:
        points, weights = np.polynomial.hermite_e.hermegauss(20)
        sd = np.sqrt(variance)
        h = mean[:, None] + sd[:, None] * points
        log_t = -power[:, None] * loss.values(h, y[:, None] if y.ndim == 1 else y)
        top = log_t.max(axis=1)
        w = weights * np.exp(log_t - top[:, None]) / np.sqrt(2.0 * np.pi)
        Z = w.sum(axis=1)
        first, second = w @ points / Z, w @ points**2 / Z
        return top + np.log(Z), first / sd, (second - first**2 - 1.0) / variance


class WideQuadrature(schemes.Quadrature):
    """Points that are further out (docs/extending.rst)."""

    def core_arguments(self, d: int) -> Any:
        return {"scheme": "quadrature", "gamma": (3.0 * d) ** 0.5}


class Backwards(epfast.EP):
    """The last row first (docs/extending.rst)."""

    def visits(self, n_factors: int, sweep: int) -> Any:
        return np.arange(n_factors)[::-1]


class Observation:
    """A factor by its messages (docs/extending.rst)."""

    def project(self, messages: Any, data: Any) -> Any:
        (cavity,) = messages
        precision, shift = cavity.T
        m, total = shift / precision, 1.0 / precision + data["v"]
        log_z = -0.5 * ((data["y"] - m) ** 2 / total + np.log(2.0 * np.pi * total))
        return log_z, (cavity + np.stack([1.0 / data["v"], data["y"] / data["v"]], axis=1),)


def by_hand(X: Any, y: Any, sweeps: int = 40) -> Given:
    """EP in parallel, of tilted moments (docs/tutorial_backend.rst)."""
    tau, nu = np.zeros((2, len(X)))
    for _ in range(sweeps):
        Sigma = np.linalg.inv(np.eye(X.shape[1]) + (X.T * tau) @ X)
        mu = Sigma @ (X.T @ nu)
        v, m = np.einsum("ij,ij->i", X @ Sigma, X), X @ mu
        cavity_v = 1.0 / (1.0 / v - tau)
        cavity_m = cavity_v * (m / v - nu)
        _, slope, bend = backend.tilted_moments("probit", y, cavity_m, cavity_v)
        new_tau = -bend / (1.0 + cavity_v * bend)
        tau, nu = (
            tau + 0.5 * (new_tau - tau),
            nu + 0.5 * (slope / (1.0 + cavity_v * bend) + cavity_m * new_tau - nu),
        )
    return {"mean": mu, "variance": Sigma.diagonal(), "tau": tau, "nu": nu}


def filtered(X: Any, y: Any) -> Given:
    """One pass over minibatches (docs/tutorial_backend.rst)."""
    precision, shift = np.ones(X.shape[1]), np.zeros(X.shape[1])
    for rows in np.array_split(np.arange(len(y)), len(y) // 10):
        more, push, _ = backend.fit_minibatch(
            "logistic", y[rows, None] * X[rows], shift / precision, 1.0 / precision, "laplace"
        )
        precision, shift = precision + more, shift + push
    return {"mean": shift / precision, "variance": 1.0 / precision}


def streamed(X: Any, y: Any) -> Any:
    """A stream that is stored in the middle (docs/tutorial_streams.rst)."""
    parts = [(X[i : i + 40], y[i : i + 40]) for i in range(0, len(y), 40)]
    given: Given = {"schedule": epfast.ADF(), "intercept": True}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "half.npz")
        epfast.fit_linear(iter(parts[:3]), **given).save(file)
        half = epfast.load(file)
    assert half.rows_seen == 120
    return epfast.fit_linear(iter(parts[3:]), start=half, **given)


def more_and_less(X: Any, y: Any) -> Any:
    """Rows that come and go (docs/tutorial_streams.rst)."""
    some: Any = epfast.fit_linear(X[:150], y[:150], intercept=True)
    return some.partial_fit(X[150:], y[150:]).remove(np.arange(150, len(y)))


def documented(data: Data) -> Iterator[Fit]:
    """Calls of pages, examples and benchmarks on small data, with their default tolerance."""
    X = data.rows(205, 5, 28)[:, :-1]
    h = latent(X)
    rows, new, y = X[:200], (X[200:],), labels(h)[:200]
    smooth = epfast.CustomLoss(
        lambda m: np.where(m < 0.0, 0.5 - m, 0.5 * np.maximum(0.0, 1.0 - m) ** 2),
        lambda m: -np.clip(1.0 - m, 0.0, 1.0),
        lambda m: ((m > 0.0) & (m < 1.0)).astype(float),
    )
    span = np.linspace(0.5, 2.0, 200)
    rates = np.column_stack([np.random.default_rng(29).poisson(span * np.exp(0.5 * h[:200])), span])
    right = np.where(np.random.default_rng(30).random(200) < 0.25 + 0.75 * expit(h[:200]), 1, -1)
    slab: Given = {"posterior": "factorized", "batch_size": 10}
    table: dict[str, Given] = {
        "defaults": {},
        "intercept": having(intercept=True),
        "a wide prior": having(intercept=True, prior_variance=25.0),
        "diagonal": having(intercept=True, posterior="factorized"),
        "guessing": having(y=right, loss=Guessing(), intercept=True),
        "smooth hinge": having(loss=smooth),
        "smooth hinge, batches": having(loss=smooth, posterior="factorized", batch_size=100),
        "rates": having(y=rates, loss=Rate()),
        "Gauss-Hermite": having(scheme=GaussHermite()),
        "Gauss-Hermite, counts": having(
            y=counts(0.5 * h[:200]), loss="poisson", scheme=GaussHermite()
        ),
        "wide quadrature": having(scheme=WideQuadrature()),
        "backwards": having(schedule=Backwards(order="sequential")),
        "three sweeps of SEP": having(schedule=epfast.SEP(sweeps=3, tol=0.0), loss="probit"),
        "three sweeps of AEP": having(schedule=epfast.AEP(sweeps=3, tol=0.0), loss="probit"),
        "passes": having(schedule=epfast.ADF(passes=2), loss="probit"),
        "committee machine": having(
            batch_size=20, schedule=epfast.EP(sweeps=1, tol=0.0, order="parallel")
        ),
        "table 1 of Roche": slab | having(scheme="variational", schedule=path(sweeps=5)),
        "table 1 of Roche, quadrature": slab | having(scheme="quadrature", schedule=path(sweeps=5)),
        "shards": having(schedule=epfast.DEP(8, 60, 1e-6), prior_variance=25.0),
        "sparse columns": having(
            X=sparse.csr_array(np.where(np.abs(rows) > 1.0, rows, 0.0)),
            loss="probit",
            posterior="factorized",
            schedule=epfast.ADF(warm_up=0),
        ),
    }
    for name, given in table.items():
        arguments: Given = {"X": rows, "y": y} | given
        yield Fit(name, partial(epfast.fit_linear, **arguments), new)
    for name, make in (("streamed", streamed), ("more and less", more_and_less)):
        yield Fit(name, partial(make, rows, y), new)
    for name, make in (("by hand", by_hand), ("filtered", filtered)):
        yield Fit(name, partial(make, rows, y))
    K = np.exp(-0.5 * ((rows[:60, None] - rows[:60]) ** 2).sum(axis=2))
    wave = 4.0 * np.exp(-0.5 * np.subtract.outer(*[np.linspace(-3, 3, 30)] * 2) ** 2)
    up = np.where(np.sin(2 * np.linspace(-3, 3, 30)) > 0, 1, -1)
    five, on = np.random.default_rng(31).normal(size=(5, 2)), [1.0, -1.0, 1.0, 1.0, -1.0]
    step: Given = {"loss": epfast.NoisyStep(0.2)}
    of_processes: dict[str, Given] = {
        "process of guesses": having(K=K, y=right[:60], loss=Guessing()),
        "wave": having(K=wave, y=up),
        "wave, double loop": having(K=wave, y=up, schedule=epfast.DoubleLoop()),
        "five points": having(K=five @ five.T, y=on) | step,
        "five points, power": having(
            K=five @ five.T, y=on, schedule=epfast.EP(300, 1e-8, order="sequential", power=0.8)
        )
        | step,
        "low rank, shards": having(
            K=epfast.incomplete_cholesky(epfast.KernelColumns.rbf(rows[:60], 2.0), 20),
            y=y[:60],
            loss="logistic",
            schedule=epfast.DEP(shards=4),
        ),
    }
    for name, given in of_processes.items():
        yield Fit(name, partial(epfast.fit_gp, **given))

    def observed() -> Any:
        g = epfast.Graph()
        g.add(graph.Factor(scheme=Observation()), g.gaussian(3), y=[0.3, -1.0, 2.0], v=0.5)
        return g.fit()

    def items() -> Any:
        g = epfast.Graph()
        person, item = g.gaussian(20), g.gaussian(4, variance=4.0)
        who, what = (part.ravel() for part in np.mgrid[:20, :4])
        g.add("logistic", person[who] - item[what], labels(np.sin(who) - 0.4 * what))
        return g.fit()

    yield Fit("an observation", observed)
    yield Fit("items of a test", items)


def documented_searches(data: Data) -> Iterator[Fit]:
    """Those that search for hyper-parameters."""
    import pandas as pd
    from sklearn.datasets import load_breast_cancer, load_digits, load_iris
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from epfast import formula, rating

    cells, benign = load_breast_cancer(return_X_y=True)
    cells = moved(cells, data)
    yield Fit("README", partial(fitted, epfast.LinearClassifier, cells, benign), (cells[:NEW],))

    def of_pipeline(last: Any, X: Any, y: Any) -> Given:
        model = make_pipeline(StandardScaler(), last).fit(X[NEW:], y[NEW:])
        return {"proba": model.predict_proba(X[:NEW])}

    flowers, species = load_iris(return_X_y=True)
    flowers = moved(flowers, data)
    yield Fit("pipeline", partial(of_pipeline, epfast.LinearClassifier(), cells, benign))
    yield Fit("pipeline, iris", partial(of_pipeline, epfast.LinearClassifier(), flowers, species))
    some = slice(None, None, 3)
    for name, last in {
        "pipeline, processes of iris": epfast.GPClassifier(),
        "pipeline, iris together": epfast.LinearClassifier(loss="multiclass"),
    }.items():
        yield Fit(name, partial(of_pipeline, last, flowers[some], species[some]))

    rng = np.random.default_rng(1)
    clinics = pd.DataFrame(
        {"clinic": rng.integers(0, 12, 300), "dose": moved(rng.normal(size=300), data)}
    )
    logit = 0.5 + clinics["dose"] + rng.normal(0.0, 1.0, 12)[clinics["clinic"]]
    clinics["cured"] = rng.random(300) < expit(logit)
    random = partial(formula.fit, "cured ~ dose + (1 | clinic)", clinics, family="bernoulli")
    yield Fit("README, random effects", random, (clinics.iloc[:NEW],))

    effect, error = (
        np.array([28.0, 8, -3, 7, -1, 1, 18, 12]),
        np.array([15.0, 10, 16, 11, 9, 11, 10, 18]),
    )
    schools = partial(
        epfast.fit_hyper,
        moved(np.column_stack([np.eye(8), np.ones(8)]) / error[:, None], data),
        effect / error,
        loss=losses.Gaussian(1.0),
        sds={"school": (slice(0, 8), priors.HalfCauchy(5.0))},
        prior_variance=25.0,
    )
    yield Fit("eight schools", schools)
    line = moved(np.linspace(-4, 4, 15)[:, None], data)
    wave = np.random.default_rng(0).poisson(np.exp(np.sin(np.linspace(-4, 4, 15))))
    both = {"length_scale": priors.Gamma(4, 2), "sd": priors.HalfNormal(2.0)}
    over = partial(epfast.fit_hyper_gp, ConstantKernel(1.0) * RBF(1.0), line, wave, priors=both)
    yield Fit("counts on a line", partial(over, loss="poisson"), (line[:NEW],))

    place = np.arange(140) % 14
    X = moved(np.column_stack([np.ones(140), rng.normal(size=140), np.eye(14)[place]]), data)
    count = rng.negative_binomial(2, 1.0 / (1.0 + 0.5 * np.exp(0.5 * X[:, 1])))
    sites = partial(
        epfast.fit_hyper,
        X,
        count,
        loss="negative_binomial",
        sds={"site": (slice(2, 16), priors.HalfNormal(1.0))},
        learn={"size": priors.HalfNormal(20.0)},
    )
    yield Fit("counts of sites", sites, (X[:NEW],))

    digits = load_digits()
    chosen = np.flatnonzero(np.isin(digits.target, (1, 7)))[:120]
    pixels, seven = (
        moved(digits.data[chosen][:, 20:28] / 16.0, data),
        np.where(digits.target[chosen] == 7, 1, -1),
    )
    given = np.where(rng.random(120) < 0.25, -seven, seven)
    for name, arguments in {
        "trusting": having(loss="probit"),
        "wary": having(loss=losses.Contaminated(), learn=("share",), integrate=False),
    }.items():
        call = partial(fitted, epfast.LinearClassifier, pixels, given, **arguments)
        yield Fit(name, call, (pixels[:NEW],))

    year = moved(np.linspace(-1.0, 1.2, 60)[:, None], data)
    disasters = np.random.default_rng(2).poisson(np.where(year[:, 0] < -0.2, 3.0, 0.9))
    x = moved(np.linspace(0.0, 6.0, 40)[:, None], data)
    curve = np.sin(x[:, 0]) + 0.05 * np.random.default_rng(0).normal(size=40)
    curve[::8] += 5.0
    for name, rows, y, arguments in (
        ("disasters", year, disasters, having(loss="poisson")),
        ("a curve with outliers", x, curve, having(loss="student_t")),
        ("a curve with outliers, Gaussian noise", x, curve, {}),
    ):
        call = partial(fitted, epfast.GPRegressor, rows, y, **arguments)
        yield Fit(name, call, (rows[:NEW],))

    ring = moved(rng.normal(size=(100, 2)), data)
    inside = np.where(np.hypot(*ring.T) < 1.1, "in", "out")
    for name, kernel in (("a ring", 1.0 * RBF(1.0)), ("a ring, default kernel", None)):
        call = partial(fitted, epfast.GPClassifier, ring, inside, kernel=kernel)
        yield Fit(name, call, (ring[:NEW],))

    names = np.array(["ann", "bob", "cyd", "dee"])
    first, second = (np.arange(40) % 4, (np.arange(40) + 1 + np.arange(40) // 4 % 3) % 4)
    win = rng.random(40) < expit(0.6 * (second - first))
    games = {"winner": names[np.where(win, first, second)]}
    games |= {"loser": names[np.where(win, second, first)], "day": np.arange(40) // 4}

    def rated(**arguments: Any) -> Given:
        result = rating.fit(games, **arguments)
        table = result.table().sort_index()
        mean, sd = (table[name].to_numpy(np.float64) for name in ("rating", "sd"))
        return {"mean": mean, "variance": sd**2, "log_evidence": result.log_evidence}

    yield Fit("ratings", rated)
    yield Fit("ratings through time", partial(rated, time="day"))


GROUPS: dict[str, tuple[Callable[[Data], Iterator[Fit]], Bounds]] = {
    "rows by loss": (rows_by_loss, SETTLED),
    "passes by loss": (passes_by_loss, ONCE),
    "passes": (passes, ONCE),
    "schedules": (schedules, SETTLED),
    "schemes": (schemes_by_form, SETTLED),
    "arguments": (arguments, SETTLED),
    "walks": (walks, SETTLED),
    "prior sites": (prior_sites, SETTLED),
    "learned priors": (learned_priors, SEARCHED),
    "later": (later, SETTLED),
    "latents": (latents, SETTLED),
    "processes by loss": (processes_by_loss, SETTLED),
    "processes": (processes, SETTLED),
    "relaxed": (relaxed, SEARCHED),
    "low rank": (low_rank, SETTLED),
    "hyper": (hyper, SEARCHED),
    "hyper processes": (hyper_processes, SEARCHED),
    "LinearClassifier": (linear_classifiers, SEARCHED),
    "LinearRegressor": (linear_regressors, SEARCHED),
    "GPClassifier": (process_classifiers, SEARCHED),
    "GPRegressor": (process_regressors, SEARCHED),
    "formulas": (formulas, SEARCHED),
    "moments": (moments, ONCE),
    "sweeps": (sweeps, SETTLED),
    "graphs": (graphs, SETTLED),
    "ratings": (ratings, SETTLED),
    "parametric": (parametric, SETTLED),
    "machines": (machines, SETTLED),
    "operators": (operators, SETTLED),
    "GPy": (of_gpy, SETTLED),
    "large": (large, SETTLED),
    "records": (records, SETTLED),
    "descents": (descents, SETTLED),
    "roundabout": (roundabout, SETTLED),
    "checks": (checks, SETTLED),
    "asked": (asked, SEARCHED),
    "documented": (documented, SETTLED),
    "documented searches": (documented_searches, SEARCHED),
}

RECORD = Record(Path(__file__).with_name("many.npz"), GROUPS)

if __name__ == "__main__":
    sys.exit(RECORD.main(__doc__))
