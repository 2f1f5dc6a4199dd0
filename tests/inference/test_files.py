"""Writing: atomic, with plain settings; reading: arrays of numbers and one text, nothing else."""

import errno
import os
import stat
import subprocess
import sys
from dataclasses import dataclass, fields
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import epfast
from epfast import losses, schemes
from epfast.inference import files
from tests.oracles.data import classes, rbf
from tests.oracles.outsiders import Backwards

X, Y = classes(24, 3)
K = rbf(X)

#: what the examples below are about is not whether they settled
pytestmark = pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")


def fit(**given):
    return epfast.fit_linear(X, Y, **({"schedule": epfast.EP(sweeps=3, tol=0)} | given))


def process(**given):
    return epfast.fit_gp(K, Y, **({"schedule": epfast.EP(sweeps=3, tol=0)} | given))


@pytest.fixture
def saved(tmp_path):
    """A good file."""
    fit(loss="probit").save(tmp_path / "post.npz")
    return tmp_path / "post.npz"


def the_same(path, before):
    """The file is as it was, and alone."""
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


# ---- settings ----

F32, F64, I64, I8, BOOL = np.float32, np.float64, np.int64, np.int8, np.bool_
ROWS = np.arange(24) % 3


def ep(**given):
    return {"schedule": epfast.EP(**({"sweeps": 3} | given))}


def minibatches(scheme, **given):
    return {"posterior": "factorized", "batch_size": 6, "scheme": scheme, **ep(**given)}


LINEAR = {
    "sweeps": ep(sweeps=I64(2)),
    "sweeps, small": ep(sweeps=I8(2)),
    "tol": ep(tol=F64(1e-5)),
    "tol, single": ep(tol=F32(1e-5)),
    "tol, half": ep(tol=np.float16(0.25)),
    "tol, fraction": ep(tol=Fraction(1, 3)),
    "tol, integer": ep(tol=I64(0)),
    "damping": ep(damping=F32(0.3)),
    "damping, fraction": ep(damping=Fraction(2, 3)),
    "power": ep(power=F32(0.7)),
    "power, integer": ep(power=I64(1)),
    "power, long": ep(power=np.longdouble("0.1")),
    "block": ep(block=np.uint16(4), order="sequential"),
    "seed": ep(seed=np.uint64(7), order="shuffled"),
    "order": ep(order=np.str_("parallel")),
    "adf": {"schedule": epfast.ADF(passes=I64(2), power=F32(0.5))},
    "sep": {"schedule": epfast.SEP(sweeps=I64(2), damping=F32(0.3), batch=I64(4))},
    "aep": {"schedule": epfast.AEP(sweeps=I64(2), power=Fraction(1, 2), damping=F32(0.5))},
    "dsep": {"schedule": epfast.DSEP(list(ROWS), sweeps=I8(2), batch=np.uint8(2), damping=0.5)},
    "daep": {"schedule": epfast.DAEP(I64(3), sweeps=2, tol=F32(1e-3), damping=F32(0.5))},
    "dep": {"schedule": epfast.DEP(ROWS.astype(I8), sweeps=I64(2))},
    "dep, inner": {"schedule": epfast.DEP(2, 2, inner=epfast.EP(sweeps=I64(2), tol=F32(1e-3)))},
    "batch_size": {"batch_size": I64(5), **ep()},
    "batch_size, factorized": minibatches("laplace") | {"batch_size": I8(5)},
    "site_rule": minibatches("quadrature", site_rule=np.str_("keep")),
    "gamma": minibatches(schemes.Quadrature(gamma=F32(1.6))),
    "gamma, fraction": minibatches(schemes.Variational(gamma=Fraction(7, 3))),
    "rule": {"scheme": schemes.Variational(rule=(F32([[-1], [0], [1]]), [0.3, 0.4, 0.3])), **ep()},
    "laplace": {"scheme": schemes.Laplace(tol=F32(1e-6), max_iter=np.int16(9)), **ep()},
    "laplace, fraction": {"scheme": schemes.Laplace(tol=Fraction(1, 10**6)), **ep()},
    "importance": {"scheme": schemes.ImportanceSampling(I64(50), seed=np.uint8(3)), **ep()},
    "beta": {"beta": F32(0.7), **ep()},
    "beta, fraction": {"beta": Fraction(1, 3), **ep()},
    "epsilon": {"loss": losses.NoisyStep(F32(0.1)), **ep()},
    "epsilon, fraction": {"loss": losses.Quasi01(Fraction(1, 7)), **ep()},
    "knots": {"loss": losses.PiecewiseLinear(F32([0, 1]), (I64(-1), F32(-0.5), 0), I64(1)), **ep()},
    "prior": {"prior_variance": F32(2.0), "prior_mean": F32([1, 2, 3]), **ep()},
    "weights": {"weights": np.resize([F32(0.5), 1, 3], 24), **ep()},
    "record": {"record": np.str_("cost"), **ep()},
}
PROCESS = {
    "beta": {"beta": F32(0.7)},
    "beta, fraction": {"beta": Fraction(1, 3)},
    "power": ep(power=F32(0.8)),
    "power, integer": ep(power=I64(2)),
    "weight": {"scheme": schemes.Relaxed(F32(0.03))},
    "weight, fraction": {"scheme": schemes.Relaxed(Fraction(3, 100))},
    "freeze": {"scheme": schemes.Relaxed(freeze=I64(2))},
    "inner": {"scheme": schemes.Relaxed(scheme=schemes.Laplace(tol=F32(1e-7)))},
    "jitter": {"jitter": F32(1e-3)},
    "descent": {"schedule": epfast.DoubleLoop(epfast.EP(sweeps=I64(2)), I64(2), match=F32(1e-3))},
    "rank": {"rank": I64(3), "rank_tol": F32(1e-3)},
    "rank, batch": {"rank": I64(3), "batch_size": I64(4), "scheme": "laplace"},
}
SETTINGS = [(fit, name, given) for name, given in LINEAR.items()]
SETTINGS += [(process, name, given) for name, given in PROCESS.items()]


