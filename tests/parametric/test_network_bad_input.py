"""What fit_network and its posterior refuse, with the argument's name and what is allowed."""

import json
import zipfile

import numpy as np
import pytest
from scipy import sparse

import epfast
from epfast import ADF, DAEP, DEP, EP, SEP, DoubleLoop, fit_network, load
from epfast.inference.files import digest
from epfast.parametric import engine
from tests.oracles.bad_values import (
    BAD_LABELS,
    BAD_NAME,
    BAD_ROWS,
    BAD_SEED,
    LAYOUTS,
    NOT_FINITE,
    NOT_NUMBERS,
    X,
    Y,
    bad_arrays,
    check_error,
    every_bad_value,
)

NUMBERS = X @ [1.0, -2.0, 0.5] + np.sin(3.0 * X[:, 0])
NUMBERS.flags.writeable = False
ONE = ADF(passes=1)
POST = fit_network(X, NUMBERS, hidden=(4,), schedule=ONE)
CLASSES = fit_network(X, Y, hidden=(4,), schedule=ONE, loss="probit")
FEW = [X[0], X[:1], X[:0]]
#: new rows may be none
BAD_NEW_ROWS = [v for v in BAD_ROWS if getattr(v, "shape", None) != (0, 3)]
BAD_GAMMA = [
    *[(6.0,), (6.0, 6.0, 6.0), "66", {}, (1.0, 6.0), (0.5, 1.0), (6.0, 0.0)],
    *[(6.0, -1.0), (np.nan, 1.0), (6.0, np.inf), (None, 6.0), ("6", 6.0), (True, 6.0), (2e12, 1.0)],
]
BAD_HIDDEN = [
    *[None, (), 0, -1, (0,), (50, -1), (5.0,), 5.5, "50", ("50",), (True,), (5, 5, 5, 5), {5}, {}],
    *[np.zeros(0, int), np.array([2.5]), [[5]], (2**40,), 10**400, np.nan],
]
BAD_SCHEDULES = [
    *["SEP", 5, SEP, ADF, DAEP(), DEP(), DoubleLoop(), EP(order="parallel")],
    *[EP(order="chunked"), EP(power=0.5), SEP(power=2.0), EP(block=3)],
    *[EP(site_rule="floor"), ADF(site_rule="keep"), ADF(warm_up=5)],
]


def fit(**given):
    return fit_network(**{"X": X, "y": NUMBERS, "hidden": (4,), "schedule": ONE, **given})


def classes(y):
    return fit(y=y, loss="probit")


@every_bad_value(
    [
        ("X", [fit], [*BAD_ROWS, *FEW, X.astype(object) * 1j]),
        ("y", [fit], [*bad_arrays(NUMBERS), np.full(len(X), 3.0), np.zeros(len(X))]),
        ("hidden", [fit], BAD_HIDDEN),
        ("prior", [fit], [*BAD_GAMMA, 0.0, -1.0, 2e12, np.nan, np.inf, True]),
        ("noise", [fit], [*BAD_GAMMA, None, 6.0]),
        ("standardize", [fit], [None, 1, "yes", 0.0]),
        ("rng", [fit], BAD_SEED),
        ("loss", [fit], [*BAD_NAME, "logistic"]),
        ("start", [fit], [0, "x", epfast.fit_linear(X, Y, schedule=ONE)]),
        ("callback", [fit], [1, "f"]),
        ("progress", [fit], [1, "yes", None]),
        ("X", [POST.predict, CLASSES.predict_proba], [*BAD_NEW_ROWS, X[:, :2], X[0]]),
        ("size", [POST.sample], [None, -1, 1.5, "3", True]),
        ("path", [POST.save], [None, 3.0]),
    ],
    [
        ("y", classes, BAD_LABELS),
        ("rng", lambda v: POST.sample(1, v), [-1, "0", 1.5]),
        ("y", lambda v: POST.log_predictive(X, v), bad_arrays(NUMBERS)),
        ("y", lambda v: CLASSES.log_predictive(X, v), BAD_LABELS),
        ("y", lambda v: POST.partial_fit(X, v), bad_arrays(NUMBERS)),
        ("X", lambda v: POST.partial_fit(v, NUMBERS), [*BAD_ROWS, X[:, :2], X[:0]]),
        ("hidden", lambda v: fit_network(X, NUMBERS, v, start=POST), [(5,), (4, 4)]),
        ("prior", lambda v: fit_network(X, NUMBERS, prior=v, start=POST), [(5.0, 6.0), 1.0]),
        ("noise", lambda v: fit_network(X, NUMBERS, noise=v, start=POST), [(5.0, 6.0)]),
        ("loss", lambda v: fit_network(X, Y, loss=v, start=POST), ["probit"]),
    ],
)
def test_errors(name, call, value):
    if name == "X" and sparse.issparse(value):
        with pytest.raises(TypeError, match="sparse"):
            call(value)
        return
    check_error(name, call, value)


@pytest.mark.parametrize("schedule", BAD_SCHEDULES, ids=repr)
def test_schedules(schedule):
    with pytest.raises((TypeError, ValueError), match="allowed"):
        fit(schedule=schedule)


def test_no_hidden_layer_is_a_linear_model():
    with pytest.raises(ValueError, match="without one use fit_linear"):
        fit(hidden=())


def test_groups_of_other_rows():
    with pytest.raises(ValueError, match="groups"):
        fit(schedule=epfast.DSEP(groups=np.zeros(5, int)))
    with pytest.raises(ValueError, match="groups"):
        fit(schedule=epfast.DSEP(groups=100))
    with pytest.raises(ValueError, match="batch"):
        fit(schedule=SEP(batch=100))


