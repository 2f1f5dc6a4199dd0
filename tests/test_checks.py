"""The door's checks, one by one: what they let through, and as what."""

import inspect
import pickle
import re
import sys

import numpy as np
import pytest
from scipy import sparse

import epfast
from epfast import LinearClassifier, _checks, losses
from tests.oracles.bad_values import LAYOUTS, N, X, Y, frozen


@pytest.mark.parametrize("value", [1, 2.5, np.float32(0.5), np.int8(3), np.float64(1e300)])
def test_numbers(value):
    found = _checks.number("x", value, above=0.0)
    assert type(found) is float
    assert found == value


@pytest.mark.parametrize(
    ("limits", "good", "bad", "words"),
    [
        ({"above": 0.0}, 1e-300, 0.0, "> 0"),
        ({"least": 0.0}, 0.0, -1e-300, ">= 0"),
        ({"above": 0.0, "most": 1.0}, 1.0, 1.0 + 1e-15, "> 0 and <= 1"),
        ({"least": 2.0, "most": 2.0}, 2.0, 3.0, ">= 2 and <= 2"),
    ],
)
def test_limits_of_numbers_are_said(limits, good, bad, words):
    assert _checks.number("x", good, **limits) == good
    with pytest.raises(ValueError, match=rf"^x is .*; allowed: a finite number {words}$"):
        _checks.number("x", bad, **limits)


#: suggestions for an argument of another package, and our names for a choice of one
ARGUMENTS = {name: pairs for names, pairs in _checks.ARGUMENTS.items() for name in names.split()}
ALIASES = {
    alias: [ours for ours, theirs in _checks.ALIASES.items() if alias in theirs.split()]
    for alias in " ".join(_checks.ALIASES.values()).split()
}


def test_an_argument_of_another_package_stands_once():
    assert len(ARGUMENTS) == sum(len(names.split()) for names in _checks.ARGUMENTS)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_names_of_other_packages_lead_to_arguments(name):
    """Each entry is of use somewhere, and what it says to write is an argument of that function."""
    doors = [
        epfast.fit_linear,
        epfast.fit_gp,
        epfast.fit_hyper,
        epfast.fit_network,
        epfast.LinearClassifier,
        epfast.LinearRegressor,
        epfast.GPClassifier,
        epfast.GPRegressor,
        epfast.NetworkClassifier,
        epfast.formula.fit,
        epfast.EP,
        epfast.ADF,
        epfast.losses.StudentT,
        epfast.losses.Gaussian,
    ]
    used = set()
    for door in doors:
        known = list(inspect.signature(door).parameters)
        if name in known:
            continue
        with pytest.raises(
            TypeError, match=f"got an unexpected keyword argument '{name}'"
        ) as error:
            door(**{name: 1})
        for pair in ARGUMENTS[name]:
            if set(pair[0].split()) <= set(known):
                used.add(pair)
                assert pair[1] in str(error.value)
                written = re.match(r"(\w+)=", pair[1])
                if written and "fit(X, y)" not in pair[1]:
                    assert written[1] in known, pair
                break
    assert used == set(ARGUMENTS[name])


@pytest.mark.parametrize(
    ("door", "name", "said"),
    [
        (epfast.fit_linear, "sample_weight", "here that is weights="),
        (epfast.EP, "max_iter", r"here that is sweeps=\.\.\."),
        (epfast.EP, "alpha", "here that is power=alpha"),
        (epfast.losses.StudentT, "deg_free", "here that is df="),
        (epfast.priors.HalfNormal, "sigma", "here that is scale="),
        (epfast.fit_linear, "prior_varianc", "did you mean prior_variance=?"),
        (epfast.fit_linear, "power", r"here that is schedule=epfast.EP\(order=..., damping="),
        (epfast.fit_linear, "nonsense", "'nonsense'$"),
        (epfast.fit_mixture, "sample_weight", "'sample_weight'; did you mean weights"),
        (epfast.LinearClassifier, "C", "^LinearClassifier.* prior_variance=C"),
        (epfast.LinearClassifier().set_params, "C", "Invalid parameter 'C'.* prior_variance=C"),
        (epfast.NetworkClassifier, "class_weight", "there is none: move the threshold"),
        (epfast.GPClassifier, "n_restarts", "n_restarts_optimizer="),
        (epfast.dask.LinearClassifier, "max_iter", "sweeps="),
    ],
)
def test_names_that_are_not_known(door, name, said):
    with pytest.raises((TypeError, ValueError), match=said):
        door(**{name: 1})