def plain_numbers(setting):
    """All numbers and strings of a dataclass, those of dataclasses within included."""
    found = {}
    for field in fields(setting):
        value = getattr(setting, field.name)
        if hasattr(value, "__dataclass_fields__"):
            found[field.name] = plain_numbers(value)
        elif isinstance(value, tuple):
            found[field.name] = [np.asarray(part).tolist() for part in value]
        else:
            found[field.name] = np.asarray(value).tolist() if np.ndim(value) else value
    return found


@pytest.mark.parametrize(
    ("door", "given"), [pytest.param(f, g, id=f"{f.__name__}-{n}") for f, n, g in SETTINGS]
)
def test_settings_of_every_kind_come_back(door, given, saved):
    """Whatever numbers the settings are, the file loads, with equal settings and predictions."""
    post = door(**given)
    post.save(saved)
    back = epfast.load(saved)
    for name in ("loss", "scheme", "schedule"):
        kept, found = getattr(post, name), getattr(back, name)
        assert type(kept) is type(found)
        assert plain_numbers(kept) == plain_numbers(found), name
    for name in ("beta", "power", "batch_size", "log_evidence", "converged", "n_sweeps"):
        assert getattr(back, name, None) == getattr(post, name, None), name
    for name in ("mean", "variance"):
        np.testing.assert_array_equal(getattr(back, name), getattr(post, name))
    columns = post.pivots if hasattr(post, "pivots") else slice(None)
    at = (K[:, columns], np.diag(K)) if door is process else (X,)
    np.testing.assert_array_equal(back.predict_proba(*at), post.predict_proba(*at))
    assert [info._replace(factor_cost=None) for info in post.history] == back.history


@pytest.mark.parametrize("given", LINEAR.values(), ids=LINEAR)
def test_settings_are_plain_numbers_from_the_door(given):
    """What a posterior says of itself is Python's, not NumPy's."""

    def check(value):
        if isinstance(value, dict):
            for item in value.values():
                check(item)
        elif not isinstance(value, list):
            assert value is None or type(value) in (int, float, bool, str, np.str_, frozenset)

    post = fit(**given)
    for setting in (post.loss, post.scheme, post.schedule):
        check(plain_numbers(setting))
    check({"beta": post.beta, "power": post.power, "batch_size": post.batch_size})


def test_what_no_file_can_hold_is_found_before_the_file_is_touched(saved):
    before = saved.read_bytes()
    for header in ({"a": object()}, {"a": {"b": [1j]}}, {"a": (np.datetime64("now"),)}):
        with pytest.raises(TypeError, match="which no file can hold"):
            files.write(saved, {}, header)
    for array in (np.array([object()]), np.array([1j]), np.array(["a"])):
        with pytest.raises(TypeError, match=r"^shift is .*allowed: real numbers"):
            files.write(saved, {"shift": array}, {})
    the_same(saved, before)


# ---- losses and schedules of a user's class ----


class Noisier(losses.NoisyStep):
    """Nothing of its own."""


class Shrugging(losses.NoisyStep):
    """Behaviour of its own."""

    def predict_proba(self, mean, variance):
        return np.full(len(mean), 0.5)


