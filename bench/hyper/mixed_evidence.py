"""The evidence of sds without priors: its maximum compares with REML and with quadrature."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, sparse, special, stats

import epfast
from bench.hyper import mixed_tables
from epfast import formula, losses, priors
from epfast.gaussian.fit_hyper import (
    CorrelatedGroups,
    LinearTarget,
    with_blocks,
    with_starting_numbers,
)
from epfast.gaussian.fit_linear import fit_linear
from epfast.inference.hyper import Unknown, climbed
from epfast.losses.names import own_name

#: sd of the prior of common weights beside Gaussian noise, in units of the response over the
#: column, and the variance of those of other families
FLAT, OF_OTHERS = 1e3, 100.0
#: nodes for each group, and draws of the common weights
NODES, DRAWS = 40, 2048


class Evidence(LinearTarget):
    """The target of a formula without the priors of its sds, and without their logarithms."""

    def log_prior(self, u: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        m = len(u)
        return -np.inf if self.ended(u) else 0.0, np.zeros(m), np.zeros((m, m))


class Maximum(NamedTuple):
    """The largest evidence: sds, correlations and numbers of the loss by name, and their logs."""

    values: dict[str, float]
    u: np.ndarray
    log_evidence: float
    post: Any


def evidence_of(reference: mixed_tables.Reference, table: Any) -> tuple[Evidence, dict[str, Any]]:
    """The target, and what the formula says: its design, rows and responses."""
    family = own_name(reference.family)
    design = formula.ModelMatrix(reference.formula, reference.family, table, {})
    found, offset, _ = design.rows(table)
    X, y, n = sparse.csr_array(found), design.observed(table), design.n_common
    common = X[:, :n].toarray()
    unit = y.std() if family == "gaussian" else np.nan
    size = np.sqrt((common**2).mean(axis=0))
    variance = np.ones(X.shape[1])
    variance[:n] = (FLAT * unit / size) ** 2 if family == "gaussian" else OF_OTHERS
    unknowns = [Unknown(name, priors.Flat(), at) for name, (_, at) in design.effects.items()]
    places, blocks = {one.name: k for k, one in enumerate(unknowns)}, []
    for names in design.blocks:
        of, q = np.array([places[name] for name in names]), len(names)
        columns = np.array([unknowns[k].columns for k in of]).T
        own = len(unknowns) + np.arange(q * (q - 1) // 2)
        blocks.append(CorrelatedGroups(of, own, columns, np.eye(q), np.eye(q)))
        pairs = [(names[j], names[i]) for i in range(q) for j in range(i)]
        unknowns += [
            Unknown(f"cor {a.partition('|')[0]},{b}", priors.LKJ(1.0), None, 0) for a, b in pairs
        ]
    learned = formula.FAMILIES[family]
    numbers = [Unknown(name, priors.Flat()) for name in learned.values()]
    given = {"offset": offset if design.has_offset else None}
    loss = losses.resolve(family)
    loss = with_starting_numbers(loss, numbers, y, None, given["offset"]) if numbers else loss
    pattern = [(one.columns, np.eye(len(one.sds)) + 0.1) for one in blocks]
    precision = with_blocks(1.0 / variance, pattern)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", epfast.ConvergenceWarning)
        once = epfast.EP(1, 0.0)
        first = fit_linear(X, y, loss=loss, prior_precision=precision, schedule=once, **given)
    problem = first.problem
    problem = problem._replace(schedule=replace(problem.schedule, sweeps=epfast.EP().sweeps))
    mean = np.zeros(X.shape[1])
    target = Evidence(problem, [*unknowns, *numbers], mean, variance, blocks)
    ours = dict(zip(learned.values(), learned, strict=True))
    names = [
        f"sd {one.name}" if one.columns is not None else ours.get(one.name, one.name)
        for one in target.unknowns
    ]
    names = [mixed_tables.without_brackets(name) for name in names]
    return target, {"names": names, "common": common, "y": y, "design": design, "rows": X}


def maximum(target: Evidence, names: list[str], held: dict[int, float] | None = None) -> Maximum:
    """Where the evidence is largest; held: logs of some unknowns, by their numbers."""
    bounds, start = target.bounds.copy(), target.starts[0].copy()
    for k, value in (held or {}).items():
        bounds[k], start[k] = value, value
    before, target.bounds = target.bounds, bounds
    try:
        found = climbed(target, start)
    finally:
        target.bounds = before
    if found is None:
        raise FloatingPointError("no fit where the search begins")
    point = found.point
    values = dict(zip(names, target.values(point.u).tolist(), strict=True))
    return Maximum(values, point.u, point.value, point.fit)


def best_by_quadrature(
    about: dict[str, Any], group: np.ndarray, best: Maximum
) -> tuple[float, float]:
    """The sd of one group of binary or binomial rows at the maximum of the integral over all else.

    And by how much the log integral is lower at the maximum of the evidence.

    Common weights are drawn from a Student-t about those of EP, quasi-randomly, and the effect of
    each group has its own quadrature.
    """
    X, y, n = about["common"], about["y"], about["common"].shape[1]
    hits, trials = (y[:, 0], y[:, 1]) if y.ndim == 2 else ((y + 1.0) / 2.0, np.ones(len(y)))
    mean = best.post.mean[:n]
    root = np.linalg.cholesky(best.post.covariances_of(np.arange(n)[None])[0])
    uniform = stats.qmc.Sobol(n, rng=np.random.default_rng(0)).random(DRAWS)
    z = stats.t.ppf(np.clip(uniform, 1e-9, 1.0 - 1e-9), 6.0)
    weights = mean + z @ root.T
    log_weight = -0.5 * (weights**2).sum(axis=1) / OF_OTHERS - stats.t.logpdf(z, 6.0).sum(axis=1)
    latent, (node, mass) = weights @ X.T, special.roots_hermitenorm(NODES)
    of_groups = sparse.csr_array((np.ones(len(y)), (group, np.arange(len(y)))))

    def log_integral(log_sd: float) -> float:
        value = np.zeros((of_groups.shape[0], DRAWS, NODES))
        for k, a in enumerate(np.exp(log_sd) * node):
            eta = latent + a
            value[:, :, k] = of_groups @ (hits * eta - trials * np.logaddexp(0.0, eta)).T
        by_group = special.logsumexp(value, axis=2, b=mass / mass.sum())
        return float(special.logsumexp(by_group.sum(axis=0) + log_weight))

    at = float(best.u[0])
    found = optimize.minimize_scalar(
        lambda u: -log_integral(u), bounds=(at - 0.4, at + 0.4), method="bounded"
    )
    return float(np.exp(found.x)), -float(found.fun) - log_integral(at)