def test_an_object_in_place_of_numbers_is_named():
    with pytest.raises(TypeError, match=r"K is <object object at .*; allowed: real numbers"):
        epfast.fit_gp(object(), [1])


def test_named_functions_keep_their_face():
    assert epfast.fit_linear.__module__ == "epfast.gaussian.fit_linear"
    assert pickle.loads(pickle.dumps(epfast.fit_linear)) is epfast.fit_linear
    assert "prior_variance" in inspect.signature(epfast.fit_linear).parameters


@pytest.mark.parametrize("name", ALIASES)
def test_other_names_of_choices(name):
    """They lead to names that are, and are none of those themselves where these are allowed."""
    choices = [
        (*epfast.losses.names.NAMED, *epfast.losses.names.WITH_LATENTS),
        epfast.formula.NAMES,
        ("exact", "quadrature", "laplace", "quick_laplace", "variational"),
        ("full", "factorized"),
        ("sequential", "shuffled", "parallel"),
        ("fmin_l_bfgs_b",),
    ]
    allowed = set().union(*choices)
    assert set(ALIASES[name]) <= allowed
    for names in choices:
        near = [one for one in ALIASES[name] if one in names]
        if near and name not in names:
            with pytest.raises(ValueError, match=f"did you mean '{near[0]}'"):
                _checks.choice("x", name.replace("_", "-").upper(), names)


def test_functions():
    for good in (lambda a, b: None, lambda *all: None, lambda a, b=1, *, c=2: None, np.add, dict):
        _checks.function("f", good, "m", "v")
    for bad in (lambda a: None, lambda a, b, c: None, lambda a, b, *, c: None):
        with pytest.raises(TypeError, match=r"^f is a function of \(a.*; allowed: of \(m, v\)$"):
            _checks.function("f", bad, "m", "v")
    with pytest.raises(TypeError, match=r"^f is 3; allowed: a callable or None$"):
        _checks.function("f", 3, "m", "v", other=" or None")


@pytest.mark.parametrize(
    "given", [{"callback": lambda info: None}, {"loss": lambda y, h: np.logaddexp(0.0, -y * h)}]
)
def test_functions_of_other_packages_are_refused_with_their_arguments(given):
    with pytest.raises(TypeError, match=r"is a function of \(.*; allowed: of \("):
        epfast.fit_linear(np.eye(2), [1, -1], **given)


def test_integers():
    for value in (3, np.int64(3), np.uint8(3)):
        found = _checks.integer("n", value, least=1)
        assert type(found) is int
        assert found == 3
    for value, words in ((0, "an integer >= 1"), (2**62 + 1, "an integer from 1 to 46")):
        with pytest.raises(ValueError, match=f"^n is {value}; allowed: {words}"):
            _checks.integer("n", value, least=1)
    with pytest.raises(ValueError, match=r"^n is 9; allowed: an integer from 1 to 8$"):
        _checks.integer("n", 9, least=1, most=8)
    for value in (True, 3.0, "3", None):
        with pytest.raises(TypeError, match=r"^n is .*; allowed: an integer >= 1$"):
            _checks.integer("n", value, least=1)


def test_choices_and_flags():
    assert _checks.choice("name", "a", ("a", "b")) == "a"
    with pytest.raises(ValueError, match=r"^name is 'c'; allowed: 'a', 'b'$"):
        _checks.choice("name", "c", ("a", "b"))
    for value in (True, np.bool_(True)):
        assert _checks.flag("x", value) is True
    for value in (1, "yes", None):
        with pytest.raises(TypeError, match=r"^x is .*; allowed: True or False$"):
            _checks.flag("x", value)


