"""Parts of ``peers`` that are no contest over splits: processes, NUTS as truth, many rows."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, log_ndtr, ndtr

import epfast
from bench.lib import datasets, harness
from bench.lib.harness import Claim
from bench.likelihoods import contest
from bench.likelihoods.contest import PRIOR, Array
from epfast import losses

Part = tuple[Any, list[Claim]]

# ---- 9. processes ----

N, LENGTH, NUGGET = 100, 0.8, 1e-8
DF = 4.0


def _neal(rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """Inputs, curve and responses of Neal (1997): 5 % of the noise is ten times as wide."""
    x = rng.normal(size=N)
    curve = 0.3 + 0.4 * x + 0.5 * np.sin(2.7 * x) + 1.1 / (1.0 + x * x)
    return x, curve, curve + np.where(rng.random(N) < 0.05, 1.0, 0.1) * rng.normal(size=N)


def _kernel(a: Array, b: Array) -> Array:
    return np.asarray(np.exp(-0.5 * np.subtract.outer(a, b) ** 2 / LENGTH**2))


def _process(loss: losses.Loss, name: str) -> Callable[[Array, Array, Array], Any]:
    """Latent moments at new inputs, their likelihood, the log evidence; one parameter tuned."""

    def fit(x: Array, y: Array, z: Array) -> Any:
        K = _kernel(x, x) + NUGGET * np.eye(N)
        gp = contest.tuned(
            K, y, loss, [name], fit=lambda loss, start: epfast.fit_gp(K, y, loss=loss, start=start)
        )
        return lambda: (*gp.predict_latent(_kernel(z, x), np.ones(len(z))), gp.loss, gp.converged)

    return fit


def _gpy(x: Array, y: Array, z: Array) -> Any:
    """GPy's Laplace approximation of the same process, its scale by its own evidence."""
    import GPy

    likelihood = GPy.likelihoods.StudentT(deg_free=DF, sigma2=0.04)
    kernel = GPy.kern.RBF(1, lengthscale=LENGTH)
    method = GPy.inference.latent_function_inference.Laplace()
    model = GPy.core.GP(x[:, None], y[:, None], kernel, likelihood, inference_method=method)
    # a kernel that is fixed as a whole has no gradient, and GPy fails
    model.kern.variance.fix()
    model.kern.lengthscale.constrain_bounded(LENGTH - 1e-6, LENGTH + 1e-6, warning=False)
    model.likelihood.deg_free.fix()
    model.optimize()

    def moments() -> Any:
        mean, variance = model.predict_noiseless(z[:, None])
        scale = float(model.likelihood.t_scale2[0]) ** 0.5
        return mean[:, 0], variance[:, 0], losses.StudentT(DF, scale), True

    return moments


def _gpy_evidence(x: Array, y: Array, scale: float) -> float:
    import GPy

    likelihood = GPy.likelihoods.StudentT(deg_free=DF, sigma2=scale**2)
    kernel = GPy.kern.RBF(1, lengthscale=LENGTH)
    method = GPy.inference.latent_function_inference.Laplace()
    model = GPy.core.GP(x[:, None], y[:, None], kernel, likelihood, inference_method=method)
    return float(model.log_likelihood())


