"""Models of categorical variables with unknown probabilities: plain EP, and enumeration.

A model has rows p_r ~ Dir(alpha_r), categorical variables with prior weights, factors that choose a
category, and tables between the variables. Everything here is a loop over NumPy arrays.
"""

import itertools
from typing import NamedTuple

import numpy as np
from scipy.special import digamma, gammaln, logsumexp

from tests.oracles.plain_mixture import dirichlet_of_logs


class Choice(NamedTuple):
    """The factor P[x, z], where rows are numbers of the Dirichlets."""

    rows: list
    #: number of the variable that selects the row. None: there is one row
    x: int | None
    #: number of the variable that is chosen, or the category as (k,)
    z: int | tuple


class Model(NamedTuple):
    alphas: list
    #: prior weights of each categorical variable
    weights: list
    choices: list
    #: pairs of variables and the table between them
    tables: list = ()


def log_beta(alpha):
    """log of the integral of prod p_j^(alpha_j - 1)."""
    return gammaln(alpha).sum() - gammaln(alpha.sum())


def log_mean(alpha, power):
    """log E p_k^power, for each k."""
    total = alpha.sum()
    return gammaln(alpha + power) - gammaln(alpha) + gammaln(total) - gammaln(total + power)


def by_moments(parts, weights):
    """The Dirichlet with the means and the sum of the variances of a mixture of Dirichlets."""
    means = np.array([a / a.sum() for a in parts])
    squares = [m * (a + 1.0) / (a.sum() + 1.0) for a, m in zip(parts, means, strict=True)]
    mean, square = weights @ means, (weights @ squares).sum()
    return mean * (1.0 - square) / (square - mean @ mean)


def by_logs(parts, weights):
    """The Dirichlet with E log p of a mixture of Dirichlets: the projection."""
    logs = np.array([digamma(a) - digamma(a.sum()) for a in parts])
    return dirichlet_of_logs(weights @ logs)


def plain_ep(model, *, power=1.0, damping=1.0, sweeps=2000, tol=1e-12, project=by_logs):
    """Alphas, probabilities of the categories, and the log evidence, by EP one by one."""
    alphas = [np.array(a, dtype=float) for a in model.alphas]
    logits = [np.log(np.array(w, dtype=float)) for w in model.weights]
    factors = [*model.choices, *model.tables]
    sites = [{} for _ in factors]
    scales = np.zeros(len(factors))
    for _ in range(sweeps):
        moved = 0.0
        for f, factor in enumerate(factors):
            if isinstance(factor, Choice):
                about = [("p", r) for r in factor.rows]
                about += [("z", v) for v in (factor.x, factor.z) if isinstance(v, int)]
            else:
                about = [("z", v) for v in factor[0]]
            q = {key: (alphas if key[0] == "p" else logits)[key[1]] for key in about}
            old = sites[f] or {key: np.zeros(len(q[key])) for key in about}
            cavity = {key: q[key] - power * old[key] for key in about}
            tilt = tilted_choice if isinstance(factor, Choice) else tilted_table
            log_z, target = tilt(factor, cavity, power, project)
            new, g = {}, log_z
            for key in about:
                new[key] = (target[key] - cavity[key]) / power
                # a number added to all logits is nothing
                new[key] = new[key] - new[key].max() * (key[0] == "z")
                if key[0] == "p":
                    g += log_beta(cavity[key]) - log_beta(target[key])
                else:
                    g -= logsumexp(cavity[key] + power * new[key])
            for key in about:
                step = damping * (new[key] - old[key])
                beliefs = alphas if key[0] == "p" else logits
                beliefs[key[1]] = beliefs[key[1]] + step
                moved = max(moved, np.abs(step).max())
                old[key] = old[key] + step
            sites[f] = old
            scales[f] += damping * (g / power - scales[f])
        if moved < tol:
            break
    log_z = scales.sum() + sum(map(logsumexp, logits))
    log_z += sum(map(log_beta, alphas)) - sum(log_beta(np.array(a, float)) for a in model.alphas)
    return alphas, [np.exp(x - logsumexp(x)) for x in logits], log_z


def tilted_choice(factor, cavity, power, project):
    """log Z with normalised Dirichlet cavities, and the projected tilted marginals."""
    rows = [cavity["p", r] for r in factor.rows]
    K = len(rows[0])
    own = isinstance(factor.z, int)
    of_x = np.zeros(1) if factor.x is None else cavity["z", factor.x]
    of_z = cavity["z", factor.z] if own else np.where(np.arange(K) == factor.z[0], 0.0, -np.inf)
    chance = np.array([log_mean(a, power) for a in rows])
    joint = of_x[:, None] + of_z + chance
    log_z = logsumexp(joint)
    W = np.exp(joint - log_z)
    target = {}
    for r, a, w in zip(factor.rows, rows, W, strict=True):
        parts = [a, *(a + power * np.eye(K))]
        target["p", r] = project(parts, np.array([1.0 - w.sum(), *w]))
    if factor.x is not None:
        target["z", factor.x] = logsumexp(joint, axis=1)
    if own:
        target["z", factor.z] = logsumexp(joint, axis=0)
    return log_z, target


def tilted_table(factor, cavity, power, project):
    (a, b), table = factor
    with np.errstate(divide="ignore"):
        joint = cavity["z", a][:, None] + cavity["z", b] + power * np.log(table)
    targets = {("z", a): logsumexp(joint, axis=1), ("z", b): logsumexp(joint, axis=0)}
    return logsumexp(joint), targets


def enumerate_all(model):
    """Means and variances of the rows, probabilities of the categories, and the log evidence."""
    sizes = [len(w) for w in model.weights]
    log_w, counts, states = [], [], []
    for state in itertools.product(*map(range, sizes)):
        log_weight = sum(np.log(w[s]) for w, s in zip(model.weights, state, strict=True))
        alpha = [np.array(a, dtype=float) for a in model.alphas]
        for choice in model.choices:
            row = choice.rows[0 if choice.x is None else state[choice.x]]
            k = choice.z[0] if isinstance(choice.z, tuple) else state[choice.z]
            alpha[row][k] += 1.0
        for (a, b), table in model.tables:
            log_weight += np.log(table[state[a], state[b]])
        log_weight += sum(
            log_beta(new) - log_beta(np.array(old, dtype=float))
            for new, old in zip(alpha, model.alphas, strict=True)
        )
        log_w.append(log_weight)
        counts.append(alpha)
        states.append(state)
    log_w = np.array(log_w)
    log_z = logsumexp(log_w)
    w = np.exp(log_w - log_z)
    means, variances = [], []
    for r in range(len(model.alphas)):
        a = np.array([alpha[r] for alpha in counts])
        total = a.sum(axis=1, keepdims=True)
        mean = w @ (a / total)
        means.append(mean)
        variances.append(w @ (a * (a + 1.0) / (total * (total + 1.0))) - mean**2)
    states = np.array(states).reshape(len(w), len(sizes))
    probabilities = [
        np.array([w[states[:, v] == k].sum() for k in range(K)]) for v, K in enumerate(sizes)
    ]
    return means, variances, probabilities, log_z
