"""Constants that split work change no result: each of them made tiny, and then all together.

A result depends on its arguments alone, so that the truth is the same call with the constants as
they are. ``PIECES`` lists them, and a search of the package fails where one is missing.
"""

import ast
import importlib
import re
import warnings
from contextlib import contextmanager
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from scipy import sparse

import epfast
from epfast import ADF, AEP, DEP, EP, SEP, losses
from epfast.gaussian.forms.kernel import ProcessEngine
from epfast.gaussian.shrunk_posterior import Models, worst_inclusion
from epfast.graph import Factor
from tests.golden import fits

PACKAGE = Path(epfast.__file__).parent
#: of all numbers of a result, in the size of the largest
CLOSE = 1e-9


class Pieces(NamedTuple):
    """A constant that splits work."""

    #: what it is made
    tiny: float
    #: a form that meets it
    form: str
    #: how close results then are: sums in single precision
    close: float = CLOSE


PIECES = {
    "_arrays.NUMBERS": Pieces(7, "wide"),
    "_arrays.ROWS": Pieces(3, "process"),
    "estimators.kernels.VALUES": Pieces(20, "nearest rows"),
    "estimators.process.NUMBERS": Pieces(20, "process of inputs"),
    "gaussian.orders.BLOCK": Pieces(2, "in chunks"),
    "gaussian.engine.LEAST_SITES": Pieces(1, "prior sites"),
    "gaussian.engine.MOST_SITES": Pieces(2, "process"),
    "gaussian.orders.WIDE_BLOCK": Pieces(3, "in chunks of csr"),
    "gaussian.forms.diagonal.MOMENT": Pieces(1, "minibatches"),
    "gaussian.forms.diagonal.MOST_PARTS": Pieces(1, "factorized"),
    "gaussian.forms.diagonal.NUMBERS": Pieces(8, "factorized"),
    "gaussian.forms.kernel.CHUNK": Pieces(1, "process"),
    "gaussian.accelerate.NUMBERS": Pieces(9, "factorized"),
    "gaussian.forms.nested.AT_ONCE": Pieces(20, "nested"),
    "gaussian.forms.weights.CHUNK": Pieces(1, "prior sites"),
    "gaussian.factor.AHEAD": Pieces(2, "low rank"),
    "gaussian.factor.CHUNK": Pieces(5, "low rank"),
    "gaussian.problem.BLOCK": Pieces(3, "shared"),
    "gaussian.problem.CHUNK": Pieces(9, "passes"),
    "gaussian.shrunk_posterior.BLOCK": Pieces(3, "inclusion"),
    "gaussian.sparse.PART": Pieces(1, "sparse precision"),
    "gaussian.rows.NUMBERS": Pieces(30, "wide"),
    "gaussian.rows.WORK": Pieces(50, "wide"),
    "graph.engine.FACTORS_PER_CALL": Pieces(2, "graph"),
    "inference.importance.BLOCK": Pieces(20, "low rank"),
    "inference.runtime.SECONDS_PER_CALL": Pieces(1e-9, "minibatches"),
    "losses.quantiles.ROWS": Pieces(2, "count quantiles"),
    "operators.tilted.MOST_NUMBERS": Pieces(10_000, "own factor"),
    "svm.ENTRIES": Pieces(9, "support vectors"),
}
#: constants that are named or described alike, and what they are instead
OTHERS = {
    "dask.cluster.ROW_BYTES": "an estimate",
    "dask.data.FEW_BYTES": "tests/dask/test_passes.py makes it tiny",
    "dask.data.MOST_SHARDS": "tests/dask/test_passes.py makes it tiny",
    "dask.data.PER_THREAD": "shards, which are the algorithm",
    "estimators.search.ENOUGH_ROWS": "a rule for a warning",
    "estimators.kernels.ROWS": "rows that bounds are taken from",
    "estimators.linear.FEWER_ROWS": "a choice of an algorithm",
    "gaussian.fit_linear.MOST_BYTES": "a limit",
    "gaussian.engine.CONTRACTION": "a step",
    "gaussian.engine.STALLED": "a step",
    "gaussian.orders.FEW_ROWS": "an order",
    "gaussian.orders.LANE_BYTES": "most bytes of the sums of all lanes",
    "gaussian.orders.ROWS_OF_SUM": "rows that pay for the sum of a lane",
    "gaussian.orders.NARROW": "columns up to which blocks are of BLOCK rows",
    "gaussian.orders.ROWS_PER_DIMENSION": "an order",
    "gaussian.forms.diagonal.WARM_UP_NUMBERS": "rows that settle first, which are the algorithm",
    "gaussian.forms.diagonal.WARM_UP_ROWS": "rows that settle first, which are the algorithm",
    "gaussian.forms.stack.BY_ROWS_UP_TO": "an order",
    "gaussian.accelerate.BYTES": "an estimate",
    "gaussian.accelerate.REACH": "a step",
    "gaussian.forms.nearest.BLOCK": "an order: rows that are fitted from the same sites",
    "gaussian.forms.nearest.BLOCKS": "an order: rows that are fitted from the same sites",
    "gaussian.forms.nested.MOST_PARTS": "an order: parts are fitted from the same posterior",
    "gaussian.fit_hyper.FEW_ENTRIES": "a choice of an algorithm",
    "gaussian.sparse.MOST_FILL": "a choice of an order",
    "gaussian.sparse.MOST_NUMBERS": "a limit",
    "gaussian.notes.ENOUGH_ROWS": "a rule for a note",
    "gaussian.notes.SPAN_ROWS": "a rule for a note",
    "gaussian.shrunk_posterior.ERRORS": "a rule for a verdict",
    "gaussian.shrunk_posterior.OFF": "a rule for a verdict",
    "gaussian.state.MOST_BYTES": "a limit",
    "graph.catalogue.table.MOST_ENTRIES": "a limit",
    "graph.model.BLOCK": "a mark",
    "inference.executors.LOOK": "seconds of waiting",
    "parametric.network.FOLDS": "rows that are held out",
    "parametric.network.HELD_OUT": "rows that are held out",
    "parametric.network.MANY_PARTS": "a rule for a warning",
    "parametric.network.MANY_ROWS": "a rule for a warning",
}
#: what such constants are called, and what their comments say
NAMES = r"(^|_)(BATCH|BLOCKS?|BUFFER|BYTES|CHUNKS?|ENTRIES|NUMBERS|PARTS?|PIECES?|ROWS|TILES?)(_|$)"
NAMES += "|AHEAD|AT_ONCE|PER_(CALL|THREAD)"
WORDS = r"\bat a time\b|\bper (call|slice|block|part|piece)\b|\b(one|a|each) (call|piece)\b"
WORDS += r"|\bin a moment\b|\btwo looks\b"


