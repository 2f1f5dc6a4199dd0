"""Posteriors of posteriordb in the words of the library: means in sds, ratios of sds, seconds.

    EPFAST_DATA=folder python -m bench hyper.posteriordb [--quick] [--only mesquite ...]    # 20 s

All 46 that have reference draws (ten chains of 1,000, whose own error is .01 to .02 sd of a mean):
34 regressions with their noise, eight schools twice, two Gaussian processes, and a mixture of two
noises. No call averages over noises of gates, so that the mixture is a grid of fits of a Graph that
is made here: fit_mixture has one noise. The others are chains in time and differential equations.
"""

from __future__ import annotations

import argparse
import itertools
import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import special, stats

import epfast
from bench.hyper import tables
from bench.lib import harness
from epfast import losses, priors

#: means within so many sds, sds within this share: of regressions, and of all others
NEAR, FACTOR, NEAR_OF_OTHERS, FACTOR_OF_OTHERS = 0.05, 0.05, 0.1, 0.1
#: posteriors that are to be written, at least
LEAST = 39
#: of weights without a prior, in units of the response over the column
WIDE = 1e4
#: squared distance from the middle, in units of sds, up to which a grid for the mixture goes
FAR = 14.0
QUICK = ("mesquite-mesquite", "kidiq-kidscore_momiq", "eight_schools-eight_schools_centered")
NONE, CAUCHY = priors.Flat(), priors.HalfCauchy(2.5)


class Found(NamedTuple):
    """Means and sds by the names of the reference, or without their numbers in brackets."""

    moments: dict[str, tuple[np.ndarray, np.ndarray]]
    n_fits: int


def regression(
    X: np.ndarray,
    y: np.ndarray,
    noise: Any,
    names: tuple[str, ...] = ("beta",),
    sd: Any = None,
    mean: Any = None,
    order: Any = None,
) -> Found:
    """Weights with sds of their priors (None: flat), and noise with its prior.

    names: of all weights, or of each.
    """
    size = np.sqrt((X**2).mean(0))
    spread = np.full(X.shape[1], WIDE) * y.std() / np.where(size > 0.0, size, 1.0)
    spread = spread if sd is None else np.broadcast_to(sd, spread.shape)
    post = epfast.fit_hyper(X, y, learn={"sd": noise}, prior_variance=spread**2, prior_mean=mean)
    means, sds = post.mean, post.sd
    moments = {names[0]: (means, sds)}
    if len(names) > 1:
        moments = {name: (means[[k]], sds[[k]]) for k, name in enumerate(names)}
    return Found({**moments, "sigma": _hyper(post, "sd")}, post.n_fits)


