"""A site of your own by its tilted moments, in Python or C."""

import ctypes
import math

import numpy as np
import pytest
from scipy import LowLevelCallable, special

import epfast
from epfast import ADF, DAEP, EP, SEP, CustomSite, ImportanceSampling
from epfast.backend import fit_minibatch, tilted_moments
from epfast.schemes import Exact
from tests.oracles.data import first_column
from tests.oracles.triples import M, V, Y, assert_triples


def data(n=40, d=3):
    return first_column(n, d, seed=[n, d])


def fit(X, y, loss="probit", **given):
    return epfast.fit_linear(X, y, loss=loss, **{"prior_variance": 2.0} | given)


def probit_moments(m, v):
    scale = np.sqrt(1 + v)
    z = m / scale
    ratio = np.sqrt(2 / np.pi) / special.erfcx(-z / np.sqrt(2))
    return special.log_ndtr(z), ratio / scale, -ratio * (z + ratio) / scale**2


DOUBLES = ctypes.POINTER(ctypes.c_double)
SITE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, DOUBLES, DOUBLES, DOUBLES, ctypes.c_void_p)


def compiled(n, m, v, out, user):
    noise = ctypes.cast(user, DOUBLES)[0] if user else 1.0
    for i in range(n):
        scale = math.sqrt(noise)
        lz, d1, d2 = probit_moments(m[i] / scale, v[i] / noise)
        for j, part in enumerate((lz, d1 / scale, d2 / noise)):
            out[3 * i + j] = part
    return 0


def swallow(n, m, v, out, user):
    return 0


COMPILED, FAILING, SILENT = SITE(compiled), SITE(lambda *given: 7), SITE(swallow)
MINE = {"python": CustomSite(probit_moments), "compiled": LowLevelCallable(COMPILED)}


SCHEDULES = EP(4, 0.0), EP(3, 0.0, 0.5, order="parallel"), ADF(), SEP(2, 0.0), DAEP(3, 2, 0.0)


@pytest.mark.parametrize("loss", MINE.values(), ids=MINE)
def test_own_moments_equal_the_built_in_probit(loss, tmp_path):
    X, y = data(140)
    at = y, X[:, 0], X[:, 1] ** 2
    assert_triples(tilted_moments(loss, *at), tilted_moments("probit", *at), 1e-11, at[2])
    for schedule in SCHEDULES:
        mine, built_in = (fit(X, y, k, schedule=schedule) for k in (loss, "probit"))
        for part in ("mean", "covariance", "log_evidence", "n_refused"):
            np.testing.assert_allclose(getattr(mine, part), getattr(built_in, part), rtol=1e-9)
        np.testing.assert_allclose(mine.predict_proba(X), built_in.predict_proba(X), rtol=1e-9)
    mine.save(tmp_path / "post.npz")
    assert epfast.load(tmp_path / "post.npz").loss is None
    again = epfast.load(tmp_path / "post.npz", loss)
    np.testing.assert_array_equal(again.predict_proba(X), mine.predict_proba(X))


def test_user_data_reach_the_compiled_site():
    noise = ctypes.c_double(4.0)
    pointer = ctypes.cast(ctypes.pointer(noise), ctypes.c_void_p)
    loss = LowLevelCallable(COMPILED, pointer)
    got = tilted_moments(loss, Y, M, V)
    want = tilted_moments("probit", Y, M / 2, V / 4)
    assert_triples(got, [part / unit for part, unit in zip(want, (1, 2, 4), strict=True)])


@pytest.mark.filterwarnings("ignore:.*refused:epfast.ConvergenceWarning")
def test_own_moments_that_are_not_numbers_are_refused_and_counted():
    X, y = data()

    def some(m, v):
        lz, d1, d2 = probit_moments(m, v)
        return np.where(m > 0, lz, np.nan), d1, d2

    order = {"order": "parallel"}
    post = fit(X, y, CustomSite(some), schedule=EP(1, 0.0, **order))
    assert post.n_refused == 40  # all cavity means are 0
    for silent in (CustomSite(lambda m, v: (m * np.nan, m, m)), LowLevelCallable(SILENT)):
        post = fit(X, y, silent, schedule=EP(1, 0.0))
        assert post.n_refused == 40
        with pytest.raises(FloatingPointError, match="24 of 24"):
            tilted_moments(silent, Y, M, V)
        with pytest.raises(FloatingPointError, match="probabilities"):
            post.predict_proba(X)


