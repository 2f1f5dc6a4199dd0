"""Files that were damaged or edited: ValueError and nothing else, or the very same numbers."""

import io
import json
import lzma
import os
import pickle
import struct
import tracemalloc
import zipfile
import zlib

import numpy as np
import pytest
from scipy import sparse

import epfast
from tests.oracles.data import classes, rbf

#: what the examples below are about is not whether they settled
pytestmark = pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")

X, Y = classes(12, 3)
K = rbf(X)
COUNTS = np.arange(12) % 4
WEIGHTS = np.resize([0.5, 1.0, 3.0, 0.0], 12)
WIDE = np.random.default_rng(0).normal(size=(12, 14))


def fit(**given):
    return epfast.fit_linear(X, Y, **({"schedule": epfast.EP(sweeps=3, tol=0)} | given))


def process(y=Y, **given):
    return epfast.fit_gp(K, y, **({"schedule": epfast.EP(sweeps=3, tol=0)} | given))


SHARED = epfast.DAEP(3, sweeps=2, damping=0.3)
#: a file of each kind
MADE = {
    "factorized": lambda: fit(posterior="factorized", batch_size=5, prior_mean=[1.0, 0.0, 2.0]),
    "factorized_adf": lambda: fit(posterior="factorized", schedule=epfast.ADF()),
    "full": lambda: fit(prior_mean=[1.0, 0.0, 2.0], beta=0.5),
    "full_weighted": lambda: fit(weights=WEIGHTS, loss="hinge"),
    "full_adf": lambda: fit(schedule=epfast.ADF()),
    "full_minibatches": lambda: fit(batch_size=5),
    "shared": lambda: fit(schedule=SHARED),
    "shared_weighted": lambda: fit(schedule=epfast.SEP(2, damping=0.3), weights=WEIGHTS),
    "shards": lambda: fit(schedule=epfast.DEP(2, 2)),
    "wide": lambda: epfast.fit_linear(WIDE, Y, prior_mean=np.arange(14.0), weights=WEIGHTS),
    "wide_sparse": lambda: epfast.fit_linear(
        sparse.csr_matrix(WIDE * (WIDE > 0.3)), COUNTS, loss="poisson", intercept=True
    ),
    "process": process,
    "process_step": lambda: process(loss="noisy_step"),
    "process_relaxed": lambda: process(loss="noisy_step", scheme="relaxed"),
    "process_counts": lambda: process(COUNTS, loss="poisson"),
    "process_trials": lambda: process(np.stack([COUNTS, COUNTS + 2], axis=1), loss="binomial"),
    "low_rank": lambda: process(rank=4),
    "low_rank_shared": lambda: process(rank=3, schedule=epfast.DSEP(2, 2, damping=0.3)),
    "low_rank_counts": lambda: process(COUNTS, loss="poisson", rank=3),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """The bytes of a file of each kind."""
    folder, found = tmp_path_factory.mktemp("good"), {}
    for name, made in MADE.items():
        made().save(folder / name)
        found[name] = (folder / name).read_bytes()
    return found


@pytest.fixture
def parts(good, tmp_path):
    """``parts(name)``: the arrays and the header of a file."""

    def read(name):
        (tmp_path / name).write_bytes(good[name])
        with np.load(tmp_path / name) as file:
            arrays = {key: file[key] for key in file.files}
        return arrays, json.loads(str(arrays.pop("header")))

    return read


def put(path, arrays, header, save=np.savez):
    with open(path, "wb") as file:
        save(file, header=np.array(json.dumps(header)), **arrays)
    return path


def refused(path, match=""):
    with pytest.raises(ValueError, match=r"^path is .*allowed: a file written by save$") as caught:
        epfast.load(path)
    assert type(caught.value) is ValueError
    message = str(caught.value)
    assert match in message
    assert "allow_pickle" not in message
    assert "unsafe" not in message


# ---- parts that contradict each other ----


def edit(name, change):
    def apply(arrays, header):
        arrays[name] = change(arrays[name])

    return apply


def head(**given):
    def apply(arrays, header):
        header.update(given)

    return apply


def first(value):
    """Put a number in the place of the first."""

    def change(array):
        array = array.astype(np.float64)
        array.flat[0] = value
        return array

    return change


def scaled(factor):
    """The last number differs from 0 in all the files above, or is made so."""

    def change(array):
        array.flat[-1] = array.flat[-1] * factor + 0.01
        return array

    return change


def record(**given):
    def apply(arrays, header):
        header["history"][0] |= given

    return apply


def drop(name):
    def apply(arrays, header):
        (arrays if name in arrays else header).pop(name)

    return apply


def shorter(array):
    return array[:-1]


def text(array):
    return np.array(["a"] * len(array))


PROCESSES = [name for name in MADE if name.startswith("process")]
LINEAR = [name for name in MADE if not name.startswith(("process", "wide"))]
N_BY_N = ["wide", "wide_sparse"]
FULL = [name for name in LINEAR if not name.startswith("factorized")]
SITES = [name for name in LINEAR if not name.endswith("adf")]
#: whose sums need no rows, or have them
SUMS = [name for name in SITES if name.startswith(("factorized", "shared", "low_rank"))]
ROWS = [name for name in SITES if name not in SUMS]
LOW = [name for name in MADE if name.startswith("low_rank")]
WEIGHTED = ["full_weighted", "shared_weighted"]

PARTS = ("precision", "shift", "log_scale")
#: (files, what is done to them)
EDITS = {
    "negative definite": (FULL, edit("precision", np.negative)),
    "negative": (["factorized", "factorized_adf"], edit("precision", np.negative)),
    "zero": (["factorized_adf"], edit("precision", first(0.0))),
    "indefinite": (FULL, edit("precision", first(-1.0))),
    "asymmetric": (["full", "full_adf"], edit("precision", lambda a: a + np.triu(a + 1, 1))),
    "prior": (LINEAR, edit("prior_precision", np.negative)),
    "less than the prior": (["full", "shards"], edit("precision", lambda a: a * 0.01)),
    "sum of precisions": (SUMS, edit("precision", scaled(1.01))),
    "sum of shifts": (SUMS, edit("shift", scaled(1.01))),
    "a site's precision": (SUMS, edit("sites_precision", scaled(1.1))),
    "a site's shift": (SUMS, edit("sites_shift", scaled(1.1))),
    "a site's scale": (SITES, edit("sites_log_scale", scaled(1.1))),
    "the prior of sums": (SUMS, edit("prior_precision", scaled(1.1))),
    "the prior's shift": (SUMS, edit("prior_shift", scaled(1.1))),
    "log scale": (SITES, head(log_scale=77.0)),
    "no log scale": (LINEAR, head(log_scale=float("nan"))),
    "NaN": (LINEAR, edit("shift", first(np.nan))),
    "infinity": (SITES, edit("sites_precision", first(np.inf))),
    "length of shift": (LINEAR, edit("shift", shorter)),
    "length of sites": (SITES, edit("sites_precision", shorter)),
    "all sites shorter": (LOW[:1], lambda a, h: [edit(f"sites_{k}", shorter)(a, h) for k in PARTS]),
    "text": (LINEAR, edit("shift", text)),
    "weights": (WEIGHTED, edit("weights", first(-1.0))),
    "no weights": (WEIGHTED, edit("weights", lambda a: 0 * a)),
    "weights of others": (WEIGHTED, edit("weights", shorter)),
    "weights that are NaN": (WEIGHTED, edit("weights", first(np.nan))),
    "weights of a sum": (WEIGHTED[1:], edit("weights", lambda a: a + 1.0)),
    "groups, fractions": (["shared"], edit("groups", first(0.5))),
    "groups, negative": (["shared"], edit("groups", lambda a: a - 1)),
    "groups, too many": (["shared"], edit("groups", lambda a: a + 1)),
    "groups, others": (["shared"], edit("groups", lambda a: 0 * a)),
    "groups, shape": (["shared"], edit("groups", lambda a: a[:, None])),
    "batch_size": (["factorized", "full_minibatches"], head(batch_size=0)),
    "batch_size, text": (["factorized"], head(batch_size="5")),
    "batch_size, fraction": (["factorized"], head(batch_size=2.5)),
    "kind": (LINEAR + PROCESSES, head(posterior="fool")),
    "another kind": (["full"], head(posterior="factorized")),
    "a kind that is a list": (["full"], head(posterior=["full"])),
    "format": (["full", "process"], head(format=3)),
    "beta": (LINEAR + PROCESSES, head(beta=-1.0)),
    "converged": (LINEAR + PROCESSES, head(converged="yes")),
    "sweeps": (LINEAR + PROCESSES, head(sweeps=-1)),
    "loss": (["full", "process"], head(loss={"name": "nonsense"})),
    "loss, numbers": (["full"], head(loss={"name": "quasi01", "epsilon": -1.0})),
    "loss, text": (["full"], head(loss="logistic")),
    "scheme": (["full", "process"], head(scheme={"name": "nonsense"})),
    "scheme, numbers": (["full", "process"], head(scheme={"name": "laplace", "tol": "small"})),
    "schedule": (["full", "process"], head(schedule={"name": "Schedule"})),
    "schedule, module": (["full"], head(schedule={"name": "dataclass"})),
    "schedule, numbers": (["full", "process"], head(schedule={"name": "EP", "sweeps": 0})),
    "schedule, unknown": (["full"], head(schedule={"name": "EP", "speed": 1})),
    "history": (LINEAR + PROCESSES, head(history=["one", "two"])),
    "history, text": (["full", "process"], head(history="12")),
    "history, numbers": (["full", "process"], head(history=[1, 2])),
    "history, strings": (LINEAR + PROCESSES, record(change="0.1")),
    "history, counts": (["full", "process"], record(n_refused=-1)),
    "history, fractions": (["full", "process"], record(sweep=1.5)),
    "history, null": (["full", "process"], record(seconds=None)),
    "history, flags": (["full", "process"], record(change=True)),
    "history, arrays": (["full"], record(factor_cost=[1.0])),
    "history, missing": (["full"], lambda a, h: h["history"][0].pop("change")),
    "y, labels": (["process", "process_step", "low_rank"], edit("y", lambda a: 7.0 * a)),
    "y, counts": (["process_counts", "low_rank_counts"], edit("y", first(0.5))),
    "y, constants": (["process_counts", "process_trials"], edit("y", scaled(1.1))),
    "y, trials": (["process_trials"], edit("y", first(9.0))),
    "y, shape": (PROCESSES + LOW, edit("y", shorter)),
    "y, width": (PROCESSES + LOW, edit("y", lambda a: np.hstack([a, a]))),
    "y, NaN": (PROCESSES + LOW, edit("y", first(np.nan))),
    "variance": (PROCESSES, edit("variance", first(-1.0))),
    "variances": (PROCESSES, edit("variance", lambda a: 1.1 * a)),
    "mean": (PROCESSES, edit("mean", scaled(1.1))),
    "alpha": (PROCESSES, edit("alpha", scaled(1.1))),
    "process sites": (PROCESSES, edit("sites_precision", scaled(1.1))),
    "process shifts": (PROCESSES, edit("sites_shift", scaled(1.1))),
    "no sites": (PROCESSES, drop("sites_shift")),
    "kernel": (PROCESSES, edit("packed", lambda a: a + np.tril(0.01 + 0 * a, -1))),
    "kernel, large": (PROCESSES, edit("packed", lambda a: a + np.tril(9.0 + 0 * a, -1))),
    "inverse": (PROCESSES, edit("packed", lambda a: a + np.triu(0.01 + 0 * a, 1))),
    "diagonal of the inverse": (PROCESSES, edit("packed", scaled(1.1))),
    "diagonal": (PROCESSES, edit("diagonal", scaled(1.1))),
    "diagonal, negative": (PROCESSES, edit("diagonal", np.negative)),
    "determinant": (["process", "process_counts"], head(log_determinant=-3.0)),
    "determinant, large": (["process", "process_counts"], head(log_determinant=1e9)),
    "determinant, none": (PROCESSES, head(log_determinant=float("inf"))),
    "relaxed": (["process_relaxed"], edit("relaxed_shift", shorter)),
    "factor": (LOW, edit("factor_G", lambda a: 1.1 * a)),
    "factor, shape": (LOW, edit("factor_G", lambda a: a[:, :-1])),
    "pivots": (LOW, edit("factor_pivots", lambda a: a + 50)),
    "pivots, negative": (LOW, edit("factor_pivots", lambda a: a - 50)),
    "pivots, twice": (LOW, edit("factor_pivots", lambda a: 0 * a)),
    "pivots, fractions": (LOW, edit("factor_pivots", lambda a: a + 0.5)),
    "pivots, order": (LOW, edit("factor_pivots", lambda a: a[::-1])),
    "residual": (LOW, edit("factor_residual", lambda a: a - 1e6)),
    "traces": (LOW, edit("factor_traces", shorter)),
    "prior of the factor": (LOW, edit("prior_precision", lambda a: 2.0 * a)),
    "complex": (LINEAR, edit("shift", lambda a: a + 1j)),
    "objects": (LINEAR, edit("shift", lambda a: a.astype(object))),
    "dates": (LINEAR, edit("shift", lambda a: a.astype("M8[s]"))),
    "records": (["full"], edit("shift", lambda a: a.view([("a", "f8")]))),
    "no shift": (LINEAR, drop("shift")),
    "no beta": (LINEAR + PROCESSES, drop("beta")),
    "no history": (LINEAR + PROCESSES, drop("history")),
    "a number": (SITES, edit("sites_precision", lambda a: a.sum())),
}
#: of rows that are kept
EDITS |= {
    f"wide: {what}": (N_BY_N, change)
    for what, change in {
        "a site's precision": edit("sites_precision", scaled(1.1)),
        "a site's shift": edit("sites_shift", scaled(1.1)),
        "a site's scale": edit("sites_log_scale", scaled(1.1)),
        "an improper posterior": edit("sites_precision", lambda a: -100.0 * a),
        "infinity": edit("sites_shift", first(np.inf)),
        "length of sites": edit("sites_shift", shorter),
        "no sites": drop("sites_precision"),
        "the prior": edit("prior_precision", scaled(1.1)),
        "the prior, negative": edit("prior_precision", np.negative),
        "the prior's shift": edit("prior_shift", lambda a: a + 0.5),
        "length of the prior": edit("prior_shift", shorter),
        "y, shape": edit("y", shorter),
        "y, NaN": edit("y", first(np.nan)),
        "y, labels": edit("y", lambda a: 7.5 * a - 3.0),
        "mean": edit("latent_mean", scaled(1.1)),
        "alpha": edit("alpha", scaled(1.1)),
        "log evidence": head(log_evidence=-3.0),
        "no log evidence": drop("log_evidence"),
        "columns": head(columns=3),
        "names": head(names=["x"]),
        "names, numbers": head(names=[1] * 14),
        "sweeps": head(sweeps=-1),
        "loss": head(loss={"name": "nonsense"}),
        "scheme": head(scheme={"name": "nonsense"}),
        "schedule": head(schedule={"name": "Schedule"}),
        "another kind": head(posterior="full"),
        "history": head(history=["one", "two"]),
    }.items()
}
EDITS |= {
    "wide: rows": (["wide"], edit("rows", scaled(1.1))),
    "wide: rows, shape": (["wide"], edit("rows", lambda a: a.T)),
    "wide: rows, NaN": (["wide"], edit("rows", first(np.nan))),
    "wide: no rows": (["wide"], drop("rows")),
    "wide: weights": (["wide"], edit("weights", first(-1.0))),
    "wide: entries": (["wide_sparse"], edit("rows_data", first(5.0))),
    "wide: entries, NaN": (["wide_sparse"], edit("rows_data", first(np.nan))),
    "wide: fewer entries": (["wide_sparse"], edit("rows_data", shorter)),
    "wide: places": (["wide_sparse"], edit("rows_indices", lambda a: a + 9)),
    "wide: places, negative": (["wide_sparse"], edit("rows_indices", lambda a: a - 1)),
    "wide: places, fractions": (["wide_sparse"], edit("rows_indices", lambda a: a + 0.5)),
    "wide: rows' ends": (["wide_sparse"], edit("rows_indptr", lambda a: a[::-1])),
    "wide: fewer ends": (["wide_sparse"], edit("rows_indptr", shorter)),
    "wide: no ones": (["wide_sparse"], edit("rows_data", lambda a: 0.5 * a)),
}
CASES = [(what, name) for what, (names, _) in EDITS.items() for name in names]


@pytest.mark.parametrize(("what", "name"), CASES)
def test_a_file_that_contradicts_itself_is_refused(what, name, parts, tmp_path):
    arrays, header = parts(name)
    EDITS[what][1](arrays, header)
    refused(put(tmp_path / "edited.npz", arrays, header))


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_is_unknown_is_left_alone(name, save, parts, tmp_path):
    """Entries of later versions, in every order, and compressed."""
    arrays, header = parts(name)
    put(tmp_path / "plain", dict(arrays), dict(header))
    arrays = {"later": np.arange(3), **dict(reversed(arrays.items()))}
    header |= {"later": {"x": [1]}}
    header["history"] = [{"later": 1} | record for record in header["history"]]
    one = epfast.load(put(tmp_path / "later", arrays, header, save))
    other = epfast.load(tmp_path / "plain")
    assert one.log_evidence == other.log_evidence
    assert one.history == other.history
    np.testing.assert_array_equal(one.mean, other.mean)


# ---- archives that are none ----


class Evil:
    def __reduce__(self):
        return os.mkdir, ("evil",)


def described(shape, data=b"", kind="<f8"):
    """An array in NumPy's format that says what it likes."""
    said = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(said)) + said + data


