"""check() of random models of one or two weights: its verdicts against integrals by cells.

"good" is never said of a bad fit: a mean more than 0.25 exact sds off, or an sd by more than 25 %.
"do not use" is never said of a right one: means within 0.1 exact sds, sds within 12 %.
"""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

import epfast
from epfast import losses
from epfast.inference import certificates
from tests.oracles.small_models import drawn_model

pytestmark = [
    pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:::arviz"),
]


def truth_of(post, exact):
    """Whether a fit is "right", "bad" or between the two."""
    off = (np.abs(post.mean - exact.mean) / exact.sd).max()
    wide = np.abs(np.log(np.sqrt(post.variance) / exact.sd)).max()
    if off <= 0.1 and wide <= np.log(1.12):
        return "right"
    return "bad" if off > 0.25 or wide > np.log(1.25) else "between"


@pytest.mark.cover(lambda number: number // 100)
@pytest.mark.parametrize("number", range(2000))
def test_verdicts_of_random_models(number):
    """The truth is an integral over cells that are split until it stands still."""
    model = drawn_model(number)
    try:
        post = model.fit()
    except FloatingPointError:  # says what is wrong; there is nothing to check
        return
    truth, check = truth_of(post, model.exact()), post.check(rng=number)
    never = {"bad": "good", "right": "do not use"}.get(truth)
    assert check.verdict != never, f"{model}: {model.loss}, {truth}: {check}"


def two_groups():
    """Six rows near 3, five near -3: EP is on the first mode, whose share is about 0.9."""
    y = np.array([3.0, 3.1, 2.9, 3.05, 2.95, 3.0, -3.0, -3.1, -2.9, -3.05, -3.0])
    loss = losses.Contaminated(losses.Gaussian(0.1), 0.5, -2.0)
    post = epfast.fit_linear(np.ones((len(y), 1)), y, loss=loss, prior_variance=25.0)
    h = np.linspace(-60.0, 60.0, 600_001)
    rows = loss.responses("y", y, len(y))
    log_f = stats.norm.logpdf(h, 0.0, 5.0)
    for row in rows:
        log_f -= loss.values(h, np.tile(row, (len(h), 1)))
    f = np.exp(log_f - log_f.max())
    mean = f @ h / f.sum()
    return post, mean, np.sqrt(f @ (h - mean) ** 2 / f.sum())


def test_a_second_mode_is_found_at_every_seed():
    """Mean and sd are those of a grid of 600,001 points."""
    post, mean, sd = two_groups()
    assert sd > 10.0 * np.sqrt(post.variance[0])
    for seed in range(10):
        check = post.check(rng=seed)
        assert check.verdict == "do not use", str(check)
        assert abs(check.mean[0] - mean) < 4.0 * check.mean_se[0]
        assert check.sd[0] == pytest.approx(sd, rel=0.25)


def test_clear_models_have_one_verdict_whatever_the_seed():
    """Ten seeds agree, of right fits and of a wrong one."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    h = X @ [1.0, -0.5]
    posts = [
        epfast.fit_linear(X, np.where(h > 0.0, 1.0, -1.0), loss="probit"),
        epfast.fit_linear(X, h + 0.3 * rng.standard_t(4, 30), loss=losses.StudentT(4.0, 0.3)),
        two_groups()[0],
    ]
    for post in posts:
        verdicts = {post.check(rng=seed).verdict for seed in range(10)}
        assert len(verdicts) == 1, verdicts


def test_where_modes_cannot_be_looked_for_nothing_is_good():
    """More weights than rows: the check says whether EP is right at its mode, and of that alone."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(5, 8))
    y = X[:, 0] + 0.3 * rng.normal(size=5)
    check = epfast.fit_linear(X, y, loss=losses.StudentT(4.0, 1.0)).check()
    assert check.verdict == "usable"
    assert "of this mode" in check.reason
    assert epfast.fit_linear(X, y, loss=losses.Gaussian(1.0)).check().verdict == "good"


def test_nor_are_they_looked_for_under_a_prior_of_sites():
    """The Gaussians at other modes would be those of a normal prior."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 4))
    y = X[:, 0] + 0.3 * rng.standard_t(2, size=40)
    given = {"loss": losses.StudentT(4.0, 0.3), "prior": losses.LaplacePrior(1.0)}
    check = epfast.fit_linear(X, y, **given).check()
    assert check.verdict == "usable"
    assert "of this mode" in check.reason


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize(
    ("shift", "factor", "verdict", "words"),
    [
        (0.5, 1.5, "uncertain", "0.5 sd away"),
        (3.5, 1.0, "do not use", "3.5 sd from"),
        (0.0, 4.0, "do not use", "4 times too small"),
    ],
)
def test_judged_by_the_closest_gaussian_in_any_unit(unit, shift, factor, verdict, words):
    """Where draws are too few. A coordinate that is known counts for nothing."""
    sd = unit * np.array([2.0, 0.0, 1.0])

    def proposal(mean, spread):
        return SimpleNamespace(moments=lambda: (mean, spread), is_best=True)

    here = proposal(np.zeros(3), sd)
    found = certificates._beside(here, proposal(shift * sd, factor * sd))
    assert found[0] == verdict
    assert words in found[1]
    assert certificates._beside(here, None)[0] == "uncertain"


def test_weights_of_a_process_count():
    """An observation of weight 3 is three observations: a grid over two latent values."""
    K, y = np.array([[2.0, 0.5], [0.5, 1.0]]), np.array([1.0, -1.0])
    check = epfast.fit_gp(K, y, loss="probit", weights=np.array([3.0, 1.0])).check(4000)
    line = np.linspace(-9.0, 9.0, 1001)
    f = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)
    log_p = stats.multivariate_normal(np.zeros(2), K).logpdf(f)
    log_p += 3.0 * stats.norm.logcdf(f[:, 0]) + stats.norm.logcdf(-f[:, 1])
    p = np.exp(log_p)
    assert check.log_evidence == pytest.approx(np.log(p.sum() * 0.018**2), abs=0.02)
    assert (np.abs(check.mean - p @ f / p.sum()) < 4.0 * check.mean_se + 2e-3).all()
    assert check.verdict == "good"