# ---- the constants ----


#: the sources of the package, by module
SOURCES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
TREES = {module: ast.parse(path.read_text()) for module, path in SOURCES.items()}


def users():
    """The modules that hold each constant: its own, and those that import it."""
    found = {constant: ["epfast." + constant.rsplit(".", 1)[0]] for constant in PIECES}
    for module, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ImportFrom):
                for one in node.names:
                    constant = f"{node.module}.{one.name}".removeprefix("epfast.")
                    if constant in found:
                        found[constant].append(f"epfast.{module}")
    return found


USERS = users()


@contextmanager
def made(values):
    """The constants of these names are these values."""
    with pytest.MonkeyPatch.context() as patch:
        for constant, value in values.items():
            for module in USERS[constant]:
                patch.setattr(importlib.import_module(module), constant.rsplit(".", 1)[1], value)
        # one is an argument, with the constant as its default
        if "gaussian.forms.kernel.CHUNK" in values:
            given = ProcessEngine.__init__.__kwdefaults__
            chunk = {"chunk": values["gaussian.forms.kernel.CHUNK"]}
            patch.setattr(ProcessEngine.__init__, "__kwdefaults__", given | chunk)
        yield


class MetError(Exception):
    """A constant was used."""


class Trap:
    """A number that cannot be used."""