def _hyper(post: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    row = post.hyper.loc[name]
    return np.array([row["mean"]]), np.array([row["sd"]])


def _columns(*columns: Any) -> np.ndarray:
    first = next(np.asarray(one) for one in columns if np.ndim(one))
    return np.column_stack([np.broadcast_to(one, first.shape) for one in columns]).astype(float)


def _z(values: np.ndarray, sds: float = 1.0) -> np.ndarray:
    return (values - values.mean()) / (sds * values.std(ddof=1))


def earnings(name: str, q: dict[str, Any]) -> Found:
    height, male = q["height"], q["male"]
    log_y, z = np.log(np.where(q["earn"] > 0, q["earn"], 1.0)), _z(height)
    X, y = {
        "earn_height": (_columns(1, height), q["earn"]),
        "log10earn_height": (_columns(1, height), log_y / np.log(10.0)),
        "logearn_height": (_columns(1, height), log_y),
        "logearn_height_male": (_columns(1, height, male), log_y),
        "logearn_interaction": (_columns(1, height, male, height * male), log_y),
        "logearn_interaction_z": (_columns(1, z, male, z * male), log_y),
        "logearn_logheight_male": (_columns(1, np.log(height), male), log_y),
    }[name]
    return regression(X, y, NONE)


def kidiq(name: str, q: dict[str, Any]) -> Found:
    hs, iq = q["mom_hs"], q["mom_iq"]
    c_hs, c_iq, z_hs, z_iq = hs - hs.mean(), iq - iq.mean(), _z(hs, 2.0), _z(iq, 2.0)
    work = q.get("mom_work", hs)
    X, noise = {
        "kidscore_interaction": (_columns(1, hs, iq, hs * iq), CAUCHY),
        "kidscore_momhs": (_columns(1, hs), CAUCHY),
        "kidscore_momhsiq": (_columns(1, hs, iq), CAUCHY),
        "kidscore_momiq": (_columns(1, iq), CAUCHY),
        "kidscore_interaction_c": (_columns(1, c_hs, c_iq, c_hs * c_iq), NONE),
        "kidscore_interaction_c2": (
            _columns(1, hs - 0.5, iq - 100.0, (hs - 0.5) * (iq - 100.0)),
            NONE,
        ),
        "kidscore_interaction_z": (_columns(1, z_hs, z_iq, z_hs * z_iq), NONE),
        "kidscore_mom_work": (_columns(1, work == 2, work == 3, work == 4), NONE),
    }[name]
    return regression(X, q["kid_score"], noise)


def mesquite(name: str, q: dict[str, Any]) -> Found:
    plain = [
        q[key] for key in ("diam1", "diam2", "canopy_height", "total_height", "density", "group")
    ]
    first, second, canopy, total, density, group = plain
    volume, area = np.log(first * second * canopy), np.log(first * second)
    shape, logs = np.log(first / second), [np.log(one) for one in plain[:5]]
    log_y = np.log(q["weight"])
    X, y = {
        "mesquite": (_columns(1, *plain), q["weight"]),
        "logmesquite": (_columns(1, *logs, group), log_y),
        "logmesquite_logva": (_columns(1, volume, area, group), log_y),
        "logmesquite_logvas": (
            _columns(1, volume, area, shape, np.log(total), np.log(density), group),
            log_y,
        ),
        "logmesquite_logvash": (_columns(1, volume, area, shape, np.log(total), group), log_y),
        "logmesquite_logvolume": (_columns(1, volume), log_y),
    }[name]
    return regression(X, y, NONE)


def nes(_name: str, q: dict[str, Any]) -> Found:
    age = [q["age_discrete"] == k for k in (2, 3, 4)]
    rest = q["educ1"], q["gender"], q["income"]
    return regression(_columns(1, q["real_ideo"], q["race_adj"], *age, *rest), q["partyid7"], NONE)


def ark(_name: str, q: dict[str, Any]) -> Found:
    lags, y = int(q["K"]), q["y"]
    past = [y[lags - k - 1 : len(y) - k - 1] for k in range(lags)]
    names = ("alpha", *(f"beta[{k + 1}]" for k in range(lags)))
    return regression(_columns(1, *past), y[lags:], CAUCHY, names, sd=10.0)


def diamonds(_name: str, q: dict[str, Any]) -> Found:
    """The intercept is Student-t in the original, which its 5,000 rows make no difference to."""
    X = q["X"][:, 1:]
    X = np.column_stack([np.ones(len(X)), X - X.mean(0)])
    d = X.shape[1]
    names = ("Intercept", *(f"b[{k}]" for k in range(1, d)))
    sd, mean = np.append(10.0, np.ones(d - 1)), np.append(8.0, np.zeros(d - 1))
    return regression(X, q["Y"], priors.HalfStudentT(3.0, 10.0), names, sd, mean)


def kilpisjarvi(_name: str, q: dict[str, Any]) -> Found:
    sd, mean = ([q[f"p{kind}{key}"] for key in ("alpha", "beta")] for kind in ("s", "mu"))
    return regression(_columns(1, q["x"]), q["y"], NONE, ("alpha", "beta"), sd, mean)


def blr(_name: str, q: dict[str, Any]) -> Found:
    return regression(q["X"], q["y"], priors.HalfNormal(10.0), sd=10.0)


def eight_schools(_name: str, q: dict[str, Any]) -> Found:
    X = np.column_stack([np.eye(8), np.ones(8)])
    post = epfast.fit_hyper(
        X / q["sigma"][:, None],
        q["y"] / q["sigma"],
        loss=losses.Gaussian(1.0),
        sds={"tau": (slice(0, 8), priors.HalfCauchy(5.0))},
        prior_variance=25.0,
    )
    mean, variance = post.predict_latent(X)
    moments = {"theta": (mean, np.sqrt(variance)), "mu": (post.mean[8:], post.sd[8:])}
    return Found({**moments, "tau": _hyper(post, "tau")}, post.n_fits)


def process(name: str, q: dict[str, Any]) -> Found:
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    known = {"length_scale": priors.Gamma(25.0, 4.0), "sd": priors.HalfNormal(2.0)}
    counts = name == "gp_pois_regr"
    given: dict[str, Any] = {"loss": "poisson"} if counts else {"loss": losses.Gaussian(1.0)}
    if not counts:
        given["learn"] = {"variance": priors.HalfNormal(1.0)}
    fit = getattr(epfast, "fit_hyper_gp")  # noqa: B009
    kernel = ConstantKernel(4.0) * RBF(6.0)
    post = fit(kernel, q["x"][:, None], q["k" if counts else "y"], priors=known, **given)
    moments = {"rho": _hyper(post, "length_scale"), "alpha": _hyper(post, "sd")}
    if counts:
        moments["f"] = post.mean, post.sd
    else:
        moments["sigma"] = _hyper(post, "variance")
    return Found(moments, post.n_fits)


def mixture(_name: str, q: dict[str, Any]) -> Found:
    """Gates of a Graph, over a grid of the logs of both noises and the log odds of a label."""
    y, half, known = q["y"], priors.HalfNormal(2.0), stats.beta(5.0, 5.0)
    first = epfast.fit_mixture(y[:, None], 2, prior_mean=[[-1.0], [1.0]], concentration=5.0)
    noise, share = 0.5 * math.log(first.noise_variance), special.logit(first.weights[0])
    sizes = len(y) * first.weights
    units = np.array([*(2.0 * sizes) ** -0.5, sizes.min() ** -0.5])
    us, values, means, variances = [], [], [], []
    for z in itertools.product(np.arange(-3.0, 4.0), repeat=3):
        if np.square(z).sum() > FAR:
            continue
        us.append(np.array([noise, noise, share]) + units * z)
        sds, p = np.exp(us[-1][:2]), special.expit(us[-1][2])
        g = epfast.Graph()
        centre, label = g.gaussian(2, variance=4.0), g.categorical(len(y), prior=[p, 1.0 - p])
        gate = epfast.graph.Mixture(label, [losses.Gaussian(s**2) for s in sds])
        g.add(gate, list(centre), y)
        post = g.fit()
        density = sum(half.log_density(s) for s in sds) + known.logpdf(p)
        values.append(post.log_evidence + density + us[-1][:2].sum() + math.log(p * (1.0 - p)))
        means.append(post[centre].mean)
        variances.append(post[centre].variance)
    u, weights = np.array(us), special.softmax(values)

    def moments(mean: Any, variance: Any = 0.0) -> tuple[np.ndarray, np.ndarray]:
        middle = weights @ mean
        return middle, np.sqrt(weights @ (variance + (mean - middle) ** 2))

    found = {"mu": moments(np.array(means), np.array(variances))}
    found |= {"sigma": moments(np.exp(u[:, :2])), "theta": moments(special.expit(u[:, 2:]))}
    return Found(found, len(us))


#: how a posterior is written, by the beginning of its name
WAYS: dict[str, Callable[[str, dict[str, Any]], Found]] = {
    "arK-arK": ark,
    "diamonds-": diamonds,
    "earnings-": earnings,
    "kidiq": kidiq,
    "kilpisjarvi_mod-": kilpisjarvi,
    "mesquite-": mesquite,
    "nes": nes,
    "sblr": blr,
    "eight_schools-": eight_schools,
    "gp_pois_regr-": process,
    "low_dim_gauss_mix-": mixture,
}
OTHERS = "eight_schools-", "gp_pois_regr-", "low_dim_gauss_mix-"


def way_of(name: str) -> Callable[[str, dict[str, Any]], Found] | None:
    """How it is written; None: it is not."""
    found = [way for start, way in WAYS.items() if name.startswith(start)]
    if not found or (found[0] is process and not hasattr(epfast, "fit_hyper_gp")):
        return None
    return found[0]


def try_posterior(name: str, entry: dict[str, Any]) -> dict[str, Any] | None:
    """A row: the largest error in sds and the ratios of sds, of weights and of scales."""
    way, model = way_of(name), name.partition("-")[2]
    if way is None:
        return None
    data = {key: np.asarray(value) for key, value in entry["data"].items()}
    data = {key: value.astype(float) for key, value in data.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", epfast.DataWarning)
        way(model, data)
        found, seconds = harness.timed(lambda: way(model, data))
    row: dict[str, Any] = {"posterior": name, "fits": found.n_fits, "ms": 1e3 * seconds}
    scales = "sigma", "tau", "rho", "alpha" if way is process else "sigma"
    for kind in ("weights", "scales"):
        errors, ratios = [], []
        for key, (mean, sd) in found.moments.items():
            if (key in scales) != (kind == "scales"):
                continue
            references = [
                numbers[:2]
                for of, numbers in entry["parameters"].items()
                if of == key or (of.startswith(f"{key}[") and key not in entry["parameters"])
            ]
            of_mean, of_sd = np.array(references).T
            errors.append(np.abs(mean - of_mean) / of_sd)
            ratios.append(sd / of_sd)
        ratio = np.concatenate(ratios) if ratios else np.ones(0)
        row[f"error, {kind}"] = float(np.concatenate(errors).max()) if errors else None
        row[f"ratios, {kind}"] = f"{ratio.min():.3f}-{ratio.max():.3f}" if ratios else "-"
        row[f"off, {kind}"] = float(np.abs(ratio - 1.0).max()) if ratios else 0.0
    return row


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", help="beginnings of names of posteriors")


def run(options: argparse.Namespace) -> dict[str, Any]:
    entries = tables.read("posteriordb.json.gz")["posteriors"]
    wanted = tuple(options.only or (QUICK if options.quick else ("",)))
    rows, left_out = [], []
    for name, entry in entries.items():
        if name.startswith(wanted):
            row = try_posterior(name, entry)
            if row is None:
                left_out.append(name)
            else:
                rows.append(row)
    harness.show(rows, "beside reference draws")
    print(f"not written: {', '.join(left_out)}")
    goals: list[harness.Claim] = []
    if not options.quick and not options.only:
        goals.append(("all", f"{LEAST} of 46 written", len(rows) >= LEAST, f"{len(rows)}"))
    for row in rows:
        others = row["posterior"].startswith(OTHERS)
        near = NEAR_OF_OTHERS if others else NEAR
        factor = FACTOR_OF_OTHERS if others else FACTOR
        error = max(row[f"error, {kind}"] or 0.0 for kind in ("weights", "scales"))
        off = max(row[f"off, {kind}"] for kind in ("weights", "scales"))
        claim = f"means within {near:g} sd, sds within {100 * factor:g} %"
        holds = error <= near and off <= factor
        goals.append((row["posterior"], claim, holds, f"{error:.3f}, {off:.3f}"))
    return {"goals": goals, "posteriors": rows, "not_written": left_out}
