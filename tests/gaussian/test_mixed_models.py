"""Mixed models: every table has a fit, that of rows in turn, near the truth and near REML."""

import numpy as np
import pytest
from scipy import sparse, special

import epfast
from epfast import priors
from epfast.gaussian import SparsePosterior
from tests.gaussian.test_hyper import averages

HALF, NARROW = priors.HalfNormal(2.5), priors.HalfNormal(1.0)
#: tables of the test, and those of them that are small and beside rows in turn
TABLES, SMALL = 40, 12


def table(seed):
    """Labels by 5 to 30 informative columns and 5 to 1,000 groups of 2 to 30 rows, sorted somehow.

    Returns rows (n, 1 + c + J), CSR, labels and c.
    """
    rng = np.random.default_rng(seed)
    c, J = rng.integers(5, 31), int(np.exp(rng.uniform(np.log(5.0), np.log(1000.0))))
    size = rng.integers(2, 31, size=J)
    size = np.maximum(2, size * min(1.0, 6000.0 / size.sum())).astype(int)
    group, n = np.repeat(np.arange(J), size), size.sum()
    X = rng.normal(size=(n, c))
    slopes, effects = (
        rng.uniform(0.3, 2.0) * rng.normal(size=c),
        rng.uniform(0.2, 3.0) * rng.normal(size=J),
    )
    latent = 0.5 + X @ slopes + effects[group]
    y = np.where(rng.random(n) < special.expit(latent), 1.0, -1.0)
    by = (np.arange(n), np.argsort(X[:, 0]), np.argsort(y, kind="stable"), rng.permutation(n))
    at = by[rng.integers(4)]
    Z = sparse.csr_array((np.ones(n), group, np.arange(n + 1)), shape=(n, J))
    rows = sparse.hstack([np.column_stack([np.ones(n), X]), Z], format="csr")
    return rows[at], y[at], int(c)


def mode_of(rows, y, c):
    """The mode of the sd of the groups, by wide priors of the columns."""
    variance = np.concatenate([[100.0], np.full(c, 6.25), np.ones(rows.shape[1] - c - 1)])
    sds = {"g": (slice(c + 1, None), HALF)}
    return epfast.fit_hyper(
        rows, y, loss="logistic", sds=sds, prior_variance=variance, strategy="eb"
    )


def check_table(seed):
    """The mode converges, and so does one fit from nothing. Returns that fit, rows and labels."""
    rows, y, c = table(seed)
    post = mode_of(rows, y, c)
    assert post.converged, seed
    variance = np.full(rows.shape[1], post.mode[0] ** 2)
    variance[: c + 1] = 6.25
    given = {"loss": "logistic", "prior_variance": variance}
    one = epfast.fit_linear(rows, y, posterior="sparse", **given)
    assert one.converged, seed
    return one, rows, y, given


def check_in_turn(seed):
    """The fixed point of a sparse fit is that of all weights in one matrix, rows in turn."""
    _, rows, y, given = check_table(seed)
    tight = {"tol": 1e-9, "sweeps": 500}
    post = epfast.fit_linear(rows, y, posterior="sparse", schedule=epfast.EP(**tight), **given)
    in_turn = epfast.EP(order="sequential", **tight)
    other = epfast.fit_linear(rows.toarray(), y, posterior="full", schedule=in_turn, **given)
    assert other.converged, seed
    spread = np.sqrt(other.variance)
    np.testing.assert_allclose((post.mean - other.mean) / spread, 0.0, atol=1e-5)
    np.testing.assert_allclose(np.sqrt(post.variance) / spread, 1.0, atol=1e-5)
    assert post.log_evidence == pytest.approx(other.log_evidence, abs=1e-5)


def smallest(seeds, count):
    return sorted(seeds, key=lambda seed: table(seed)[0].shape[0])[:count]


@pytest.mark.filterwarnings("error::epfast.ConvergenceWarning", "ignore:the sd of")
def test_a_table_of_labels():
    """The smallest of those below, in short."""
    for seed in smallest(range(TABLES), 3):
        check_in_turn(seed)


@pytest.mark.full
@pytest.mark.filterwarnings("error::epfast.ConvergenceWarning", "ignore:the sd of")
def test_every_table_of_labels_has_a_fit():
    """By one road from wide priors: none fails, whatever the order of the rows."""
    for seed in range(TABLES):
        check_table(seed)


@pytest.mark.full
@pytest.mark.filterwarnings("error::epfast.ConvergenceWarning", "ignore:the sd of")
def test_fits_are_those_of_rows_in_turn():
    for seed in smallest(range(TABLES), SMALL):
        check_in_turn(seed)