def _sprung(*_, **__):
    raise MetError


for _name in [
    "add",
    "radd",
    "sub",
    "rsub",
    "mul",
    "rmul",
    "floordiv",
    "rfloordiv",
    "truediv",
    "rtruediv",
    "mod",
    "rmod",
]:
    setattr(Trap, f"__{_name}__", _sprung)
for _name in ["lt", "le", "gt", "ge", "index", "int", "float", "array"]:
    setattr(Trap, f"__{_name}__", _sprung)


# ---- the forms ----


N, D, NEW = 23, 4, 5
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N + NEW, D))
H = X @ [1.0, -1.0, 0.5, 0.0] + 0.2
Y = np.where(H + RNG.logistic(size=N + NEW) > 0.0, 1.0, -1.0)
REAL = H + 0.5 * RNG.normal(size=N + NEW)
COUNTS = RNG.poisson(np.exp(0.5 * H))
KINDS = np.argmax(X[:, :3] + RNG.normal(size=(N + NEW, 3)), axis=1)
WEIGHTS = 0.3 + np.arange(N) % 3
K = 2.0 * np.exp(-0.5 * ((X[:, None] - X) ** 2).sum(axis=2)) + 1e-3 * np.eye(N + NEW)
WIDE = RNG.normal(size=(12 + NEW, 30))
SHORT = EP(sweeps=5, tol=0.0)
#: what results are asked for, of those that have it for their loss
HELD = ["mean", "variance", "covariance", "precision", "log_evidence", "residual"]
HELD += ["inclusion_probability", "prior_cavities", "truncation_error", "log_evidence_"]
AT_NEW = ["predict_latent", "predict_proba", "predict", "predict_variance"]
TOLD = "log_evidence", "effective_draws", "shifts", "sd_factors"
ABSENT = AttributeError, FloatingPointError, NotImplementedError, ValueError