def test_values_are_described_in_a_line():
    assert _checks.describe(3) == "3"
    assert _checks.describe(np.zeros((4, 2))) == "an array of shape (4, 2) and dtype float64"
    assert len(_checks.describe("x" * 1000)) == 60


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_of_any_layout_become_plain(layout):
    found = _checks.array("x", LAYOUTS[layout](np.array(X)), shape=(None, 3))
    assert found.dtype == np.float64
    assert found.flags.c_contiguous
    assert found.flags.aligned
    np.testing.assert_array_equal(found, X)


def test_arrays_that_are_plain_are_not_copied():
    for check in (
        lambda a: _checks.array("x", a, shape=(None, None)),
        lambda a: _checks.design("X", a),
        lambda a: _checks.rows("X", a),
        lambda a: _checks.real_array("x", a),
    ):
        for array in (np.array(X), frozen(np.array(X))):
            assert np.shares_memory(check(array), array)
    single = np.array(X, dtype=np.float32)
    assert np.shares_memory(_checks.design("X", single), single)  # read piece by piece
    rows = sparse.csr_matrix(X)
    assert np.shares_memory(_checks.rows("X", rows).data, rows.data)


def test_arrays_that_may_be_infinite():
    given = np.array([np.inf, 1.0])
    assert _checks.array("x", given, shape=(2,), finite=False) is given
    with pytest.raises(ValueError, match=r"^x holds NaN or infinity; allowed: finite numbers$"):
        _checks.array("x", given, shape=(2,))
    with pytest.raises(ValueError, match=r"^x has shape \(2,\); allowed: \(any, 3\)$"):
        _checks.array("x", given, shape=(None, 3))


def test_sparse_rows_are_put_in_order():
    """Entries that are given twice count as their sum, and the user's matrix stays."""
    twice = sparse.coo_array(([1.0, 2.0, 4.0], ([0, 0, 1], [1, 1, 0])), shape=(2, 2)).tocsr()
    twice.has_canonical_format = False
    before = twice.copy()
    np.testing.assert_array_equal(_checks.rows("X", twice).toarray(), [[0, 3], [4, 0]])
    assert twice.nnz == before.nnz
    for kind in (sparse.csc_array, sparse.coo_array, sparse.lil_array, sparse.csr_matrix):
        found = _checks.rows("X", kind(X.astype(np.float32)))
        assert found.format == "csr"
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found.toarray(), X.astype(np.float32))


@pytest.mark.parametrize("part", ["indices", "indptr"])
def test_sparse_rows_that_lie_are_found(part):
    bad = sparse.csr_array(np.array(X))
    getattr(bad, part)[-1] = 10**6
    bad.has_canonical_format = True
    with pytest.raises(ValueError, match=r"^X is not a valid CSR matrix; allowed"):
        _checks.rows("X", bad)


@pytest.mark.parametrize("dtype", ["f8", "f4", "i8", "i1", "O"])
def test_labels(dtype):
    found = _checks.labels("y", Y.astype(dtype), N)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, Y)


def test_wrong_labels_are_shown():
    with pytest.raises(ValueError, match=r"^y has the labels 0, 1; allowed: -1 and \+1; use "):
        _checks.labels("y", np.array([0, 1, 1]), 3)
    with pytest.raises(ValueError, match=r"^y has the labels 0, 1, 2, 3, \.\.\.; allowed"):
        _checks.labels("y", np.arange(9), 9)


def test_groups():
    assert _checks.groups("groups", 3) == 3
    labels = _checks.groups("groups", [1, 0, 1])
    assert labels.dtype == np.intp
    np.testing.assert_array_equal(_checks.group_labels("groups", labels, 3), [1, 0, 1])
    np.testing.assert_array_equal(_checks.group_labels("groups", 2, 5), [0, 0, 1, 1, 1])
    with pytest.raises(ValueError, match=r"^groups holds labels from 0 to 2; allowed: 0 to K - 1"):
        _checks.groups("groups", [0, 2, 2])