class Mirrored(losses.Logistic):
    """A likelihood that says it is none."""

    is_likelihood = False


@dataclass(frozen=True)
class Exp(losses.Loss):
    """A core of its own."""

    def core(self):
        return losses.CustomLoss(
            lambda m: np.exp(-m), lambda m: -np.exp(-m), lambda m: np.exp(-m)
        ).core()


OWN = [Noisier(0.2), Shrugging(0.2), Mirrored(), Exp()]


@pytest.mark.parametrize("loss", OWN, ids=lambda loss: type(loss).__name__)
def test_a_loss_of_a_user_s_class_is_given_again(loss, saved):
    """As a CustomLoss: the file loads, and says nothing that its loss would have said otherwise."""
    post = fit(loss=loss)
    post.save(saved)
    back = epfast.load(saved)
    np.testing.assert_array_equal(back.mean, post.mean)
    assert back.loss is None
    with pytest.raises(ValueError, match="load with the loss given"):
        back.predict_proba(X)
    np.testing.assert_array_equal(
        epfast.load(saved, loss=loss).predict_proba(X), post.predict_proba(X)
    )


class Own(epfast.schedules.SharedSites):
    """A schedule from the base."""

    sweeps, tol, damping, power, order, seed = 2, 0.0, 0.5, 0.8, "sequential", None


class Strange(epfast.EP):
    """A schedule with an order that EP does not know."""

    def check_order(self, allowed):
        pass


@pytest.mark.parametrize(
    ("schedule", "found"),
    [
        (Backwards(sweeps=2, power=0.8), epfast.EP(sweeps=2, power=0.8, damping=1.0)),
        (Strange(power=0.8, order="sequential"), epfast.EP(power=0.8, order="sequential")),
        (Own(), epfast.EP(power=0.8, damping=1.0)),
    ],
    ids=lambda found: type(found).__name__,
)
def test_a_schedule_of_a_user_keeps_its_power(schedule, found, saved):
    """With which the residual of what is loaded is that of the fit."""
    post = fit(schedule=schedule)
    post.save(saved)
    back = epfast.load(saved)
    assert back.schedule == found.filled(damping=1.0)
    assert back.with_rows(X, Y).residual == post.residual


def test_a_schedule_that_ours_would_refuse_is_an_ep_of_its_power():
    schedule = Strange(power=0.8, order="zigzag")
    assert files.as_ours(schedule) == epfast.EP(power=0.8, damping=1.0)


# ---- faults of the system ----


class FaultError(Exception):
    """A fault of a test."""


@pytest.mark.parametrize("step", ["fsync", "replace", "chmod"])
@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "no space"), FaultError(), KeyboardInterrupt()]
)
def test_a_fault_leaves_the_old_file(step, error, saved, monkeypatch):
    def fail(*_):
        raise error

    before, post = saved.read_bytes(), fit()
    monkeypatch.setattr(os, step, fail)
    with pytest.raises(type(error)) as caught:
        post.save(saved)
    monkeypatch.undo()
    the_same(saved, before)
    if isinstance(error, OSError):
        assert caught.value.errno == errno.ENOSPC
        assert caught.value.filename == str(saved)


def test_the_file_is_on_the_disk_before_it_has_its_name(saved, monkeypatch):
    calls = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, n=name, f=real: (calls.append(n), f(*a))[1])
    fit().save(saved)
    assert calls == ["fsync", "replace"]


LIMITED = """
import resource, sys
import epfast
post = epfast.load(sys.argv[1])
for limit in (0, 1000, 5000, 9000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        post.save(sys.argv[1])
    except OSError as error:
        print(error.errno, error.filename)
"""


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="limits of POSIX")
def test_a_file_that_does_not_fit_leaves_the_old_one(tmp_path):
    name = tmp_path / "post.npz"
    process().save(name)
    before = name.read_bytes()
    assert len(before) > 9000
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LIMITED, str(name)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [f"{errno.EFBIG} {name}"] * 4
    assert done.stderr == ""  # nothing failed once more where objects are destroyed
    the_same(name, before)