def flat(value):
    """The numbers of a result."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, tuple | list):
        return np.concatenate([flat(part) for part in value] or [np.empty(0)])
    return np.ravel(np.asarray(value, dtype=np.float64))


def read(result, *new, y=None, draws=100):
    """All numbers of a posterior, and of its predictions at new rows."""
    calls = {name: lambda name=name: getattr(result, name) for name in HELD}
    calls["loo"] = lambda: result.loo_log_predictive()
    calls["slopes"] = lambda: result.loss_gradient()
    calls["draws"] = lambda: result.sample(9, rng=1)
    for name in AT_NEW if new else ():
        calls[name] = lambda name=name: getattr(result, name)(*new)
    if new and y is not None:
        calls["log_predictive"] = lambda: result.log_predictive(new[0], y, *new[1:])
        calls["joint"] = lambda: result.predict_latent(*new, joint=True)
        calls["sample_y"] = lambda: result.sample_y(*new, size=3, rng=1)
    if draws:
        calls["check"] = lambda: attrgetter(*TOLD)(result.check(draws, rng=1))
    found = {}
    for name, call in calls.items():
        try:
            found[name] = flat(call())
        except ABSENT:
            continue
    return found


def linear(rows, y, new, /, draws=100, **given):
    """A fit of the first rows, and what it says of the others."""
    return read(epfast.fit_linear(rows[:new], y[:new], **given), rows[new:], y=y[new:], draws=draws)


#: what calls each form, by its name
FORMS = {}


def form(call):
    """Add a form."""
    FORMS[call.__name__.replace("_", " ")] = call
    return call


def in_turn(*forms):
    """Several of them."""
    return {f"{k} {name}": part for k, form in enumerate(forms) for name, part in form.items()}


def softplus(margin):
    """The logistic loss, whose values the core does not know."""
    return np.logaddexp(0.0, -margin)


@form
def rows():
    given = {"weights": WEIGHTS, "offset": 0.1 * H[:N], "intercept": True}
    return in_turn(
        linear(X, Y, N, loss="logistic", schedule=SHORT),
        linear(X, COUNTS, N, loss="poisson", schedule=EP(5, 0.0, order="sequential"), **given),
        linear(X, REAL, N, loss="student_t", schedule=EP(5, 0.0, order="parallel", damping=0.7)),
        linear(sparse.csr_matrix(X), Y, N, loss="probit", schedule=SHORT, draws=0),
        linear(X, Y, N, loss=losses.CustomLoss(softplus), schedule=SHORT, draws=0),
    )


@form
def in_chunks():
    parts = EP(4, 0.0, order="chunked", block=7)
    shuffled = EP(4, 0.0, order="shuffled", seed=1)
    return in_turn(*(linear(X, Y, N, schedule=order, draws=0) for order in (parts, shuffled)))


@form
def in_chunks_of_csr():
    parts = EP(4, 0.0, order="chunked", block=7)
    return linear(sparse.csr_matrix(X * (X > 0.3)), Y, N, schedule=parts, draws=0)


@form
def passes():
    stream = [(X[:9], Y[:9]), (X[9:N], Y[9:N])]
    of_stream = epfast.fit_linear(stream, schedule=ADF())
    given = {"scheme": "laplace", "batch_size": 4}
    return in_turn(
        linear(X, Y, N, schedule=ADF(), draws=0, weights=WEIGHTS),
        linear(X, Y, N, schedule=ADF(), draws=0, **given),
        linear(X, Y, N, schedule=ADF(warm_up=6), draws=0, posterior="factorized"),
        read(of_stream, X[N:], draws=0),
    )


@form
def shared():
    kinds = SEP(4, 0.0, damping=0.5), SEP(4, 0.0, batch=5, damping=0.5), AEP(4, 0.0, damping=0.5)
    return in_turn(*(linear(X, Y, N, schedule=kind, draws=0) for kind in kinds))


@form
def shards():
    return linear(X, Y, N, schedule=DEP(3, sweeps=4, tol=0.0), draws=0)


@form
def factorized():
    tied = X[:, :1] + 0.05 * X + 0.7  # sweeps would be slow, so that they begin with steps
    given = {"posterior": "factorized", "schedule": EP(60, 1e-9)}
    return in_turn(
        linear(X, Y, N, posterior="factorized", schedule=EP(4, 0.0, order="sequential")),
        linear(tied, Y, N, **given),
        linear(sparse.csr_matrix(tied), Y, N, draws=0, **given),
    )


@form
def minibatches():
    given = {"posterior": "factorized", "batch_size": 4, "schedule": EP(3, 0.0), "draws": 0}
    kinds = ("laplace", {}), ("variational", {}), ("laplace", {"weights": WEIGHTS})
    return in_turn(*(linear(X, Y, N, scheme=kind, **given, **more) for kind, more in kinds))


@form
def classes():
    loss = losses.Multiclass(correlated=False)
    return in_turn(
        linear(X, KINDS, N, loss=loss, schedule=EP(30, 1e-10)),
        linear(X, REAL, N, loss=losses.Heteroscedastic(), schedule=EP(30, 1e-6), draws=0),
    )


@form
def nested():
    return linear(X, KINDS, N, loss=losses.Multiclass(correlated=True), schedule=EP(30, 1e-10))


@form
def prior_sites():
    """With as many columns as rows and with more, whatever the prior."""
    few, slab = WIDE[:, :6], losses.SpikeAndSlab(0.3, 2.0)
    real, signs = few[:, 0] + 0.3 * RNG_OF_NOISE, np.sign(few[:, 0] - few[:, 1])
    noise = losses.Gaussian(0.3)
    given = {"schedule": EP(5, 0.0), "draws": 0}
    orders = EP(5, 0.0, order="shuffled", seed=2, damping=0.5), EP(5, 0.0, order="parallel")
    continuous = losses.LaplacePrior(0.5), losses.StudentTPrior(4.0, 0.5), losses.Horseshoe(0.3)
    return in_turn(
        linear(few, real, 12, loss=noise, prior=slab, schedule=EP(5, 0.0), intercept=True),
        linear(few, signs, 12, loss="probit", prior=slab, offset=0.1 * real[:12], **given),
        linear(WIDE, real, 12, loss=noise, prior=slab, **given | {"draws": 100}),
        linear(sparse.csr_matrix(WIDE), signs, 12, loss="logistic", prior=slab, **given),
        *(
            linear(part, real, 12, loss=noise, prior=prior, **given)
            for part in (few, WIDE)
            for prior in continuous
        ),
        *(
            linear(WIDE, real, 12, loss=noise, prior=slab, **given | {"schedule": order})
            for order in orders
        ),
    )


RNG_OF_NOISE = np.random.default_rng(5).normal(size=12 + NEW)


@form
def inclusion():
    """What a check says of a weight whose inclusion probability is another one."""
    slab = losses.SpikeAndSlab(0.3, 2.0)
    post = epfast.fit_linear(X[:N], REAL[:N], loss="gaussian", prior=slab)
    told = worst_inclusion(Models(post), post.inclusion_probability - 0.5, 100, 1)
    return {"numbers": flat(re.findall(r"[0-9.]+", told))}


@form
def wide():
    signs, real = np.sign(WIDE[:, 0]), WIDE[:, 0] + RNG_OF_NOISE
    given = {"intercept": True, "prior_mean": np.full(30, 0.1)}
    return in_turn(
        linear(WIDE, signs, 12, schedule=SHORT, loss="probit"),
        linear(WIDE, real, 12, schedule=SHORT, loss="gaussian", draws=0, **given),
        linear(sparse.csr_matrix(WIDE * (WIDE > 0.0)), signs, 12, schedule=SHORT, draws=0),
    )


@form
def process():
    given, new = {"schedule": SHORT}, (K[N:, :N], K.diagonal()[N:])

    def fit(y, loss, K_given=K[:N, :N], **more):
        gp = epfast.fit_gp(K_given, y[:N], loss=loss, **given | more)
        return read(gp, *new) | {"gradient": flat(gp.log_evidence_gradient(K[:N, :N] ** 2))}

    return in_turn(
        fit(Y, "probit"),
        fit(Y, "logistic", schedule=EP(5, 0.0, order="sequential"), weights=WEIGHTS),
        fit(REAL, "gaussian"),
        fit(KINDS, losses.Multiclass(correlated=False)),
    )


@form
def low_rank():
    from sklearn.gaussian_process.kernels import RBF

    columns = epfast.KernelColumns.from_sklearn(RBF(2.0), X[:N])
    gp = epfast.fit_gp(columns, Y[:N], rank=9, schedule=SHORT)
    return read(gp, K[N:, :N], K.diagonal()[N:])


@form
def process_of_inputs():
    from sklearn.gaussian_process.kernels import RBF

    given = {"optimizer": None, "schedule": SHORT}
    return in_turn(
        read(epfast.GPClassifier(RBF(2.0), **given).fit(X[:N], Y[:N]), X[N:]),
        read(epfast.GPClassifier(RBF(2.0), **given).fit(X[:N], KINDS[:N]), X[N:]),
        read(epfast.GPRegressor(RBF(2.0), **given).fit(X[:N], REAL[:N]), X[N:]),
    )


@form
def nearest_rows():
    from sklearn.gaussian_process.kernels import RBF, DotProduct

    given = {"optimizer": None, "method": "nearest", "n_neighbors": 6, "schedule": EP(9, 0.0)}
    kernels = RBF(2.0), RBF(2.0) + DotProduct()
    return in_turn(
        *(read(epfast.GPClassifier(one, **given).fit(X[:N], Y[:N]), X[N:]) for one in kernels)
    )


@form
def linear_estimators():
    given = {"prior_variance": 1.0, "schedule": EP(200, 1e-11)}
    return in_turn(
        read(epfast.LinearClassifier(**given).fit(X[:N], KINDS[:N]), X[N:]),
        read(epfast.LinearRegressor(loss="poisson", **given).fit(X[:N], COUNTS[:N]), X[N:]),
    )


@form
def searches():
    """Of hyper-parameters, from the columns as they are."""
    real = WIDE[:, 0] + RNG_OF_NOISE
    return in_turn(
        read(epfast.LinearClassifier().fit(X[:N], Y[:N]), X[N:]),
        read(epfast.LinearRegressor().fit(X[:N], REAL[:N]), X[N:]),
        read(epfast.LinearRegressor().fit(WIDE[:12], real[:12]), WIDE[12:]),
    )


@form
def sparse_precision():
    """Levels, with new rows whose columns meet in none of the fit."""
    group = np.arange(N) % 7
    data = sparse.csr_array(np.column_stack([X[:N, :2], np.eye(7)[group]]))
    given = {"posterior": "sparse", "constraints": np.ones((1, 9)), "prior_variance": 4.0}
    post = epfast.fit_linear(data, Y[:N], **given)
    return read(post, np.arange(45.0).reshape(5, 9) % 4, draws=0)


@form
def graph():
    g = epfast.Graph()
    x = g.gaussian(9, variance=2.0)
    g.add("probit", x[1:] - x[:-1], Y[:8], noise=0.5)
    g.add("poisson", x, COUNTS[:9])
    post = g.fit(EP(6, 0.0))
    return {"beliefs": flat(post.state.beliefs), "evidence": flat(post.log_evidence)}


@form
def own_factor():
    found = []
    for scheme in ("quadrature", "laplace"):
        g = epfast.Graph()
        x, z = (g.gaussian(2, variance=2.0) for _ in range(2))
        factor = Factor(lambda x, z, y: -0.5 * (y - x * z) ** 2, scheme=scheme)
        g.add(factor, x, z, y=REAL[:2])
        post = g.fit(EP(2, 0.0, damping=0.5))
        found.append({"beliefs": flat(post.state.beliefs), "evidence": flat(post.log_evidence)})
    return in_turn(*found)


@form
def count_quantiles():
    levels = {}
    for loss in (losses.Poisson(), losses.StudentT(4.0, 0.5), losses.GammaNoise(2.0)):
        levels[repr(loss)] = flat(loss.predict_quantile(0.9, 0.3 * H, np.full(N + NEW, 0.2)))
    return levels


@form
def support_vectors():
    svm = epfast.fit_svm(X[:N], Y[:N], kernel="rbf", gamma=0.3)
    parts = epfast.fit_svm(X[:N], Y[:N], kernel="linear", chunks=3)
    return {f"{k}": flat(one.decision_function(X)) for k, one in enumerate((svm, parts))}


@form
def ratings():
    a, b = np.arange(20) % 5, (np.arange(20) * 3 + 1) % 5
    which = a != b
    games = {"winner": a[which], "loser": b[which], "time": np.arange(20.0)[which]}
    given = {"prior_sd": 1.0, "drift": 0.1, "margin": 0.3}
    r = epfast.rating.fit(games, time="time", **given)
    return {"rating": flat(r.rating([0, 1, 2], 25.0)), "two": flat(r.predict(0, 1))}


@form
def components():
    mixture = epfast.fit_mixture(X, 2, 0.5, schedule=EP(6, 0.0), rng=1)
    network = epfast.fit_network(X, REAL, hidden=(4,), schedule=SEP(2, 0.0), rng=1)
    return in_turn(
        {"mean": flat(mixture.mean), "density": mixture.log_predictive(X)},
        {"of the network": flat(network.predict(X))},
    )


def needs_extras(name):
    """Skip a form of estimators where their extra is missing."""
    words = "estimators", "learned", "inputs", "nearest", "rank", "searches", "leading"
    if any(word in name for word in words):
        pytest.importorskip("sklearn")


@cache
def as_they_are(name):
    """What a form gives with the constants as they are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return FORMS[name]()