def test_covariances():
    """Large ones by blocks: a gap anywhere is found."""
    K = np.eye(600)
    assert _checks.covariance("K", K) == 1.0
    for i, j in ((0, 599), (300, 299), (599, 1)):
        K[i, j] = 1e-6
        with pytest.raises(ValueError, match=r"^K is not symmetric: K.*1e-06.*allowed"):
            _checks.covariance("K", K)
        K[i, j] = np.nan
        with pytest.raises(ValueError, match=r"^K holds NaN or infinity"):
            _checks.covariance("K", K)
        K[i, j] = 0.0
    K[5, 5] = -1.0
    with pytest.raises(ValueError, match=r"^K has a negative diagonal entry"):
        _checks.covariance("K", K)


def shrunk(n, jitter):
    """A covariance of n points on a line: its inverse is not symmetric to 1e-9 or worse."""
    gaps = np.subtract.outer(np.arange(n), np.arange(n)) / n
    return np.exp(-2.0 * gaps**2) + jitter * np.eye(n)


AR1 = 0.9 ** np.abs(np.subtract.outer(np.arange(20), np.arange(20)))


@pytest.mark.parametrize("S", [AR1, shrunk(20, 1e-8), shrunk(40, 1e-10)])
@pytest.mark.parametrize("units", [0, 6])
def test_an_inverse_is_symmetric_to_rounding(S, units):
    """In any units of the columns; a real difference of 1e-3 of sqrt(P_ii P_jj) is refused.

    What comes back is symmetric to the last bit: the mean of the matrix and its transpose.
    """
    scale = 10.0 ** np.linspace(-units, units, len(S))
    P = np.linalg.inv(S * scale * scale[:, None])
    assert (P != P.T).any()
    found = _checks.definite("P", P, len(S))
    np.testing.assert_array_equal(found, found.T)
    np.testing.assert_allclose(found, 0.5 * (P + P.T), rtol=1e-15)
    P[3, 1] += 1.5e-3 * np.sqrt(P[1, 1] * P[3, 3])
    said = f"P[1, 3] is {float(P[1, 3])!r} and P[3, 1] is {float(P[3, 1])!r}"
    with pytest.raises(ValueError, match=rf"^P is not symmetric: {re.escape(said)}; allowed"):
        _checks.definite("P", P, len(S))


def test_half_the_digits_of_what_was_given():
    """A matrix of float32 is symmetric to 3e-4, one of doubles to 1e-8; units do not hide a gap."""
    K = np.eye(3)
    K[0, 1] = 1e-6
    _checks.covariance("K", K.astype(np.float32))
    for given in (K, np.diag([1.0, 1.0, 1e9]) + np.triu(K, 1)):
        with pytest.raises(ValueError, match=r"^K is not symmetric: K.0, 1. is 1e-06 and K.1, 0."):
            _checks.covariance("K", given)
    for bad in ([[1.0, 2.0], [2.0, 1.0]], [[1.0, 0.0], [0.0, -1.0]], np.zeros((2, 2))):
        with pytest.raises(ValueError, match=r"^P (is not positive definite|has .* diagonal)"):
            _checks.definite("P", bad, 2)


def test_generators():
    rng = np.random.default_rng(0)
    assert _checks.generator("rng", rng) is rng
    same = [_checks.generator("rng", 7).random() for _ in range(2)]
    assert same[0] == same[1]
    fresh = [_checks.generator("rng", None).random() for _ in range(2)]
    assert fresh[0] != fresh[1]


def test_paths(tmp_path):
    assert _checks.path("path", tmp_path / "x") == _checks.path("path", str(tmp_path / "x"))
    with pytest.raises(TypeError, match=r"^path is 3; allowed: a str or a path$"):
        _checks.path("path", 3)


HOURS = np.arange("2024-01-01", "2024-01-02", dtype="datetime64[h]")
#: what stands for times, of 24 rows
TIMES = {
    "date": HOURS,
    "duration": HOURS - HOURS[0],
    "objects": np.array(list(HOURS), dtype=object),
    "datetime": [one.astype(object) for one in HOURS],
    "days": np.array([one.astype("datetime64[D]").astype(object) for one in HOURS]),
}
WAVE = np.sin(np.arange(24.0))