@pytest.mark.parametrize(
    ("persons", "items"), [(60, 12), pytest.param(300, 24, marks=pytest.mark.full)]
)
@pytest.mark.filterwarnings("error::epfast.ConvergenceWarning")
def test_rasch(persons, items):
    """Items are common columns. Beside rows in turn, where the table is small."""
    rng = np.random.default_rng(1)
    person, item = np.repeat(np.arange(persons), items), np.tile(np.arange(items), persons)
    latent = -0.5 + rng.normal(size=persons)[person] + 0.5 * rng.normal(size=items)[item]
    y = np.where(rng.random(len(latent)) < special.expit(latent), 1.0, -1.0)
    X = sparse.hstack(
        [sparse.csr_array(np.eye(items)[item]), sparse.csr_array(np.eye(persons)[person])],
        format="csr",
    )
    given = {"loss": "logistic", "sds": {"person": (slice(items, None), HALF)}, "strategy": "eb"}
    post = epfast.fit_hyper(X, y, **given)
    assert post.converged
    if persons < 100:
        in_turn = epfast.EP(order="sequential", sweeps=200)
        other = epfast.fit_hyper(X.toarray(), y, schedule=in_turn, **given)
        np.testing.assert_allclose(post.mode, other.mode, rtol=1e-3)
        np.testing.assert_allclose((post.mean - other.mean) / other.sd, 0.0, atol=2e-3)
    else:
        assert isinstance(post.best, SparsePosterior)


def by_quadrature(counts, size):
    """Mean and sd of the sd of the groups, and mean of the intercept, exact but for grids.

    counts: hits of each group of so many rows. 81 nodes for each group's effect.
    """
    node, weight = special.roots_hermitenorm(81)
    u, mu = np.linspace(-6.0, 2.5, 160), np.linspace(-6.0, 6.0, 161)
    value = np.empty((len(u), len(mu)))
    for i, s in enumerate(np.exp(u)):
        latent = mu[:, None, None] + s * node
        hits = np.arange(size + 1)[:, None]
        logs = hits * latent - size * np.logaddexp(0.0, latent)
        by_hits = special.logsumexp(logs, axis=2, b=weight / weight.sum())
        value[i] = by_hits @ np.bincount(counts, minlength=size + 1)
        value[i] += -0.5 * mu**2 / 4.0 + NARROW.log_density(s) + u[i]
    mean, sd, _ = averages(special.logsumexp(value, axis=1), u)
    p = np.exp(special.logsumexp(value, axis=0) - special.logsumexp(value))
    at = float(p @ mu)
    return mean, sd, at, float(np.sqrt(p @ (mu - at) ** 2))


def errors_of(J, size, sd, seed):
    """How far the means of sd and intercept are from the truth, in sds."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(J), size)
    y = np.where(rng.random(J * size) < special.expit(sd * rng.normal(size=J)[group]), 1, -1)
    rows = np.column_stack([np.eye(J)[group], np.ones(J * size)])
    sds = {"g": (slice(0, J), NARROW)}
    post = epfast.fit_hyper(rows, y, loss="logistic", sds=sds, prior_variance=4.0)
    mean, spread, at, width = by_quadrature((y.reshape(J, size) > 0).sum(axis=1), size)
    ours = post.hyper.loc["g", "mean"]
    return (ours - mean) / spread, (post.mean[-1] - at) / width


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:the sd of:epfast.DataWarning")
def test_labels_in_groups_beside_quadrature():
    """Six tables each of 100 groups of 2, 50 of 5 and 30 of 20 rows, with an sd of 1.

    Laplace's approximation is up to .9 sd off there.
    """
    sizes = [(100, 2), (50, 5), (30, 20)]
    away = np.array([errors_of(*size, 1.0, seed) for size in sizes for seed in range(6)])
    assert np.abs(away[:, 0]).max() <= 0.12
    assert np.abs(away[:, 0]).mean() <= 0.06
    assert np.abs(away[:, 1]).max() <= 0.12


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:the sd of:epfast.DataWarning")
def test_hard_labels_in_groups_beside_quadrature():
    """100 groups of 2 with an sd of 2, of which most have equal labels."""
    away = np.array([errors_of(100, 2, 2.0, seed) for seed in range(6)])
    assert np.abs(away[:, 0]).max() <= 0.28


def best_of(data_folder, name):
    """The maximum of the evidence of a public model, and the peers' fit."""
    pytest.importorskip("formulae")
    mixed = pytest.importorskip("bench.hyper.mixed_evidence")
    (reference,) = (one for one in mixed.mixed_tables.references() if one.data == name)
    table = mixed.mixed_tables.frame(name)
    target, about = mixed.evidence_of(reference, table)
    best = mixed.maximum(target, about["names"])
    return mixed, reference, about, best, table


@pytest.mark.full
@pytest.mark.parametrize("name", ["sleepstudy", "Penicillin", "Pastes", "Dyestuff"])
def test_the_maximum_of_the_evidence_is_that_of_reml(data_folder, name):
    """By wide priors of common weights, as lmer has it, whose fits are stored; to .1 %."""
    _, reference, _, best, _ = best_of(data_folder, name)
    theirs = {name: value for name, value in reference.values.items() if name in best.values}
    assert len(theirs) >= 2
    for of, value in theirs.items():
        assert best.values[of] == pytest.approx(value, rel=1e-3), of


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "group", "share"), [("cbpp", "herd", 0.02), ("bacteria", "ID", 0.05)]
)
def test_the_maximum_of_the_evidence_beside_quadrature(data_folder, name, group, share):
    """Over groups and common weights. EP's evidence is 0.3 % and 4.3 % off, and flat there."""
    mixed, _, about, best, table = best_of(data_folder, name)
    exact, lower = mixed.best_by_quadrature(about, mixed.mixed_tables.codes(table[group]), best)
    assert best.values[f"sd 1|{group}"] == pytest.approx(exact, rel=share)
    assert lower < 0.02
