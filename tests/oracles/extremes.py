"""Strategies of Hypothesis for numbers, rows and choices at the ends of the range of doubles."""

import numpy as np
from hypothesis import settings, strategies as st

from epfast import ADF, AEP, DEP, EP, SEP, CustomLoss, PiecewiseLinear, losses, schemes

#: how a combination may refuse
CLEAN = (ValueError, TypeError, FloatingPointError)
SIZES = (1e-300, 1e-160, 1e-30, 1e-8, 1e-3, 0.1, 1.0, 2.0, 30.0, 1e8, 1e30, 1e160, 1e300)
POWERS, SHARES = st.sampled_from(SIZES), st.sampled_from([1.0, 0.5, 1e-3, 1e-300])

fuzz = settings(deadline=None, derandomize=True, max_examples=120, database=None)


def softplus(m):
    with np.errstate(all="ignore"):
        return np.logaddexp(0.0, -m)


def sigmoid(m):
    with np.errstate(all="ignore"):
        return 1.0 / (1.0 + np.exp(-m))


STEPS = PiecewiseLinear((-1, 0, 2), (1, -1, 3, 2), 0.5, (1, -1, 0))
MINE = CustomLoss(softplus, lambda m: -sigmoid(-m), lambda m: sigmoid(m) * sigmoid(-m))
MARGIN = [name for name, kind in losses.NAMED.items() if kind.by_margin]
ANY_LOSS = st.sampled_from([*MARGIN, STEPS, np.abs, softplus, MINE])

_GAMMA, _CURVATURE = st.none() | POWERS, st.sampled_from(["exact", "slope"])
#: for minibatches
ANY_SCHEME = st.one_of(
    st.builds(schemes.Variational, gamma=_GAMMA.filter(lambda g: g is None or 1e-8 <= g <= 1e8)),
    st.builds(schemes.Quadrature, gamma=_GAMMA.filter(lambda g: g is None or 1e-8 <= g <= 1e8)),
    st.builds(schemes.Laplace, _CURVATURE),
    st.builds(schemes.QuickLaplace, _CURVATURE),
    st.sampled_from([schemes.Variational(solver="newton"), schemes.Variational(rule="fifth")]),
)
#: for scalar sites, and Laplace propagation
ANY_ROW_SCHEME = st.one_of(
    st.just(schemes.Exact()),
    st.builds(schemes.Laplace, _CURVATURE),
    st.builds(schemes.QuickLaplace, _CURVATURE),
    st.sampled_from([schemes.Quadrature(), schemes.Variational(), schemes.ImportanceSampling(50)]),
)
_RULES = st.sampled_from(["nonnegative", "keep", "floor"])
_ORDERS = st.sampled_from(["sequential", "shuffled", "parallel"])
#: for minibatches with a factorised posterior
ANY_SCHEDULE = st.builds(
    EP,
    st.integers(1, 4),
    damping=SHARES,
    power=SHARES | POWERS,
    order=_ORDERS,
    site_rule=_RULES,
) | st.builds(ADF, power=SHARES | POWERS, site_rule=_RULES)
#: for a full posterior
ANY_FULL_SCHEDULE = st.one_of(
    st.builds(
        EP,
        st.integers(1, 4),
        damping=SHARES,
        power=SHARES | POWERS,
        order=_ORDERS | st.just("auto"),
    ),
    st.builds(ADF, power=SHARES | POWERS),
    st.builds(SEP, st.integers(1, 4), damping=SHARES, power=SHARES | POWERS),
    st.builds(AEP, st.integers(1, 4), damping=SHARES, power=SHARES | POWERS),
    st.builds(DEP, st.just(1), st.integers(1, 2), damping=SHARES),
)


@st.composite
def problems(draw):
    """Rows of any size and shape, and labels."""
    n, d = draw(st.integers(1, 12)), draw(st.integers(1, 10))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    with np.errstate(all="ignore"):
        scales = draw(POWERS) * 10.0 ** rng.choice(draw(st.sampled_from([[0], [-9, 0, 9]])), d)
        rows = np.clip(np.trunc(rng.normal(size=(n, d)) * 8) / 4 * scales, -1e308, 1e308)
    return rows, np.where(rng.random(n) < draw(st.sampled_from([0.0, 0.5])), 1.0, -1.0)