def fits_of_times(times):
    """Doors with times among the columns, and in place of numbers elsewhere."""
    two, flags = np.array([list(times)] * 2, dtype=object).T, np.where(WAVE > 0.0, 1, -1)
    X, post = np.stack([WAVE, WAVE**2], axis=1), epfast.fit_linear(np.eye(24)[:, :2], flags)
    model = epfast.LinearRegressor().fit(X, WAVE)
    yield "X", lambda: epfast.fit_linear(two, flags)
    yield "X", lambda: epfast.fit_network(two, WAVE, (2,))
    yield "X", lambda: post.predict(two)
    yield "X", lambda: model.predict(two)
    for kind in (epfast.LinearClassifier, epfast.GPClassifier, epfast.NetworkClassifier):
        yield "X", lambda kind=kind: kind().fit(two, flags)
    for kind in (epfast.LinearRegressor, epfast.GPRegressor, epfast.NetworkRegressor):
        yield "y", lambda kind=kind: kind().fit(X, times)
    yield "y", lambda: epfast.fit_linear(X, times, loss="gaussian")
    yield "y", lambda: epfast.fit_gp(np.eye(24), times, loss="gaussian")
    yield "weights", lambda: epfast.fit_linear(X, flags, weights=times)
    g = epfast.Graph()
    yield "y", lambda: g.add("gaussian", X @ g.gaussian(2), times)
    yield "mean", lambda: g.gaussian(24, mean=times)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", TIMES)
def test_times_are_no_numbers(kind):
    """NumPy reads them as nanoseconds, or another unit, since 1970."""
    for name, door in fits_of_times(TIMES[kind]):
        with pytest.raises(TypeError, match=rf"^{name} holds times.* subtract a date and divide"):
            door()


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", [*TIMES, "period", "zone"])
def test_a_column_of_times_is_named(kind):
    pandas = pytest.importorskip("pandas")
    hours = pandas.Series(HOURS.astype("datetime64[ns]"))
    zone, period = hours.dt.tz_localize("UTC"), hours.dt.to_period("D")
    frame = pandas.DataFrame({"x": WAVE, "when": {"zone": zone, "period": period}.get(kind)})
    frame["when"] = TIMES.get(kind, frame.when)
    for door in (epfast.LinearRegressor().fit, epfast.GPRegressor().fit):
        with pytest.raises(TypeError, match="X has times in the column 'when'; allowed: numbers"):
            door(frame, WAVE)
    with pytest.raises(TypeError, match="X has times in the column 'when'; allowed: numbers"):
        epfast.fit_linear(frame, WAVE, loss="gaussian")
    for text in ("x ~ when", "x ~ (1 | when)", "when ~ x"):
        with pytest.raises(ValueError, match="'when' holds times; allowed: numbers; subtract"):
            epfast.formula.fit(text, frame)
    frame["when"] = frame.x > 0.0  # truth values stay
    assert epfast.LinearRegressor().fit(frame, WAVE).coef_.shape == (2,)