NESTED = np.array("[" * 100_000 + "]" * 100_000)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (described("(10000000000000,)"), "says shape"),
        (described("(-1,)", bytes(8)), ""),
        (described("(1, 1, 1, 1)" * 3, bytes(8)), "no array of numbers"),
        (described("(1,)", bytes(9)), "says shape"),
        (described("(1,)", bytes(7)), "says shape"),
        (described("((1,),)", bytes(8)), "no array of numbers"),
        (described("(1, )" + "(" * 3000, bytes(8)), "no array of numbers"),
        (described("(1,)", pickle.dumps(Evil()), "|O"), "no array of numbers"),
        (described("(1,)", bytes(8), "<x8"), "no array of numbers"),
        (described("(1,)", bytes(3), "<f3"), ""),
        (described("(1,)", bytes(8)).replace(b"'shape'", b"'shape"), "no array of numbers"),
        (b"\x93NUMPY\x01\x00\xff\xff", "a description of"),
        (b"\x93NUMPY\x09\x00" + bytes(99), "is no array"),
        (b"\x93NUM", ""),
        (b"", ""),
        (pickle.dumps(Evil()), "is no array"),
        (described("(1,)", bytes(8))[:10] + b"\xff" * 99, ""),
    ],
)
def test_an_array_that_lies_takes_no_memory(data, match, good, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "post").write_bytes(good["full"])
    with zipfile.ZipFile("post", "a") as archive:
        archive.writestr("later.npy", data)
    refused("post", match)
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    "header",
    [
        NESTED,
        np.array('{"a":' * 50_000 + "1" + "}" * 50_000),
        np.array("[]"),
        np.array("null"),
        np.array('{"format": 2}'),
        np.array('{"format": [2]}'),
        np.array('{"format": ' + "9" * 10_000 + "}"),
        np.array("\ud800"),
        np.array(""),
        np.array(["{}"]),
        np.array(1.0),
        np.array(b"{}"),
        None,
    ],
    ids=lambda header: str(header)[:20],
)
def test_a_header_that_is_none(header, parts, tmp_path):
    arrays, _ = parts("full")
    np.savez(tmp_path / "post.npz", **arrays, **({} if header is None else {"header": header}))
    refused(tmp_path / "post.npz")