def test_errors_of_own_moments_come_through():
    X, y = data()

    class OwnError(Exception):
        pass

    def fails(m, v):
        raise OwnError("on purpose")

    for schedule in (EP(), EP(order="parallel"), ADF(), SEP()):
        with pytest.raises(OwnError, match="on purpose"):
            fit(X, y, CustomSite(fails), schedule=schedule)
        with pytest.raises(RuntimeError, match="C function"):
            fit(X, y, LowLevelCallable(FAILING), schedule=schedule)
    with pytest.raises(OwnError, match="on purpose"):
        tilted_moments(CustomSite(fails), Y, M, V)
    for result, match in [
        (lambda m, v: m, "three arrays"),
        (lambda m, v: None, "three arrays"),
        (lambda m, v: (m, m), "three arrays"),
        (lambda m, v: (m, m, m[:, None]), "shape"),
        (lambda m, v: (m, m, 0.0), "shape"),
        (lambda m, v: (m, m + 1j, m), "complex"),
        (lambda m, v: (["a"] * len(m), m, m), "dtype"),
    ]:
        with pytest.raises((TypeError, ValueError), match=match):
            fit(X, y, CustomSite(result))


def test_own_moments_may_keep_or_overwrite_what_they_are_given():
    def rude(m, v):
        result = probit_moments(m, v)
        m[:] = v[:] = np.nan
        return result

    assert_triples(tilted_moments(CustomSite(rude), Y, M, V), tilted_moments("probit", Y, M, V))


# fmt: off
SITE_LOSS = CustomSite(probit_moments)
REFUSED = [  # what the message begins with or says
    ({"loss": SITE_LOSS, "beta": 2.0}, "^beta"), ({"loss": SITE_LOSS, "record": "cost"}, "^record"),
    ({"loss": SITE_LOSS, "schedule": EP(power=0.5)}, "^power"),
    ({"loss": SITE_LOSS, "schedule": ADF(power=0.5)}, "^power"),
    ({"loss": SITE_LOSS, "scheme": "variational"}, "CustomSite"),
    ({"loss": SITE_LOSS, "scheme": "importance"}, "CustomSite"),
    ({"loss": SITE_LOSS, "batch_size": 10, "posterior": "factorized"}, "scalar sites"),
    ({"loss": SITE_LOSS, "scheme": "laplace", "batch_size": 9, "posterior": "factorized"}, "its"),
    ({"scheme": "exact", "batch_size": 10, "posterior": "factorized"}, "scalar sites"),
    ({"scheme": Exact(), "batch_size": 10, "posterior": "factorized"}, "scalar sites"),
    ({"scheme": "importance", "batch_size": 10, "posterior": "factorized"}, "scalar sites"),
    ({"scheme": ImportanceSampling(), "batch_size": 5, "posterior": "factorized"}, "scalar sites"),
    ({"scheme": "quick_laplace", "loss": "noisy_step"}, "jump"),
    ({"scheme": "laplace", "loss": lambda m: np.logaddexp(0, -m)}, "slope and curvature"),
    ({"scheme": "sampling"}, "^scheme"), ({"schedule": EP(site_rule="keep")}, "^site_rule"),
]
# fmt: on


@pytest.mark.parametrize(("given", "match"), REFUSED)
def test_refusals_give_the_reason(given, match):
    X, y = data()
    with pytest.raises(ValueError, match=match):
        fit(X, y, **given)


def test_other_doors_refuse_too():
    for given in ({"beta": 2.0}, {"power": 0.5}, {"scheme": "quadrature"}):
        with pytest.raises(ValueError, match=next(iter(given)) if "scheme" not in given else "its"):
            tilted_moments(SITE_LOSS, Y, M, V, **given)
    with pytest.raises(ValueError, match="CustomSite"):
        fit_minibatch(SITE_LOSS, np.ones((2, 1)), [0.0], [1.0])
    with pytest.raises(ValueError, match="CustomSite"):
        SITE_LOSS.evaluate([0.0])
    with pytest.raises(ValueError, match="scalar sites"):
        fit_minibatch("probit", np.ones((2, 1)), [0.0], [1.0], "importance")
    wrong = LowLevelCallable(ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(lambda m: m))
    with pytest.raises(ValueError, match="signature"):
        CustomSite(wrong)
    with pytest.raises(TypeError, match="moments"):
        CustomSite(3.0)
    with pytest.raises(ValueError, match="signature"):
        epfast.CustomLoss(LowLevelCallable(COMPILED))
    for given in ({"samples": 1}, {"samples": 2.5}, {"seed": -1}, {"seed": None}):
        with pytest.raises((TypeError, ValueError), match=next(iter(given))):
            ImportanceSampling(**given)
