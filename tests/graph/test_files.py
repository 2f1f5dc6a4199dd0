"""Posteriors of graphs in files and pickles: what is saved goes on as if it had not stopped."""

import io
import json
import pickle
import random
import subprocess
import sys
import warnings
import zipfile

import numpy as np
import pytest

from epfast import ADF, AEP, EP, SEP, CustomLoss, Graph, GraphPosterior, load
from epfast.graph import CompoundGamma, Factor, Walk
from epfast.inference.files import digest
from epfast.losses import Gaussian
from tests.graph.models import GRAPHS, shared

pytestmark = pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")

SCHEDULES = {
    "sequential": EP,
    "damped": lambda **given: EP(damping=0.7, **given),
    "parallel": lambda **given: EP(order="parallel", damping=0.4, **given),
    "SEP": SEP,
    "AEP": lambda **given: AEP(damping=0.3, **given),
}
CASES = [(name, key) for name in GRAPHS for key in ("sequential", "damped", "parallel")]
CASES += [("shared", key) for key in SCHEDULES]


def graph_of(name):
    return {**GRAPHS, "shared": shared}[name](np.random.default_rng(3))


#: of the damages that are tried
SHARE = 0.25


def drawn(pytestconfig, name):
    """Random numbers of the cases of a test."""
    return random.Random(f"{pytestconfig.option.cases_seed} {name}")


def states(post):
    return {k: v for k, v in post.state._asdict().items() if k != "change"}


def assert_same(a, b):
    for name, value in states(a).items():
        np.testing.assert_array_equal(value, getattr(b.state, name), err_msg=name)


@pytest.mark.parametrize(("name", "key"), CASES)
def test_saved_and_resumed_is_uninterrupted_to_the_bit(name, key, tmp_path):
    make, path = SCHEDULES[key], tmp_path / "post.npz"
    whole = graph_of(name).fit(make(sweeps=25, tol=0.0))
    for sweeps in (1, 12):
        g = graph_of(name)
        part = g.fit(make(sweeps=sweeps, tol=0.0))
        part.save(path)
        loaded = load(path)
        assert isinstance(loaded, GraphPosterior)
        assert_same(loaded, part)
        assert loaded.log_evidence == part.log_evidence
        assert loaded.history == part.history
        rest = make(sweeps=25 - sweeps, tol=0.0)
        assert_same(g.fit(rest, start=part), whole)
        assert_same(Graph.of(loaded).fit(rest, start=loaded), whole)
        # and files of what was loaded are the same files
        loaded.save(tmp_path / "again.npz")
        assert_same(load(tmp_path / "again.npz"), part)


@pytest.mark.parametrize("name", [*GRAPHS, "shared"])
def test_pickles_of_graphs_and_posteriors_go_on(name):
    g = graph_of(name)
    post = g.fit(EP(sweeps=3, tol=0.0))
    g2, post2 = pickle.loads(pickle.dumps((g, post)))
    rest = EP(sweeps=4, tol=0.0)
    assert_same(g2.fit(rest, start=post2), g.fit(rest, start=post))
    for key, variables in g.variables.items():
        np.testing.assert_array_equal(post2[key].mean, post[variables].mean)


@pytest.mark.parametrize("name", GRAPHS)
def test_old_handles_and_names_find_the_variables_of_a_file(name, tmp_path):
    g = graph_of(name)
    post = g.fit(EP(sweeps=3, tol=0.0))
    post.save(tmp_path / "post.npz")
    again = load(tmp_path / "post.npz")
    assert list(again.variables) == list(g.variables)
    for key, variables in g.variables.items():
        assert again.variables[key].shape == variables.shape
        for found in (again[key], again[variables], again[again.variables[key]]):
            np.testing.assert_array_equal(found.mean, post[variables].mean)
            np.testing.assert_array_equal(found.variance, post[variables].variance)


@pytest.mark.full
def test_in_another_process(tmp_path):
    g = graph_of("forms")
    g.fit(EP(sweeps=5, tol=0.0)).save(tmp_path / "post.npz")
    code = (
        "import epfast, sys; post = epfast.load(sys.argv[1]); g = epfast.Graph.of(post);"
        "s = g.variables['skill']; g.add('probit', s[0] - s[3], 1);"
        "g.fit(start=post).save(sys.argv[2])"
    )
    names = [str(tmp_path / name) for name in ("post.npz", "more.npz")]
    subprocess.run([sys.executable, "-c", code, *names], check=True)
    post, more = load(names[0]), load(names[1])
    s = g.variables["skill"]
    g.add("probit", s[0] - s[3], 1)
    assert_same(g.fit(start=post), more)


