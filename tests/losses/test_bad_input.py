"""Losses: bad arguments get their error."""

from functools import partial

import numpy as np
import pytest

import epfast
from epfast import CustomLoss, CustomSite, PiecewiseLinear, losses
from tests.oracles.bad_values import (
    BAD_LOSS,
    BAD_NAMES,
    BAD_POSITIVE,
    BAD_X,
    INF,
    NAN,
    NOT_FINITE,
    NOT_NUMBERS,
    NOT_REAL,
    bad_arrays,
    bad_contents,
    check_error,
    every_bad_value,
)

EVERY = [partial(kind) for kind in losses.NAMED.values()]
RESPONSES = {name: partial(kind().responses, "y", n=4) for name, kind in losses.NAMED.items()}
SIGNS, COUNTS = np.array([1.0, -1.0, 1.0, 1.0]), np.array([0.0, 3.0, 1.0, 2.0])
TRIALS = np.column_stack([COUNTS, COUNTS + 1])
REALS, TIMES, CLASSES = COUNTS - 1.25, COUNTS + 0.5, COUNTS - (COUNTS > 2)
OF_VARIANCE, ENDS = np.column_stack([REALS, TIMES]), np.column_stack([REALS, TIMES])
OF_EVENTS = np.column_stack([TIMES, COUNTS > 0])
OBJECTS = REALS.astype(object)
#: of a y that may have one or two columns, and of ends, of which some may be infinite
SHAPES = [None, REALS[None], REALS[..., None], REALS[:-1], REALS[:0], 1.0, OBJECTS]

KEYWORDS = [
    ("loss", [losses.resolve], BAD_LOSS),
    ("beta", [*EVERY, losses.Logistic().tempered], [v for v in BAD_POSITIVE if v is not None]),
    ("beta", EVERY, [None]),
    ("beta", [CustomSite(np.add).tempered], [0.5, 2.0]),
    ("epsilon", [epfast.Quasi01, epfast.NoisyStep], [*BAD_POSITIVE, 1e-320]),
    ("epsilon", [epfast.NoisyStep], [0.5, 0.7]),
    ("knots", [partial(PiecewiseLinear, slopes=(0, 0, 0))], [(), (1, 0), (1, 1), (-1e308, 1e308)]),
    ("knots", [partial(PiecewiseLinear, slopes=(0, 0, 0))], [*NOT_REAL, *bad_contents([0.0, 1.0])]),
    ("slopes", [partial(PiecewiseLinear, (0.0, 1.0))], bad_arrays([-1.0, 0.0, 1.0])),
    ("value", [partial(PiecewiseLinear, (0.0,), (0.0, 1.0))], [*NOT_NUMBERS, *NOT_FINITE, None]),
    ("jumps", [partial(PiecewiseLinear, (0, 1), (0, 0, 0))], bad_arrays([1.0, 2.0])[1:]),
    ("value", [CustomLoss], [None, 5, "logistic", np.ones(3)]),
    ("slope", [partial(CustomLoss, np.square)], [5, "x", np.ones(3)]),
    ("curvature", [partial(CustomLoss, np.square, np.square)], [5, "x", np.ones(3)]),
    ("moments", [CustomSite], [None, 5, "logistic", np.ones(3)]),
    ("margins", [epfast.Logistic().evaluate], BAD_X),
    ("variance", [losses.Gaussian, losses.Interval, losses.Censored], BAD_POSITIVE),
    ("scale", [losses.LaplaceNoise, losses.Quantile, losses.StudentT], BAD_POSITIVE),
    ("df", [losses.StudentT], [*BAD_POSITIVE, 0.01]),
    ("q", [losses.Quantile], [*BAD_POSITIVE, 1.0, 2.0]),
    ("lower", [losses.Censored], [*NOT_NUMBERS, *NOT_FINITE]),
    ("upper", [losses.Censored], [*NOT_NUMBERS, *NOT_FINITE]),
    ("lower", [partial(losses.Censored, upper=1.0)], [1.0, 2.0]),
    ("size", [losses.NegativeBinomial], BAD_POSITIVE),
    ("shape", [losses.GammaNoise, losses.Weibull], [*BAD_POSITIVE, 1e-4, 1e5]),
    ("cuts", [losses.Ordinal], [(), (1.0, 0.0), (0.0, 0.0), (0.0, NAN), (-INF, 0.0), 1.0, None]),
    ("cuts", [losses.Ordinal], [*NOT_REAL, *bad_contents([0.0, 1.0])]),
    ("link", [losses.Ordinal], [*BAD_NAMES, "cloglog"]),
]
POSITIONS = [
    *[
        ("y", RESPONSES[name], [*bad_arrays(SIGNS), 0 * SIGNS, 2 * SIGNS, SIGNS > 0])
        for name, kind in losses.NAMED.items()
        if kind.by_margin
    ],
    ("y", RESPONSES["poisson"], [*bad_arrays(COUNTS), -COUNTS, COUNTS + 0.5, 2.0**60 * COUNTS]),
    ("y", RESPONSES["negative_binomial"], [*bad_arrays(COUNTS), -COUNTS, COUNTS + 0.5, OBJECTS]),
    *[
        ("y", RESPONSES[name], [*bad_arrays(REALS), OBJECTS])
        for name in ("student_t", "laplace_noise", "quantile", "censored")
    ],
    ("y", RESPONSES["gaussian"], [*bad_contents(REALS), *SHAPES, *NOT_REAL]),
    ("y", RESPONSES["gaussian"], [OF_VARIANCE * [1, 0], OF_VARIANCE * [1, -1], OF_VARIANCE[:-1]]),
    ("y", RESPONSES["interval"], [REALS, ENDS[:, ::-1], ENDS * NAN, ENDS[:-1], [[INF, INF]] * 4]),
    ("y", RESPONSES["interval"], [*NOT_REAL, ENDS.astype(object), ENDS.astype(complex)]),
    ("y", RESPONSES["ordinal"], [*bad_arrays(CLASSES), -CLASSES, CLASSES + 0.5, CLASSES + 1]),
    *[
        ("y", RESPONSES[name], [*bad_contents(TIMES), *SHAPES, *NOT_REAL, -TIMES, 0 * TIMES])
        for name in ("gamma_noise", "weibull")
    ],
    *[
        ("y", RESPONSES[name], [*bad_contents(OF_EVENTS), OF_EVENTS * 2, -OF_EVENTS, 0 * OF_EVENTS])
        for name in ("gamma_noise", "weibull")
    ],
    ("y", RESPONSES["binomial"], [*bad_arrays(TRIALS), TRIALS[:, ::-1], -TRIALS, TRIALS + 0.5]),
]


@every_bad_value(KEYWORDS, POSITIONS)
def test_error_names_the_argument(name, call, value):
    check_error(name, call, value)


@pytest.mark.parametrize("name", losses.NAMED)
def test_a_loss_does_not_change(name):
    loss = losses.NAMED[name]()
    if "powers" not in loss.gives:
        pytest.skip("no beta")
    warm = loss.tempered(0.5)
    assert (loss.beta, warm.beta, warm.tempered(3.0).beta) == (1.0, 0.5, 1.5)
    assert loss.tempered(None) is loss
    with pytest.raises(AttributeError):
        loss.beta = 2.0