def processes(options: argparse.Namespace) -> Part:
    """Student-t noise on Neal's data: new rows, distance from the curve, log evidence."""
    sides = {
        "Student-t 4": _process(losses.StudentT(DF, 0.2), "scale"),
        "Gaussian": _process(losses.Gaussian(0.04), "variance"),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # GPy's own, on import
        there = contest.installed("GPy", "its Laplace approximation")
        if there:
            sides["GPy Laplace, Student-t 4"] = _gpy
        print("GPflow is not run: its last version takes no NumPy 2, which epfast is built with")
        found: dict[str, list[list[float]]] = {name: [] for name in sides}
        evidences: list[list[float]] = []
        for seed in range(-1, 2 if options.quick else options.splits):  # the first warms up
            rng = np.random.default_rng(abs(seed))
            x, _, y = _neal(rng)
            z, curve, t = _neal(rng)
            for name, side in sides.items():
                moments, seconds = harness.timed(lambda side=side, x=x, y=y, z=z: side(x, y, z))
                mean, variance, loss, settled = moments()
                forecast = contest.of_latent(loss, mean, variance, t)
                assert forecast.quantile is not None
                row = [float(np.mean(forecast.log_density))]
                row += [float(np.sqrt(np.mean((mean - curve) ** 2)))]
                for level in contest.LEVELS:
                    low, high = (forecast.quantile(0.5 + s * 0.5 * level) for s in (-1.0, 1.0))
                    row.append(float(np.mean((low <= t) & (t <= high))))
                if seed >= 0:
                    found[name].append([*row, 1e3 * seconds, float(not settled)])
            if seed >= 0:
                gp = epfast.fit_gp(
                    _kernel(x, x) + NUGGET * np.eye(N), y, loss=losses.StudentT(DF, 0.1)
                )
                check = gp.check(1000 if options.quick else 20_000, rng=1)
                theirs = _gpy_evidence(x, y, 0.1) if there else np.nan
                evidences.append([seed, gp.log_evidence, theirs, check.log_evidence])
    headers = ["fit", "log density", "sd", "less first", "+-", "error of curve"]
    headers += ["50 %", "90 %", "95 %", "ms", "not settled"]
    first = np.array(found["Student-t 4"])
    rows = []
    for name, values in found.items():
        table = np.array(values)
        ahead = table[:, 0] - first[:, 0]
        row = [name, table[:, 0].mean(), table[:, 0].std(), ahead.mean(), contest.error_of(ahead)]
        rows.append([*row, *table[:, 1:5].mean(axis=0), np.median(table[:, 5])])
        rows[-1].append(int(table[:, 6].sum()))
    stored = harness.table(headers, rows, f"Neal's data, {N} rows, as many new ones")
    names = ["seed", "EP", "GPy's Laplace", "sampled"]
    harness.table(names, evidences, "Log evidence at scale .1")
    claims: list[Claim] = []
    where = "processes: Neal"
    settled = not first[:, 6].any()
    claims.append((where, "Student-t 4 settles on every seed", settled, ""))
    covered = float(first[:, 3].mean())
    near = abs(covered - 0.9) <= contest.COVERAGE
    claims.append((where, "90 % intervals cover .9 +- 0.04", near, f"{covered:.3f}"))
    if there:
        theirs = np.array(found["GPy Laplace, Student-t 4"])
        gain = first[:, 0] - theirs[:, 0]
        claims.append((where, "log density not below GPy's", *contest.not_behind(gain)))
        quotient = float(np.median(first[:, 5] / theirs[:, 5]))
        claims.append((where, "no slower than GPy", quotient <= 1.0, f"{quotient:.3g} times"))
        off = np.abs(np.array(evidences)[:, 1:3] - np.array(evidences)[:, 3:]).mean(axis=0)
        text = f"off by {off[0]:.3f}, and by {off[1]:.3f}, in the mean"
        claims.append((where, "log evidence nearer to the truth", bool(off[0] <= off[1]), text))
    return {"rows": stored, "evidence": evidences}, claims


# ---- 10. sampling ----

GROUPS, IN_GROUP = 30, 20
#: posterior sds by which means may differ, and factor of an sd
SHIFT, FACTOR = 0.1, 0.1
#: of the half-normal prior of the groups' sd: nearly flat
SD_SCALE = 5.0
MOMENTS = ("mean", "variance")


def _nuts(model: Callable[..., None], *data: Any, quick: bool) -> tuple[dict[str, Array], float]:
    """Draws of NumPyro's NUTS, and seconds, compilation included."""
    import jax
    from numpyro.infer import MCMC, NUTS

    jax.config.update("jax_enable_x64", True)
    warm, draws, chains = (200, 500, 1) if quick else (500, 1500, 4)
    sampler = MCMC(
        NUTS(model, target_accept_prob=0.9),
        num_warmup=warm,
        num_samples=draws,
        num_chains=chains,
        chain_method="sequential",
        progress_bar=False,
    )
    _, seconds = harness.timed(lambda: sampler.run(jax.random.PRNGKey(0), *data))
    return {name: np.asarray(value) for name, value in sampler.get_samples().items()}, seconds


def _poisson_model(X: Any, y: Any) -> None:
    import numpyro
    from jax import numpy as jnp
    from numpyro import distributions as dist

    theta = numpyro.sample("theta", dist.Normal(0.0, PRIOR**0.5).expand([X.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Poisson(jnp.exp(X @ theta)), obs=y)


def _multilevel_model(X: Any, group: Any, y: Any) -> None:
    """Groups' effects as sd times standard normals; sd half-normal."""
    import numpyro
    from numpyro import distributions as dist

    theta = numpyro.sample("theta", dist.Normal(0.0, PRIOR**0.5).expand([X.shape[1]]).to_event(1))
    sd = numpyro.sample("sd", dist.HalfNormal(SD_SCALE))
    z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([GROUPS]).to_event(1))
    u = numpyro.deterministic("u", sd * z)
    numpyro.sample("y", dist.Bernoulli(logits=X @ theta + u[group]), obs=y)


def _against(
    name: str, mean: Array, sd: Array, truth: Array, seconds: float, theirs: float
) -> dict[str, Any]:
    """Distances of means, in sds of the draws, and factors of sds."""
    center, spread = truth.mean(axis=0), truth.std(axis=0)
    return {
        "fit": name,
        "largest |mean - truth| / sd": float(np.max(np.abs(mean - center) / spread)),
        "least sd / truth": float(np.min(sd / spread)),
        "largest": float(np.max(sd / spread)),
        "ms": 1e3 * seconds,
        "NUTS, ms": 1e3 * theirs,
    }


def multilevel(seed: int) -> tuple[Array, Array, Array]:
    """Three covariates and a one, the group of each row, labels 0 and 1; sd of the groups 1."""
    rng = np.random.default_rng(seed)
    n = GROUPS * IN_GROUP
    X = np.column_stack([rng.normal(size=(n, 3)), np.ones(n)])
    group = np.repeat(np.arange(GROUPS), IN_GROUP)
    h = X @ [1.0, -0.5, 0.0, -0.3] + rng.normal(size=GROUPS)[group]
    return X, group, (rng.random(n) < expit(h)).astype(float)


def _grouped(X: Array, group: Array) -> tuple[Array, Any]:
    """X with a column for each group, and the places of these."""
    d = X.shape[1]
    members = (group[:, None] == np.arange(GROUPS)).astype(float)
    return np.hstack([X, members]), np.arange(d, d + GROUPS)


def fit_multilevel(X: Array, group: Array, y: Array) -> Any:
    """A linear model with a column per group, whose prior variance the log evidence chooses."""
    Z, columns = _grouped(X, group)
    variance = np.full(Z.shape[1], PRIOR)
    variance[columns] = 1.0
    return contest.tuned(
        Z, 2.0 * y - 1.0, losses.Logistic(), groups=[columns], prior_variance=variance
    )


def averaged(post: Any, X: Array, group: Array, y: Array) -> tuple[Array, Array, Array, Array]:
    """Means and sds of the weights over a grid of sds of the groups, the sd's own mean and sd.

    The grid is weighted by the evidence and by the prior of the model that NUTS runs.
    """
    Z, columns = _grouped(X, group)
    best = post.prior_precision[columns[0], columns[0]] ** -0.5
    sds = best * np.exp(np.linspace(-1.5, 1.5, 25))
    log_weight, fits = np.empty(len(sds)), []
    for k, sd in enumerate(sds):
        variance = np.full(Z.shape[1], PRIOR)
        variance[columns] = sd**2
        fits.append(epfast.fit_linear(Z, 2.0 * y - 1.0, prior_variance=variance))
        log_weight[k] = fits[-1].log_evidence - 0.5 * (sd / SD_SCALE) ** 2 + np.log(sd)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    means, variances = (np.array([getattr(fit, name) for fit in fits]) for name in MOMENTS)
    mean, center = weight @ means, weight @ sds
    spread = np.sqrt(weight @ (variances + (means - mean) ** 2))
    return mean, spread, center, np.sqrt(weight @ (sds - center) ** 2)


def sampling(options: argparse.Namespace) -> Part:
    """EP beside NUTS: a Poisson model, and a multilevel logistic one."""
    if not contest.installed("numpyro", "NUTS as truth"):
        return {}, []
    rows: list[dict[str, Any]] = []
    try:
        table = datasets.load_numbers("haberman")
    except (RuntimeError, FileNotFoundError) as error:
        print(f"skipped: {error}")
    else:
        X = (table[:, :2] - table[:, :2].mean(axis=0)) / table[:, :2].std(axis=0)
        X, y = np.column_stack([X, np.ones(len(X))]), table[:, 2]
        epfast.fit_linear(X, y, loss="poisson", prior_variance=PRIOR)
        post, seconds = harness.timed(
            lambda: epfast.fit_linear(X, y, loss="poisson", prior_variance=PRIOR)
        )
        draws, theirs = _nuts(_poisson_model, X, y.astype(int), quick=options.quick)
        sd = np.sqrt(post.variance)
        rows.append(_against("Poisson, haberman", post.mean, sd, draws["theta"], seconds, theirs))
    groups: list[dict[str, Any]] = []
    for seed in range(1 if options.quick else 3):
        X, group, y = multilevel(seed)
        fit_multilevel(X, group, y)
        post, seconds = harness.timed(lambda X=X, group=group, y=y: fit_multilevel(X, group, y))
        whole, longer = harness.timed(
            lambda X=X, group=group, y=y, post=post: averaged(post, X, group, y)
        )
        draws, theirs = _nuts(_multilevel_model, X, group, y, quick=options.quick)
        fits = {
            "EP": (post.mean, np.sqrt(post.variance), seconds),
            "EP, averaged": (*whole[:2], seconds + longer),
        }
        fits |= _mixed_glm(X, group, y)
        truth = np.hstack([draws["theta"], draws["u"]])
        d = X.shape[1]
        parts = {"slopes": slice(d - 1), "intercept": slice(d - 1, d), "groups": slice(d, None)}
        for name, (mean, sd, time) in fits.items():
            for part, at in parts.items():
                given = (mean[at], sd[at], truth[:, at], time, theirs)
                rows.append(_against(f"{part} {seed}, {name}", *given))
        row = {"seed": seed, "sd by evidence": float(post.prior_precision[-1, -1] ** -0.5)}
        row |= {"averaged": float(whole[2]), "sd": float(whole[3])}
        row |= {"NUTS": draws["sd"].mean(), "sd of it": draws["sd"].std()}
        row |= {f"{100 * p:g} %": np.quantile(draws["sd"], p) for p in (0.05, 0.5, 0.95)}
        groups.append(row)
    harness.table(list(rows[0]), [list(row.values()) for row in rows], "EP beside NUTS")
    title = "Standard deviation of the groups (1 in the simulation)"
    harness.table(list(groups[0]), [list(row.values()) for row in groups], title)
    claims = [_near(rows, "Poisson", "")]
    for part in ("slopes", "intercept", "groups"):
        claims += [_near(rows, part, ", EP"), _near(rows, part, ", EP, averaged")]
    inside = all(row["5 %"] <= row["sd by evidence"] <= row["95 %"] for row in groups)
    claims.append(("NUTS", "sd of the groups within the 90 % interval of NUTS", inside, ""))
    return {"fits": rows, "groups": groups}, [claim for claim in claims if claim]


def _near(rows: list[dict[str, Any]], part: str, ending: str) -> Claim | None:
    """Whether the means and the sds of some weights are those of the draws."""
    mine = [row for row in rows if row["fit"].startswith(part) and row["fit"].endswith(ending)]
    if not mine:
        return None
    shift = max(row["largest |mean - truth| / sd"] for row in mine)
    off = max(max(abs(row["least sd / truth"] - 1.0), abs(row["largest"] - 1.0)) for row in mine)
    text = f"means off by {shift:.3f} sd, sds by {100 * off:.1f} % at most"
    claim = f"{part}{ending}: means within {SHIFT:g} sd, sds within {100 * FACTOR:g} % of NUTS"
    return "NUTS", claim, shift <= SHIFT and off <= FACTOR, text


def _mixed_glm(X: Array, group: Array, y: Array) -> dict[str, tuple[Array, Array, float]]:
    """The variational fit of statsmodels: means, sds, seconds."""
    if not contest.installed("statsmodels", "its BinomialBayesMixedGLM"):
        return {}
    from statsmodels.genmod.bayes_mixed_glm import BinomialBayesMixedGLM

    members, one = _grouped(X, group)[0][:, X.shape[1] :], np.zeros(GROUPS, int)
    model = BinomialBayesMixedGLM(y, X, members, one, vcp_p=1.0, fe_p=PRIOR**0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result, seconds = harness.timed(model.fit_vb)
    mean = np.concatenate([result.fe_mean, result.vc_mean])
    return {"sm VB": (mean, np.concatenate([result.fe_sd, result.vc_sd]), seconds)}


# ---- 11. many rows ----

ROWS, COLUMNS = 32_561, 20
CUTS = (-1.0, 0.0, 1.0)
#: times the point estimate's seconds that a fit may take
TIMES = 3.0


def poisson_cost(theta: Array, X: Array, y: Array) -> tuple[float, Array]:
    h = X @ theta
    mean = np.exp(h)
    cost = mean.sum() - y @ h + 0.5 * theta @ theta / PRIOR
    return cost, X.T @ (mean - y) + theta / PRIOR


def ordinal_cost(theta: Array, X: Array, y: Array) -> tuple[float, Array]:
    """Probit, by the nearer tail: with a < b, log(F(b) - F(a)) where a + b <= 0."""
    ends = np.array([-np.inf, *CUTS, np.inf])
    h = X @ theta
    a, b = ends[y] - h, ends[y + 1] - h
    swapped = a + b > 0.0
    low, high = np.where(swapped, -b, a), np.where(swapped, -a, b)
    log_p = np.log(ndtr(high) - ndtr(low))
    lost = ~np.isfinite(log_p)
    if lost.any():
        log_p[lost] = log_ndtr(high[lost])
    density = np.exp(-0.5 * a * a - log_p) - np.exp(-0.5 * b * b - log_p)
    slope = density / np.sqrt(2.0 * np.pi)
    return -log_p.sum() + 0.5 * theta @ theta / PRIOR, theta / PRIOR - X.T @ slope


def _point(cost: Any, X: Array, y: Array) -> Array:
    """L-BFGS until no slope is above 1e-5 per row."""
    options = {"gtol": 1e-5 * len(X), "ftol": 0.0, "maxiter": 500}
    start = np.zeros(X.shape[1])
    return np.asarray(minimize(cost, start, (X, y), jac=True, method="L-BFGS-B", options=options).x)


def large(options: argparse.Namespace) -> Part:
    """Seconds of fits of many rows beside those of the mode by L-BFGS."""
    rng = np.random.default_rng(0)
    n = 2000 if options.quick else ROWS
    X = np.column_stack([rng.normal(size=(n, COLUMNS - 1)), np.ones(n)])
    theta = np.append(0.15 * rng.normal(size=COLUMNS - 1), 0.5)
    h = X @ theta
    y = rng.poisson(np.exp(h))
    classes = np.searchsorted(CUTS, h + rng.normal(size=n))
    ordinal = losses.Ordinal(CUTS)
    given = {"prior_variance": PRIOR}
    tasks: dict[str, Callable[[], Any]] = {
        "Poisson": lambda: epfast.fit_linear(X, y, loss="poisson", **given),
        "L-BFGS, Poisson": lambda: _point(poisson_cost, X, y),
        "ordinal": lambda: epfast.fit_linear(X, classes, loss=ordinal, **given),
        "L-BFGS, ordinal": lambda: _point(ordinal_cost, X, classes),
    }
    if contest.installed("sklearn", "PoissonRegressor"):
        from sklearn.linear_model import PoissonRegressor

        peer = PoissonRegressor(alpha=1.0 / (PRIOR * n), max_iter=1000)
        tasks["PoissonRegressor"] = lambda: peer.fit(X[:, :-1], y)
    found = harness.interleave(tasks, 3 if options.quick else 7, 0.01, 20.0)
    rows, claims = [], []
    for name in tasks:
        row: dict[str, Any] = {"fit": name, "ms": 1e3 * found[name].median}
        rows.append(row | {"quartiles": harness.spread(found[name].scaled(1e3))})
    harness.table(list(rows[0]), [list(row.values()) for row in rows], f"{n} x {COLUMNS} rows")
    for name, cost, response in (
        ("Poisson", poisson_cost, y),
        ("ordinal", ordinal_cost, classes),
    ):
        post = tasks[name]()
        mode = _point(cost, X, response)
        apart = float(np.max(np.abs(post.mean - mode) / np.sqrt(post.variance)))
        quotient = found[name].over(found[f"L-BFGS, {name}"])
        text = (
            f"{quotient.median:.3g} times ({harness.spread(quotient)}), {post.n_sweeps} sweeps; "
            f"mean and mode {apart:.3f} sd apart"
        )
        claim = f"{name}: at most {TIMES:g} times the mode by L-BFGS"
        claims.append(("many rows", claim, quotient.median <= TIMES, text))
    return rows, claims