def assert_same(name, close, constants):
    """A form gives the same with these constants tiny."""
    truth = as_they_are(name)
    with warnings.catch_warnings(), made({one: PIECES[one].tiny for one in constants}):
        warnings.simplefilter("ignore")
        found = FORMS[name]()
    assert found.keys() == truth.keys()
    for key, numbers in truth.items():
        # a residual is in standard deviations
        least = 1.0 if "residual" in key else 0.0
        scale = np.abs(numbers[np.isfinite(numbers)]).max(initial=least)
        np.testing.assert_allclose(found[key], numbers, rtol=0.0, atol=close * scale, err_msg=key)


# ---- tests ----


def is_number(node):
    """Whether an expression is made of numbers."""
    parts = list(ast.walk(node))
    kinds = ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Constant
    values = [part.value for part in parts if isinstance(part, ast.Constant)]
    return all(isinstance(part, kinds) for part in parts) and not any(
        isinstance(value, str | bool | None) for value in values
    )


def numbers_of(module):
    """The names of a module's constants that are numbers, with the comments above them."""
    lines = SOURCES[module].read_text().splitlines()
    for node in TREES[module].body:
        if isinstance(node, ast.Assign):
            (target, *_), first = node.targets, node.lineno - 1
            while lines[first - 1].startswith("#:"):
                first -= 1
            comment = " ".join(line[2:] for line in lines[first : node.lineno - 1])
            names, values = (getattr(part, "elts", [part]) for part in (target, node.value))
            for name, value in zip(names, values, strict=False):
                if isinstance(name, ast.Name) and name.id.isupper() and is_number(value):
                    yield name.id, comment