def test_sites_beyond_memory_are_refused_with_the_figure(monkeypatch):
    monkeypatch.setattr(engine, "physical_memory", lambda: 10**4)
    message = r"EP's sites of \(23, 46\) numbers take .* GB.*SEP.*fewer units"
    with pytest.raises(ValueError, match=message):
        fit(schedule=EP(sweeps=1), hidden=(4,))
    fit(schedule=SEP(sweeps=1, tol=0.0))
    with pytest.raises(ValueError, match="weights take"):
        fit(hidden=(400,))


def test_weights_beyond_memory_are_refused():
    with pytest.raises(ValueError, match=r"allowed: fewer units"):
        fit(hidden=(2**31, 2**31))


def test_rows_too_far_off():
    far = np.full((1, 3), 1e308)
    with pytest.raises(ValueError, match="too far"):
        fit_network(1e-300 * X, NUMBERS, hidden=(4,), schedule=ONE).predict(far)
    with pytest.raises(FloatingPointError, match="overflows"):
        POST.predict(1e200 * X)
    with pytest.raises(ValueError, match="too far"):
        fit_network(X, 1e-300 * NUMBERS, hidden=(4,), schedule=ONE).partial_fit(X, 1e300 * NUMBERS)


def test_probabilities_are_of_classes():
    with pytest.raises(ValueError, match="loss='probit'"):
        POST.predict_proba(X)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout):
    change = LAYOUTS[layout]
    rows, y = change(X), change(NUMBERS)
    post = fit(X=rows, y=y)
    np.testing.assert_array_equal(post.state.belief, POST.state.belief)
    np.testing.assert_array_equal(post.predict(rows), POST.predict(X))


@pytest.mark.parametrize("n", [2, 3])
def test_few_rows(n):
    for schedule in (ONE, SEP(sweeps=3, tol=0.0), EP(sweeps=3, tol=0.0)):
        post = fit_network(X[:n], NUMBERS[:n], hidden=(4, 3), schedule=schedule)
        assert np.isfinite(post.predict(X)).all()


def test_one_class():
    post = classes(np.ones(len(X)))
    assert (post.predict_proba(X) > 0.5).all()


@pytest.mark.parametrize("size", [1e-300, 1e-6, 1e6, 1e300])
def test_rows_of_any_size(size):
    usual = fit(schedule=SEP(sweeps=3, tol=0.0))
    post = fit(X=size * X, schedule=SEP(sweeps=3, tol=0.0))
    np.testing.assert_allclose(post.predict(size * X), usual.predict(X), rtol=1e-9)


def test_one_unit_and_one_column():
    post = fit_network(X[:, :1], NUMBERS, hidden=(1, 1, 1), schedule=SEP(sweeps=3, tol=0.0))
    assert np.isfinite(post.predict(X[:, :1])).all()


# ---- files ----


def damaged(path, change):
    """A file with some parts changed; change gets the dictionaries of arrays and header."""
    with np.load(path) as file:
        arrays = dict(file)
    header = json.loads(str(arrays.pop("header")))
    change(arrays, header)
    del header["digest"]
    header["digest"] = digest(arrays, header)
    np.savez(path, header=np.array(json.dumps(header)), **arrays)


def put(name, value):
    def change(arrays, header):
        arrays[name] = value

    return change


def negative(name, index):
    def change(arrays, header):
        arrays[name].flat[index] *= -1.0

    return change


def without(name):
    return lambda arrays, header: arrays.pop(name)


def settings(**given):
    return lambda arrays, header: header["fields"]["fields"]["problem"]["fields"].update(given)


DAMAGE = {
    "a layer more": settings(hidden={"tuple": [4, 4]}),
    "a belief too short": put("state.belief", np.ones(3)),
    "a base too long": put("state.base", np.ones(300)),
    "a belief of NaN": put("state.belief", np.full(46, np.nan)),
    "an improper belief": negative("state.belief", 2),
    "an improper base": negative("state.base", 3),
    "an improper noise": negative("state.belief", -4),
    "an improper prior": negative("state.belief", -1),
    "sites of another shape": put("state.sites", np.ones((2, 46))),
    "no sites": without("state.sites"),
    "no scale": without("problem.scaling.scale"),
    "a scale of fewer columns": put("problem.scaling.scale", np.ones(2)),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_files(name, tmp_path):
    """Whoever makes the digest anew, too: compiled code relies on shapes."""
    path = tmp_path / "net.npz"
    fit(schedule=SEP(sweeps=2, tol=0.0)).save(path)
    damaged(path, lambda arrays, header: None)
    load(path)
    damaged(path, DAMAGE[name])
    with pytest.raises(ValueError, match="damaged"):
        load(path)


@pytest.mark.parametrize("schedule", [ADF(), epfast.DSEP(groups=np.arange(23) % 3), EP(sweeps=2)])
@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
def test_files(schedule, tmp_path):
    post = fit(schedule=schedule, hidden=(4, 3))
    post.save(tmp_path / "net.npz")
    again = load(tmp_path / "net.npz")
    np.testing.assert_array_equal(again.predict(X), post.predict(X))
    assert (again.history, again.converged) == (post.history, post.converged)
    assert repr(again) == repr(post)
    with pytest.raises(ValueError, match=r"loss is .*; allowed for this file: None"):
        load(tmp_path / "net.npz", loss="probit")
    assert zipfile.is_zipfile(tmp_path / "net.npz")


def test_unused_values_of_the_battery_are_refused_elsewhere_too():
    """Numbers in place of tuples."""
    for value in [*NOT_NUMBERS, *NOT_FINITE]:
        with pytest.raises((TypeError, ValueError), match="prior"):
            fit(prior=(value, 6.0))