KILLED = """
import os, signal, sys
import epfast
post = epfast.load(sys.argv[1])
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
post.save(sys.argv[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="signals of POSIX")
def test_what_a_killed_process_left_goes_with_the_next_save(tmp_path):
    """But for what is written at the moment, and for what is no unfinished file of ours."""
    name, post = tmp_path / "post.npz", fit()
    post.save(name)
    before = name.read_bytes()
    subprocess.run([sys.executable, "-c", KILLED, str(name)], check=False)
    (left,) = tmp_path.glob(".epfast-*.tmp")
    assert name.read_bytes() == before
    mine = [tmp_path / one for one in (".epfast-mine.tmp", ".epfast-0123456789abcde.tmp.bak")]
    (tmp_path / ".epfast-0123456789abcdef.tmp").symlink_to(name)
    for one in mine:
        one.write_text("")
    with files._replacing(str(tmp_path / "slow.npz")) as slow:
        (written,) = (one for one in tmp_path.glob(".epfast-*.tmp") if one.samefile(slow.name))
        assert not left.exists()
        post.save(tmp_path / "other.npz")
        assert written.exists()
    names = {"post.npz", "slow.npz", "other.npz", ".epfast-0123456789abcdef.tmp"}
    assert {one.name for one in tmp_path.iterdir()} == names | {one.name for one in mine}
    assert epfast.load(tmp_path / "other.npz").log_evidence == post.log_evidence


@pytest.mark.skipif(not hasattr(os, "fork"), reason="locks of POSIX")
def test_a_file_that_is_swept_up_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    real, swept = files.fcntl.flock, []

    def late(file, how):
        if not swept:
            swept.extend(tmp_path.glob(".epfast-*.tmp"))
            swept[0].unlink()
        real(file, how)

    monkeypatch.setattr(files.fcntl, "flock", late)
    fit().save(tmp_path / "post.npz")
    assert [one.name for one in tmp_path.iterdir()] == ["post.npz"]
    assert len(swept) == 1


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "fork"), reason="signals of POSIX")
def test_kills_lose_no_file(tmp_path):
    tool = Path(__file__).parents[2] / "tools" / "kill_save.py"
    if not tool.is_file():
        pytest.skip("the tools are not beside the tests")
    done = subprocess.run(
        [sys.executable, str(tool), "--kills", "4", "--n", "60"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 kills: 0 files lost" in done.stdout


# ---- where the file is ----


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_permissions_are_kept(mode, saved):
    saved.chmod(mode)
    fit().save(saved)
    assert stat.S_IMODE(saved.stat().st_mode) == mode


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path):
    fit().save(tmp_path / "new.npz")
    (tmp_path / "other").touch()
    assert (tmp_path / "new.npz").stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.parametrize("name", ["post", "post.npz", "post.tar", "pöst wörld", "x" * 250])
@pytest.mark.parametrize("kind", [str, Path, os.fsencode])
def test_the_name_is_the_one_given(name, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit().save(kind(name))
    assert os.listdir(tmp_path) == [name]
    assert epfast.load(kind(name)).n_sweeps == 3


@pytest.mark.skipif(os.name != "posix", reason="links")
@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_stays_a_link(is_there, tmp_path):
    target, folder = tmp_path / "far" / "target", tmp_path / "near"
    target.parent.mkdir()
    folder.mkdir()
    if is_there:
        target.touch()
    (folder / "middle").symlink_to("../far/target")
    (folder / "link").symlink_to("middle")
    fit().save(folder / "link")
    assert (folder / "link").readlink() == Path("middle")
    assert not target.is_symlink()
    assert epfast.load(target).n_sweeps == epfast.load(folder / "link").n_sweeps == 3
    assert os.listdir(target.parent) == ["target"]


@pytest.mark.skipif(os.name != "posix", reason="links and pipes")
def test_places_that_take_no_file(tmp_path):
    """An OSError that names the place; nothing is made."""
    post = fit()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    places = ["pipe", "loop", "file/below", "none/below", "", "new/", "."]
    for place in (*places, os.devnull):
        name = os.path.join(tmp_path, place)
        with pytest.raises(OSError) as caught:  # noqa: PT011
            post.save(name)
        assert caught.value.filename
        assert caught.value.strerror
    assert sorted(os.listdir(tmp_path)) == ["file", "loop", "pipe"]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="permissions bind users only")
def test_a_folder_or_file_that_may_not_be_written(tmp_path):
    post = fit()
    (tmp_path / "file").touch(mode=0o400)
    tmp_path.chmod(0o500)
    try:
        for name in ("new", "file"):
            with pytest.raises(PermissionError):
                post.save(tmp_path / name)
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_the_error_of_a_folder_in_which_no_file_can_be_made_names_the_file(saved, monkeypatch):
    before, post = saved.read_bytes(), fit()

    def refuse(name, mode):
        raise PermissionError(errno.EACCES, "Permission denied", name)

    monkeypatch.setattr(files, "open", refuse, raising=False)
    with pytest.raises(PermissionError, match="Permission denied") as caught:
        post.save(saved)
    assert caught.value.filename == str(saved)
    the_same(saved, before)