def test_every_constant_is_listed():
    found = {
        f"{module}.{name}"
        for module in TREES
        for name, comment in numbers_of(module)
        if re.search(NAMES, name) or re.search(WORDS, comment)
    }
    there = {f"{module}.{name}" for module in TREES for name, _ in numbers_of(module)}
    assert found - set(PIECES) - set(OTHERS) == set()
    assert set(PIECES) | set(OTHERS) <= there
    assert not set(PIECES) & set(OTHERS)
    assert set(FORMS) >= {piece.form for piece in PIECES.values()}


def test_no_number_within_a_function_splits_work():
    """It has a name, so that the tests below make it tiny."""
    sizes = {"pieces": 2, "row_chunks": 1}
    found = set()
    for module, tree in TREES.items():
        inner = (part for part in tree.body if not isinstance(part, ast.Assign | ast.AnnAssign))
        for node in (one for part in inner for one in ast.walk(part)):
            given = []
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift):
                given = [node]
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in sizes:
                given = node.args[sizes[node.func.id] :]
            numbers = (getattr(part, "value", 0) for one in given for part in ast.walk(one))
            if any(type(number) is int and number > 0 for number in numbers):
                found.add(f"{module}: {ast.unparse(node)}")
    assert found == {"operators.just_in_time: 1 << 15"}  # the most features