def test_a_graph_of_a_file_may_grow_and_shrink(tmp_path):
    """As the graph itself: batches keep their numbers, walks what they define."""
    g = graph_of("chains")
    post = g.fit(EP(sweeps=4, tol=0.0))
    post.save(tmp_path / "post.npz")
    h = Graph.of(load(tmp_path / "post.npz"))
    found = []
    for each in (g, h):
        x = each.variables["state"]
        with pytest.raises(ValueError, match="another walk"):
            each.add(Walk(1.0), x[0])
        new = each.gaussian(2, name="new")
        keys = [each.add(Gaussian(), new, [0.1, 0.2]), each.add(Gaussian(), new - x[0, :2], 0.0)]
        each.remove(0)  # priors that the walk set aside are there again
        each.add(Walk(0.2), x[0])
        each.remove(2, rows=[3])
        found.append((keys, each.fit(EP(tol=1e-10), start=post)))
    assert found[0][0] == found[1][0]
    assert_same(found[0][1], found[1][1])


def test_priors_come_back_where_a_walk_goes():
    g = Graph()
    x = g.gaussian(3, mean=1.0, variance=2.0)
    walk = g.add(Walk(1.0), x)
    g.add(Gaussian(), x[0], 0.5)
    g.fit()
    g.remove(walk)
    g.add(Gaussian(), x[1:], 0.5)
    np.testing.assert_allclose(g.fit()[x].mean, 1.0 / 3.0 / (0.5 + 1.0) * 0.0 + 2.0 / 3.0)


def test_names():
    g = Graph()
    x = g.gaussian(2, name="x")
    tau = g.gamma()
    for bad in ("x", "", 3, b"y"):
        with pytest.raises(ValueError, match=r"name is .*; allowed"):
            g.gaussian(name=bad)
    assert list(g.variables) == ["x", 1]
    assert g.variables["x"] is x
    assert g.variables[1] is tau
    g.add(Gaussian(), x, 1.0)
    with pytest.warns(match="no factor"):
        post = g.fit()
    np.testing.assert_array_equal(post["x"].mean, post[x].mean)
    for bad in ("z", 7, 2.5, None):
        with pytest.raises(TypeError, match=r"variables is .*\['x', 1\]"):
            post[bad]
    with pytest.raises(TypeError, match=r"posterior is .*; allowed"):
        Graph.of(g)


# ---- what a file cannot hold ----


def log_t(x):
    return -0.5 * x * x


def test_factors_of_the_users_own_are_refused_by_name(tmp_path):
    path = tmp_path / "post.npz"
    g = Graph()
    x = g.gaussian(2)
    g.add(Gaussian(), x, 1.0)
    own = g.add(Factor(log_t), x)
    post = g.fit()
    with pytest.raises(TypeError, match=f"batch {own} has factors of your own.*pickle"):
        post.save(path)
    again = pickle.loads(pickle.dumps(post))
    assert_same(Graph.of(again).fit(start=again), g.fit(start=post))
    g.remove(own)
    custom = CustomLoss(lambda m: m * m, lambda m: 2.0 * m, lambda m: 2.0 + 0.0 * m)
    key = g.add(custom, x, 1, scheme="laplace")
    with pytest.raises(TypeError, match=f"batch {key} has a loss of your own.*pickle"):
        g.fit(EP(sweeps=2, tol=0.0)).save(path)
    assert not path.exists()