OPTIONAL = ["sklearn", "matplotlib", "xarray", "arviz", "pandas", "formulae", "dask", "GPy", "tqdm"]
#: asks for each optional package, and prints what is said; each is broken, or missing
DOORS = """
import sys, warnings
import numpy as np
import epfast
from epfast import plots

class Finder:
    def find_spec(self, name, *rest):
        if name == BROKEN:
            raise ImportError("a library of its own is broken", name=name)

sys.meta_path.insert(0, Finder())
X = np.random.default_rng(0).normal(size=(30, 2))
post = epfast.fit_linear(X, np.where(X[:, 0] > 0.1, 1, -1))
doors = {
    "sklearn": lambda: epfast.LinearClassifier,
    "matplotlib": lambda: plots.coefficients(post),
    "xarray": post.to_arviz,
    "arviz": post.to_arviz,
    "pandas": post.summary,
    "formulae": lambda: epfast.formula.fit("y ~ x", {"x": X[:, 0], "y": X[:, 1]}),
    "dask": lambda: epfast.dask,
    "GPy": lambda: epfast.gpy,
    "tqdm": lambda: epfast.fit_linear(X, np.sign(X[:, 0]), progress=True),
}
with warnings.catch_warnings(action="ignore"):
    try:
        doors[BROKEN]()
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.mark.full
@pytest.mark.parametrize("name", OPTIONAL)
def test_a_broken_package_is_not_said_to_be_missing(run_python, name):
    pytest.importorskip(name)
    said = run_python(f"BROKEN = {name!r}\n{DOORS}").stdout
    assert said == "ImportError a library of its own is broken\n"


def test_what_to_install_is_said_of_missing_packages_alone(tmp_path, monkeypatch):
    (tmp_path / "halfway.py").write_text("import a_module_that_is_nowhere")
    (tmp_path / "broken.py").write_text("from math import nothing")
    monkeypatch.syspath_prepend(tmp_path)
    for name, kind, said in (
        ("not_there", ImportError, "^install it$"),
        ("halfway", ModuleNotFoundError, "a_module_that_is_nowhere"),
        ("broken", ImportError, "cannot import name 'nothing'"),
    ):
        with pytest.raises(kind, match=said), _checks.needs("install it", "math", name):
            pass
    monkeypatch.setitem(sys.modules, "math", None)
    assert not _checks.installed("math")


FLAGS = np.where(WAVE > 0.0, 1, -1)
TWO = np.stack([WAVE, np.cos(np.arange(24.0))], axis=1)
HALF = epfast.priors.HalfNormal(1.0)
PLAYED = {"winner": np.arange(24) % 3, "loser": (np.arange(24) + 1) % 3}


def learned(**given):
    sds = {"s": (slice(0, 2), HALF)}
    return epfast.fit_hyper(TWO, WAVE, sds=sds, learn={"sd": HALF}, strategy="eb", **given)


def by_formula(**columns):
    return epfast.formula.fit("y ~ x + offset(z)", {"x": WAVE, "y": WAVE, "z": WAVE, **columns})


@pytest.mark.parametrize(
    ("said", "door"),
    [
        ("offset holds", lambda: epfast.fit_linear(TWO, FLAGS, offset=np.full(24, 1e308))),
        ("offset holds", lambda: epfast.fit_gp(np.eye(24), FLAGS, offset=np.full(24, -1e200))),
        ("offset holds", lambda: learned(offset=np.full(24, 1e308))),
        ("beta is", lambda: epfast.fit_linear(TWO, WAVE, loss="gaussian", beta=1e308)),
        ("beta is", lambda: losses.Probit(beta=1e308)),
        ("intercept is", lambda: epfast.fit_linear(TWO, FLAGS, intercept=1e-300)),
        ("intercept_var", lambda: LinearClassifier(intercept_variance=1e-300).fit(TWO, FLAGS)),
        ("prior_groups has", lambda: LinearClassifier(prior_groups=[[1], [1, 2]]).fit(TWO, FLAGS)),
        *(
            ("prior_variance ", lambda value=value: learned(prior_variance=value))
            for value in ("a", 1j, object(), {}, 10**400, [[1.0], [1.0, 2.0]])
        ),
        ("mean holds", lambda: epfast.Graph().gaussian(2, mean=1e308)),
        ("shape holds", lambda: epfast.Graph().gamma(shape=1e308, rate=1.0)),
        ("prior_sd is", lambda: epfast.rating.fit(PLAYED, **NAMES, prior_sd=1e308)),
        ("prior_sd is", lambda: epfast.rating.fit(PLAYED, **NAMES, prior_sd=1e-300)),
        ("drift is", lambda: epfast.rating.fit(PLAYED, **NAMES, drift=1e308)),
        ("formula .*'x' has 1e", lambda: by_formula(x=np.full(24, 1e308))),
        ("formula .*'offset.z.' has 1e", lambda: by_formula(z=np.full(24, 1e308))),
        ("formula .*the response is", lambda: by_formula(y=np.full(24, 1e-300))),
        ("formula .*'x' holds complex", lambda: by_formula(x=WAVE * 1j)),
    ],
)
def test_ends_of_the_range_and_what_is_no_number(said, door):
    """The error names the argument, as all errors do, and comes before the fit."""
    pytest.importorskip("formulae")
    with pytest.raises((TypeError, ValueError), match=f"^{said}"):
        door()


NAMES = {"winner": "winner", "loser": "loser"}
