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
from epfast.inference.files import digest
from tests.oracles.data import classes, rbf

#: what the examples below are about is not whether they settled
pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning"),
]

X, Y = classes(12, 3)
K = rbf(X)
COUNTS = np.arange(12) % 4
WEIGHTS = np.resize([0.5, 1.0, 3.0, 0.0], 12)
WIDE = np.random.default_rng(0).normal(size=(12, 14))


def fit(**given):
    return epfast.fit_linear(X, Y, **({"schedule": epfast.EP(sweeps=3, tol=0)} | given))


def process(y=Y, **given):
    return epfast.fit_gp(K, y, **({"schedule": epfast.EP(sweeps=3, tol=0)} | given))


def several(loss):
    return epfast.fit_linear(X, np.arange(12) % 3, loss=loss)


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
    "latents": lambda: several(epfast.losses.Multiclass(3, correlated=False)),
    "joint_latents": lambda: several(epfast.losses.Multiclass(3, correlated=True)),
    "shrunk": lambda: fit(prior=epfast.losses.LaplacePrior(0.5)),
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


# ---- parts that were changed ----


def some(arrays, rng):
    """The name of an array that has numbers, and whose length another one has."""
    # of a file without rows these alone tell how many there were
    alone = () if "problem.data.y" in arrays else ("problem.data.groups",)
    return rng.choice([name for name, a in arrays.items() if a.size and name not in alone])


def change_a_number(arrays, header, rng):
    name = some(arrays, rng)
    arrays[name] = arrays[name].copy()
    arrays[name].flat[rng.integers(arrays[name].size)] += 1


def shorten(arrays, header, rng):
    name = some(arrays, rng)
    arrays[name] = arrays[name].ravel()[:-1]


def drop(arrays, header, rng):
    del arrays[some(arrays, rng)]


def retype(arrays, header, rng):
    name = some(arrays, rng)
    arrays[name] = arrays[name].astype(np.float32)


def swap(arrays, header, rng):
    one, other = rng.choice(sorted(arrays), 2, replace=False)
    arrays[one], arrays[other] = arrays[other], arrays[one]
    arrays[one] = arrays[one] + 1  # they may be alike


def add(arrays, header, rng):
    arrays["later"] = np.arange(3)


def set_a_field(arrays, header, rng):
    header["fields"]["fields"]["converged"] = "yes"


def set_the_kind(arrays, header, rng):
    header["posterior"] = "graph" if rng.random() < 0.5 else "none"


def forget_the_digest(arrays, header, rng):
    del header["digest"]


CHANGES = [
    change_a_number,
    shorten,
    drop,
    retype,
    swap,
    add,
    set_a_field,
    set_the_kind,
    forget_the_digest,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_file_that_was_changed_is_refused(change, parts, tmp_path):
    """Archives whose own checksums are right: the digest tells."""
    rng = np.random.default_rng(CHANGES.index(change))
    for name in MADE:
        arrays, header = parts(name)
        change(arrays, header, rng)
        refused(put(tmp_path / "changed.npz", arrays, header))


def test_no_other_class_is_made_than_those_of_posteriors(parts, tmp_path):
    arrays, header = parts("full")
    del header["digest"]
    header["fields"]["type"] = "Popen"
    header["digest"] = digest(arrays, header)
    refused(put(tmp_path / "forged.npz", arrays, header), "Popen")


def longer(arrays, header, rng):
    name = some(arrays, rng)
    arrays[name] = np.concatenate([arrays[name]] * 2)


def change_to_nan(arrays, header, rng):
    name = rng.choice([name for name in sorted(arrays) if arrays[name].dtype.kind == "f"])
    arrays[name] = np.full(arrays[name].shape, np.nan)


@pytest.mark.parametrize("name", MADE)
def test_arrays_that_do_not_fit_together_are_refused(name, parts, tmp_path):
    """By whoever makes the digest anew: compiled code relies on shapes."""
    rng = np.random.default_rng(0)
    for change in (shorten, longer, change_to_nan):
        arrays, header = parts(name)
        del header["digest"]
        change(arrays, header, rng)
        header["digest"] = digest(arrays, header)
        refused(put(tmp_path / "forged.npz", arrays, header))


@pytest.mark.parametrize("name", MADE)
def test_files_that_others_have_packed_are_read(name, parts, tmp_path):
    """In any order, and compressed."""
    arrays, header = parts(name)
    put(tmp_path / "plain", dict(arrays), dict(header))
    arrays = dict(reversed(arrays.items()))
    one = epfast.load(put(tmp_path / "packed", arrays, header, np.savez_compressed))
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
        (described("(1, 1, 1, 1)" * 3, bytes(8)), "is no array"),
        (described("(1,)", bytes(9)), "says shape"),
        (described("(1,)", bytes(7)), "says shape"),
        (described("((1,),)", bytes(8)), "is no array"),
        (described("(1, )" + "(" * 3000, bytes(8)), "is no array"),
        (described("(1,)", pickle.dumps(Evil()), "|O"), "is no array"),
        (described("(1,)", bytes(8), "<x8"), "is no array"),
        (described("(1,)", bytes(3), "<f3"), ""),
        (described("(1,)", bytes(8)).replace(b"'shape'", b"'shape"), "is no array"),
        (b"\x93NUMPY\x01\x00\xff\xff", "is no array"),
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
    refused(path, "is no array")


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


@pytest.mark.parametrize("seed", range(500))
@pytest.mark.parametrize("is_compressed", [False, True])
def test_bytes_damaged_at_random(seed, is_compressed, good, tmp_path):
    """ValueError, or what was saved: checksums find the rest."""
    rng, path = np.random.default_rng(seed), tmp_path / "post"
    name = rng.choice(list(good))
    data = good[name]
    if is_compressed:
        data = zipped(data, path, zipfile.ZIP_DEFLATED).read_bytes()
    path.write_bytes(data)
    wanted = numbers_of(epfast.load(path))
    for _ in range(20):
        path.write_bytes(rng.choice(DAMAGE)(data, rng))
        try:
            found = numbers_of(epfast.load(path))
        except ValueError as error:
            assert type(error) is ValueError  # noqa: PT017
            continue
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, other)
