"""Files: an ``.npz`` archive of plain arrays and a header in JSON. Nothing in it is ever run."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import secrets
import stat
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from numbers import Integral, Real
from tokenize import TokenError
from typing import BinaryIO

import numpy as np
from numpy.lib.format import (
    read_array,
    read_array_header_1_0,
    read_array_header_2_0,
    read_magic,
    write_array,
)
from numpy.typing import ArrayLike

from epfast import _checks, schedules
from epfast._arrays import Array
from epfast._core.vector import build_facts
from epfast.losses import Loss, describe as describe_loss
from epfast.schedules import Schedule

try:
    import fcntl
except ModuleNotFoundError:  # of other systems. Nothing is locked there, and nothing swept up
    fcntl = None  # type: ignore[assignment]

#: what JSON holds
Plain = None | bool | int | float | str | list["Plain"] | dict[str, "Plain"]
#: what becomes that
Setting = Plain | Real | np.bool_ | Array | Mapping[str, "Setting"] | Sequence["Setting"]

#: format of the files that ``write`` makes
FORMAT = 5
#: bytes that a packed file may hold beyond its own size. What ``write`` makes is not packed
UNPACKED = 4 << 20
#: unfinished files. Their writers hold a lock on them, which the system drops where one is killed
UNFINISHED = re.compile(r"\.epfast-[0-9a-f]{16}\.tmp")
#: readers of the description of an array by the version of NumPy's format
DESCRIPTIONS = {(1, 0): read_array_header_1_0, (2, 0): read_array_header_2_0}
#: schedules by the names that files know
SCHEDULES: dict[str, type[Schedule]] = {
    name: kind
    for name, kind in vars(schedules).items()
    if isinstance(kind, type) and issubclass(kind, Schedule) and is_dataclass(kind)
}


# ---- write ----


def write(
    path: str | os.PathLike[str], arrays: Mapping[str, ArrayLike], header: Mapping[str, Setting]
) -> None:
    """Write the file that :func:`epfast.load` reads.

    What cannot be written is found before any file is touched. The file is complete under another
    name, and on the disk, before it takes the place of an old one: a full disk or the end of the
    process leaves the old file as it was.

    Raises
    ------
    TypeError
        If a setting or an array cannot be written. No file is touched.
    OSError
        As the operating system says. The old file is as it was.
    """
    name = _checks.path("path", path)
    members: dict[str, Array] = {}
    for key, value in arrays.items():
        members[key] = np.asarray(value)
        if members[key].dtype.kind not in "fiub":
            raise TypeError(f"{key} is {_checks.describe(members[key])}; allowed: real numbers")
    whole: dict[str, Plain] = {"format": FORMAT, "version": build_facts()["version"]}
    whole |= {key: plain(key, value) for key, value in header.items()}
    whole["digest"] = digest(members, whole)
    with _replacing(name) as file, zipfile.ZipFile(file, "w") as archive:
        for key, array in (*members.items(), ("header", np.array(json.dumps(whole)))):
            with archive.open(f"{key}.npy", "w", force_zip64=True) as member:
                write_array(member, array, allow_pickle=False)


def digest(arrays: dict[str, Array], header: Mapping[str, Plain]) -> str:
    """A checksum of names, arrays and header, by which a damaged file is known."""
    checksum = hashlib.blake2b(json.dumps(header, sort_keys=True).encode(), digest_size=16)
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        checksum.update(f"{name} {array.dtype.str} {arrays[name].shape}".encode())
        checksum.update(array.view(np.uint8).data if array.size else b"")
    return checksum.hexdigest()


def plain(name: str, value: Setting) -> Plain:
    """A setting for JSON: numbers of NumPy and fractions become Python's."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, Mapping):
        return {str(key): plain(str(key), item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(name, value.tolist())
    if isinstance(value, list | tuple):
        return [plain(name, item) for item in value]
    raise TypeError(
        f"{name} is {_checks.describe(value)}, which no file can hold; allowed: numbers and strings"
    )


@contextmanager
def _replacing(name: str) -> Iterator[BinaryIO]:
    """A new file that takes the place of ``name`` once it is complete. Removed on any error."""
    mode = None
    with suppress(FileNotFoundError):  # a link that leads nowhere, too: what it names is made
        mode = os.stat(name).st_mode
    is_name = os.path.basename(name) not in ("", os.curdir, os.pardir)
    is_writable = mode is None or (stat.S_ISREG(mode) and os.access(name, os.W_OK))
    if not (is_name and is_writable):
        raise OSError(errno.EACCES, "not a regular file that may be written", name)
    # the target of a link is replaced, not the link
    target = os.path.realpath(name)
    folder, new = os.path.dirname(target), ""
    _sweep_up(folder)
    try:
        new, unfinished = _unfinished(folder)
        with unfinished as file:
            if mode is not None:
                os.chmod(new, stat.S_IMODE(mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
            if fcntl is None:  # where no open file gets another name
                file.close()
            os.replace(new, target)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(new)
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, error.strerror, name) from error
        raise


def _unfinished(folder: str) -> tuple[str, BinaryIO]:
    """The name of a new file, and the file, locked until it is closed."""
    while True:
        new = os.path.join(folder, f".epfast-{secrets.token_hex(8)}.tmp")
        file = open(new, "xb")  # noqa: SIM115
        with suppress(OSError):  # of file systems without locks, where nothing is swept up
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)
        if fcntl is None or os.fstat(file.fileno()).st_nlink:
            return new, file
        file.close()  # it was swept up before it was locked


def _sweep_up(folder: str) -> None:
    """Remove the unfinished files of processes that were killed, whose locks are gone."""
    if fcntl is None:
        return
    names: list[str] = []
    with suppress(OSError), os.scandir(folder) as entries:
        names = [entry.path for entry in entries if UNFINISHED.fullmatch(entry.name)]
    for name in names:
        with suppress(OSError):  # of others, or locked: it is being written
            descriptor = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(name)
            finally:
                os.close(descriptor)


# ---- read ----


def read(name: str) -> tuple[dict[str, Array], dict[str, Plain]]:
    """The arrays and the header of a file that :func:`write` made.

    Only arrays of numbers and one text are read, by their description in NumPy's format. All are
    no larger than the file, but for UNPACKED, which is compared before memory is taken.

    Raises
    ------
    ValueError
        If it is no such file.
    OSError
        If it cannot be opened, or the disk fails.
    """
    mode = os.stat(name).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # of a pipe, at which reading would wait
        raise ValueError("it is no regular file")
    with open(name, "rb") as raw, zipfile.ZipFile(raw) as archive:
        size = os.fstat(raw.fileno()).st_size
        members = archive.infolist()
        unpacked = sum(member.file_size for member in members)
        if unpacked > size + UNPACKED:
            raise ValueError(f"it is packed, {unpacked} bytes in {size}, which save does not do")
        arrays = {
            member.filename.removesuffix(".npy"): _array(archive, member) for member in members
        }
    header = json.loads(str(arrays.pop("header")))
    if not isinstance(header, dict):
        raise ValueError("the header holds no names")
    if header.get("format") != FORMAT:
        raise ValueError(f"its format is {header.get('format')!r}")
    if header.pop("digest", None) != digest(arrays, header):
        raise ValueError("it holds other numbers than those that were written")
    return arrays, header


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    """One array of an archive: of numbers, or the text of the header."""
    name = member.filename
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{name} is packed in another way than NumPy does")
    with archive.open(member) as file:
        try:
            shape, _, kind = DESCRIPTIONS[read_magic(file)](file)
        except (ValueError, KeyError, TokenError):  # the last of parentheses that do not close
            raise ValueError(f"{name} is no array") from None
        if kind.kind not in ("U" if name == "header.npy" else "fiub"):
            raise ValueError(f"{name} is no array of numbers")
        if math.prod(shape) * kind.itemsize != member.file_size - file.tell():
            raise ValueError(f"{name} says shape {shape}, and holds {member.file_size} bytes")
        file.seek(0)
        array: Array = read_array(file, allow_pickle=False)
    return array


# ---- what posteriors have in common ----


def as_ours(schedule: Schedule) -> Schedule:
    """A schedule for a file. A user's class is written with the numbers of its nearest base.

    It is an EP of its power, where that base would refuse them or there is none.
    """
    if SCHEDULES.get(type(schedule).__name__) is type(schedule):
        return schedule
    for kind in type(schedule).__mro__:
        if SCHEDULES.get(kind.__name__) is kind and is_dataclass(kind):
            with suppress(TypeError, ValueError):
                names = [one.name for one in fields(kind) if one.init]
                kept = kind(**{name: getattr(schedule, name) for name in names})
                assert isinstance(kept, Schedule)
                return kept
    power = 1.0 if schedule.power is None else float(schedule.power)
    return schedules.EP(power=power, damping=1.0)


def restore_responses(values: Array, loss: Loss | None) -> Array:
    """The responses of a fit, (n, width).

    Those of the losses here begin with the user's y, from which the rest follows.
    """
    y = values[:, None] if values.ndim == 1 else values
    if loss is None:
        return _checks.array("y", y, shape=(None, None))
    more = loss.has_offset and not loss.by_residual
    y = _checks.array("y", y, shape=(None, loss.response_width + more), finite=False)
    if np.isnan(y).any():
        raise ValueError("y holds NaN")
    if describe_loss(loss) is not None:
        own = np.ascontiguousarray(y[:, : loss.response_width])
        user, n = loss.as_given(own), len(own)
        again = _read_again(own, loss) if user is None else loss.responses("y", user, n)
        if not np.allclose(again, own, rtol=1e-6, atol=1e-6):  # to rounding; ends may be infinite
            raise ValueError("y contradicts the loss: what follows from its first column differs")
    return y


def _read_again(y: Array, loss: Loss) -> Array:
    first = [y[:, 0], *(y[:, :k] for k in range(2, y.shape[1] + 1))]
    for user in first[:-1]:
        try:
            return loss.responses("y", np.ascontiguousarray(user), len(y))
        except (TypeError, ValueError):
            continue
    return loss.responses("y", np.ascontiguousarray(first[-1]), len(y))