def zipped(good, path, method):
    """A file packed in another way."""
    path.write_bytes(good)
    with zipfile.ZipFile(path) as old:
        data = {info.filename: old.read(info) for info in old.infolist()}
    with zipfile.ZipFile(path, "w", method) as new:
        for name, content in data.items():
            new.writestr(name, content)
    return path


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_packings_that_numpy_does_not_write(method, good, tmp_path):
    refused(zipped(good["full"], tmp_path / "post", method), "packed in another way")


def marked(data, offsets, value):
    """Bytes of the first local header and of the first entry of the directory."""
    data = bytearray(data)
    local, central = data.index(b"PK\x03\x04"), data.index(b"PK\x01\x02")
    for start, offset in zip((local, central), offsets, strict=True):
        data[start + offset : start + offset + len(value)] = value
    return bytes(data)


def test_archives_that_cannot_be_read(good, tmp_path):
    data, path = good["process"], tmp_path / "post"
    cases = {
        "encrypted": (marked(data, (6, 8), b"\x01\x00"), "is encrypted"),
        "unknown method": (marked(data, (8, 10), b"\x63\x00"), "packed in another way"),
        "later version": (marked(data, (4, 6), b"\xff\x00"), ""),
        "large": (marked(data, (22, 24), b"\xff\xff\xff\x7f"), ""),
        "nothing": (b"", ""),
        "text": (b"import numpy as np\n", "not a zip file"),
        "half": (data[: len(data) // 2], "not a zip file"),
        "no end": (data[:-1], ""),
    }
    for content, match in cases.values():
        path.write_bytes(content)
        refused(path, match)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header.npy", b"")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("header.npy", b"")
    refused(path, "twice")


@pytest.mark.parametrize("name", ["full", "factorized", "process", "low_rank", "wide_sparse"])
def test_a_small_file_of_much_is_refused_before_memory_is_taken(name, good, tmp_path):
    """Each member in turn: 64 MB of zeros, deflated to 64 kB, with a description that agrees."""
    path = tmp_path / "post"
    path.write_bytes(good[name])
    with zipfile.ZipFile(path) as old:
        data = {info.filename: old.read(info) for info in old.infolist()}
    large = io.BytesIO()
    np.save(large, np.zeros(8_000_000))
    for member in list(data)[:3]:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
            for other, content in data.items():
                new.writestr(other, large.getvalue() if other == member else content)
        tracemalloc.start()
        refused(path, "it is packed")
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < 1 << 20


def test_deflated_nonsense(good, tmp_path):
    """zlib says what is wrong with a stream in its own way."""
    path = zipped(good["process"], tmp_path / "post", zipfile.ZIP_DEFLATED)
    data = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        infos = archive.infolist()
    for info in infos:
        start = info.header_offset + 30 + len(info.filename)
        for junk in (b"\xff" * 8, bytes(8)):
            path.write_bytes(data[:start] + junk + data[start + 8 :])
            refused(path)


@pytest.mark.parametrize("error", [zlib.error, lzma.LZMAError, RuntimeError, EOFError, OSError])
def test_whatever_the_archive_raises(error, good, tmp_path, monkeypatch):
    (tmp_path / "post").write_bytes(good["full"])

    def fail(*_):
        raise error("odd")

    monkeypatch.setattr(zipfile.ZipExtFile, "read", fail)
    refused(tmp_path / "post", "odd")


def test_a_source_file_is_not_said_to_be_unsafe(tmp_path):
    path = tmp_path / "x.py"
    path.write_text("import epfast\n" * 20)
    refused(path, "not a zip file")
    np.save(tmp_path / "x.npy", np.zeros(3))
    refused(tmp_path / "x.npy", "not a zip file")


def test_places_that_hold_no_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        epfast.load(tmp_path / "none.npz")
    with pytest.raises(FileNotFoundError):
        epfast.load("")
    with pytest.raises((IsADirectoryError, PermissionError)):
        epfast.load(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        refused(tmp_path / "pipe", "no regular file")


# ---- at random ----


def numbers_of(post):
    """Everything that predictions are made of."""
    found = [np.asarray(part) for part in (post.mean, post.variance, post.log_evidence)]
    found += [np.asarray(part) for part in post.sites or ()]
    return [*found, np.asarray([post.beta, post.power, post.n_sweeps])]


def flipped(data, rng):
    data = bytearray(data)
    for _ in range(rng.integers(1, 4)):
        data[rng.integers(len(data))] ^= 1 << rng.integers(8)
    return bytes(data)


def truncated(data, rng):
    return data[: rng.integers(len(data))]


def cut_out(data, rng):
    a, b = sorted(rng.integers(len(data), size=2))
    return data[:a] + data[b:]


def overwritten(data, rng):
    at, size = rng.integers(len(data)), rng.integers(1, 200)
    return data[:at] + rng.bytes(size) + data[at + size :]


def put_in(data, rng):
    at = rng.integers(len(data))
    return data[:at] + rng.bytes(rng.integers(1, 50)) + data[at:]


def near_headers(data, rng):
    """A byte of a header of the archive, where damage does most."""
    marks = [k for k in range(len(data) - 4) if data[k : k + 2] == b"PK"]
    data, at = bytearray(data), rng.choice(marks) + rng.integers(0, 46)
    data[min(at, len(data) - 1)] = rng.integers(256)
    return bytes(data)


DAMAGE = [flipped, truncated, cut_out, overwritten, put_in, near_headers]


@pytest.mark.parametrize(
    ("seed", "count"),
    [(seed, 20) for seed in range(36)]
    + [pytest.param(seed, 1000, marks=pytest.mark.long) for seed in range(36, 46)],
)
@pytest.mark.parametrize("is_compressed", [False, True])
def test_bytes_damaged_at_random(seed, count, is_compressed, good, tmp_path):
    """ValueError, or what was saved: checksums find the rest."""
    rng, path = np.random.default_rng(seed), tmp_path / "post"
    name = rng.choice(list(good))
    data = good[name]
    if is_compressed:
        data = zipped(data, path, zipfile.ZIP_DEFLATED).read_bytes()
    path.write_bytes(data)
    wanted = numbers_of(epfast.load(path))
    for _ in range(count):
        path.write_bytes(rng.choice(DAMAGE)(data, rng))
        try:
            found = numbers_of(epfast.load(path))
        except ValueError as error:
            assert type(error) is ValueError  # noqa: PT017
            continue
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, other)


def tampered(value, rng):
    """Another array or setting in the place of one, whose checksums are right."""
    if isinstance(value, np.ndarray):
        kind, junk = rng.integers(9), [0.0, -1.0, np.nan, np.inf, 1e308, -1e308, 0.5, 7.0, 1e-320]
        if value.dtype.kind not in "fiu":  # it was here before
            return value
        if value.size and kind < 4:
            value = value.astype(np.float64)
            at = rng.integers(value.size)
            value.flat[at] = value.flat[at] * 1.5 + 0.1 if kind == 0 else rng.choice(junk)
            return value
        others = [value[None], value[:-1], value[:0], value.T, value.ravel(), -value, value + 1]
        others += [value.astype(complex), value > 0, value.astype(str)]
        others.append(np.clip(value, -1e30, 1e30).astype("f4"))
        return others[rng.integers(len(others))] if value.ndim else value
    junk = [None, "", "x", 0, -1, 1.5, 1e308, float("nan"), [], [1], {}, {"name": "EP"}, True]
    if isinstance(value, dict) and value and rng.random() < 0.7:
        key = rng.choice(sorted(value))
        return value | {key: tampered(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.7:
        return [tampered(value[0], rng), *value[1:]]
    return junk[rng.integers(len(junk))]


@pytest.mark.parametrize(
    ("seed", "count"),
    [(seed, 20) for seed in range(36)]
    + [pytest.param(seed, 1000, marks=pytest.mark.long) for seed in range(36, 46)],
)
def test_parts_replaced_at_random(seed, count, parts, tmp_path):
    """ValueError, or a posterior that is proper and can be saved."""
    rng, path = np.random.default_rng(seed), tmp_path / "post"
    arrays, header = parts(rng.choice(list(MADE)))
    for _ in range(count):
        some, said = dict(arrays), dict(header)
        for _ in range(rng.integers(1, 3)):
            name = rng.choice(sorted(some | said))
            target = some if name in some else said
            target[name] = tampered(target[name], rng)
        put(path, some, said)
        try:
            post = epfast.load(path)
        except ValueError as error:
            assert type(error) is ValueError  # noqa: PT017
            continue
        assert np.isfinite(post.mean).all()
        assert np.isfinite(post.log_evidence)
        assert (post.variance >= 0.0).all()
        post.save(path)
        epfast.load(path)