@pytest.mark.cover(lambda constant: constant)
@pytest.mark.parametrize("constant", PIECES)
def test_a_constant_is_met_and_changes_nothing(constant):
    needs_extras(PIECES[constant].form)
    with (
        warnings.catch_warnings(action="ignore"),
        made({constant: Trap()}),
        pytest.raises(MetError),
    ):
        FORMS[PIECES[constant].form]()
    assert_same(PIECES[constant].form, PIECES[constant].close, [constant])


@pytest.mark.full
@pytest.mark.cover(lambda name: name)
@pytest.mark.parametrize("name", FORMS)
def test_all_of_them_change_nothing(name):
    needs_extras(name)
    close = max(piece.close for piece in PIECES.values()) if "leading" in name else CLOSE
    assert_same(name, close, PIECES)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.cover(lambda group: group)
@pytest.mark.parametrize("group", fits.GROUPS)
def test_small_fits_of_every_kind_are_those_that_are_kept(group):
    """As tests/golden, with all of these constants tiny."""
    needs_extras(group)
    make, bounds = fits.GROUPS[group]
    kept = fits.kept()[group]
    with made({constant: piece.tiny for constant, piece in PIECES.items()}):
        found = {fit.name: fits.numbers(fit)[0] for fit in make(fits.Data())}
    far = {name: fits.distances(old, found[name], bounds) for name, old in kept.items()}
    assert {name: one for name, one in far.items() if not max(one.values()) <= 1.0} == {}