# ---- files that are none ----


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    found = {}
    for name in [*GRAPHS, "shared"]:
        schedule = SEP(sweeps=6, tol=0.0) if name == "shared" else EP(sweeps=6, tol=0.0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph_of(name).fit(schedule).save(folder / f"{name}.npz")
        found[name] = folder / f"{name}.npz"
    return found


def parts(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def rewritten(path, members, forged=False):
    """forged: by someone who makes the digest anew; compiled code relies on shapes and places."""
    if forged:
        arrays = {k.removesuffix(".npy"): np.load(io.BytesIO(v)) for k, v in members.items()}
        header = json.loads(str(arrays.pop("header")))
        del header["digest"]
        header["digest"] = digest(arrays, header)
        buffer = io.BytesIO()
        np.save(buffer, np.array(json.dumps(header)))
        members = members | {"header.npy": buffer.getvalue()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


@pytest.mark.full
@pytest.mark.parametrize("name", [*GRAPHS, "shared"])
def test_damaged_numbers_are_refused_or_harmless(name, saved, tmp_path, pytestconfig):
    """Any array with one number changed: an error that names the file, or a posterior that fits."""
    rng, some = np.random.default_rng(0), drawn(pytestconfig, name)
    path, members = tmp_path / "bad.npz", parts(saved[name])
    values = (np.nan, np.inf, -np.inf, -1.0, 0.0, 1e300, 7.0, 2**40, -(2**60))
    for key in members:
        if key == "header.npy":
            continue
        array = np.load(io.BytesIO(members[key]))
        for value in values:
            if not array.size or some.random() > SHARE:
                continue
            bad = array.astype(float) if array.dtype.kind == "f" else array.astype(np.int64)
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                bad.flat[rng.integers(bad.size)] = np.asarray(value).astype(bad.dtype)
            buffer = io.BytesIO()
            np.save(buffer, bad)
            rewritten(path, members | {key: buffer.getvalue()}, True)
            goes_on(path)


@pytest.mark.parametrize("name", GRAPHS)
def test_numbers_of_no_variable_are_refused(name, saved, tmp_path):
    """Of any array of whole numbers; compiled code goes where they say."""
    path, members = tmp_path / "bad.npz", parts(saved[name])
    for key in members:
        array = np.load(io.BytesIO(members[key]))
        for value in (-1, 2**31) if array.dtype.kind in "iu" and array.size else ():
            if value > 0 and key.endswith(".rows.npy"):  # numbers of rows have no end
                continue
            bad = array.astype(np.int64)
            bad.flat[-1] = value
            buffer = io.BytesIO()
            np.save(buffer, bad)
            rewritten(path, members | {key: buffer.getvalue()}, True)
            with pytest.raises(ValueError, match="path is"):
                load(path)


def goes_on(path):
    said = ""
    try:
        post = load(path)
    except ValueError as error:
        said = str(error)
    if said:
        assert "path is" in said
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            again = Graph.of(post).fit(EP(sweeps=2, tol=0.0), start=post)
        except (ValueError, FloatingPointError):
            return
    assert not np.isnan(again.state.beliefs).any()


@pytest.mark.full
@pytest.mark.parametrize("name", ["forms", "categories"])
def test_damaged_shapes_and_headers_are_refused_or_harmless(name, saved, tmp_path, pytestconfig):
    path, members, some = tmp_path / "bad.npz", parts(saved[name]), drawn(pytestconfig, name)
    for key in members:
        if key == "header.npy":
            continue
        array = np.atleast_1d(np.load(io.BytesIO(members[key])))
        for bad in (array[:0], array[..., :-1], np.concatenate([array, array]), array[None]):
            if some.random() > SHARE:
                continue
            buffer = io.BytesIO()
            np.save(buffer, bad)
            rewritten(path, members | {key: buffer.getvalue()}, True)
            goes_on(path)
        rewritten(path, {k: v for k, v in members.items() if k != key}, True)
        with pytest.raises(ValueError, match="path is"):
            load(path)
    header = json.loads(str(np.load(io.BytesIO(members["header.npy"]))))

    def damaged(part):
        """The header with one entry replaced, everywhere in turn."""
        keys = list(part) if isinstance(part, dict) else range(len(part))
        for k in keys:
            old = part[k]
            if isinstance(old, dict | list) and len(old):
                yield from damaged(old)
            for value in (None, -1, "x", 1e300, [1]):
                part[k] = value
                yield header
            part[k] = old

    for bad in damaged(header):
        if some.random() > SHARE:
            continue
        buffer = io.BytesIO()
        np.save(buffer, np.array(json.dumps(bad)))
        rewritten(path, members | {"header.npy": buffer.getvalue()})
        goes_on(path)


def test_truncated_and_foreign_files(saved, tmp_path):
    whole = saved["forms"].read_bytes()
    path = tmp_path / "bad.npz"
    for size in (0, 1, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="path is"):
            load(path)
    with pytest.raises(ValueError, match=r"loss is .*; allowed for this file: None"):
        load(saved["forms"], loss="probit")


# ---- starts ----


def test_starts_of_other_schedules_keep_the_beliefs():
    """A shared site is that of each factor; sites of factors become the shared one on average."""
    g = graph_of("shared")
    one, other = g.fit(SEP(sweeps=200, tol=1e-9)), g.fit(EP(sweeps=200, tol=1e-9))
    for start, schedule, result in ((one, EP, other), (other, SEP, one)):
        on = g.fit(schedule(sweeps=300, tol=1e-9), start=start)
        np.testing.assert_allclose(on.state.beliefs, result.state.beliefs, rtol=1e-4, atol=1e-6)
    g.add("logistic", g.variables["x"][0] + 0.0, 1)
    more = g.fit(SEP(sweeps=1, tol=0.0), start=one)
    flat = g.fit(SEP(sweeps=1, tol=0.0))
    gap = [np.abs(post.state.beliefs - one.state.beliefs).max() for post in (more, flat)]
    assert gap[0] < 0.5 * gap[1]


def test_starts_of_graphs_that_went_another_way():
    """Copies of a graph to which other things were added: sites that fit are kept."""
    g = graph_of("forms")
    h = pickle.loads(pickle.dumps(g))
    x, y = g.gaussian(2), h.gamma(2)
    g.add(Gaussian(), x, 1.0)
    h.add(CompoundGamma(2.0, 2.0, 2.0), y)
    start = g.fit()
    post = h.fit(start=start)
    assert post.converged
    np.testing.assert_allclose(post["skill"].mean, h.fit()["skill"].mean, rtol=1e-4, atol=1e-5)


def test_the_least_numbers_of_a_factor_are_loaded(tmp_path):
    g = Graph()
    g.add(CompoundGamma(1.0, 1.0, [5e-324, 1.0]), g.gamma(2))
    post = g.fit()
    post.save(tmp_path / "post.npz")
    assert_same(load(tmp_path / "post.npz"), post)


def test_adf_takes_no_start():
    g = graph_of("forms")
    with pytest.raises(ValueError, match="start is given with ADF"):
        g.fit(ADF(), start=g.fit())
