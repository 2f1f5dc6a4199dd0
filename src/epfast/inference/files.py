"""Files: an ``.npz`` archive of plain arrays and a header in JSON. Nothing in it is ever run."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import numbers
import os
import secrets
import stat
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from tokenize import TokenError
from typing import Any, BinaryIO

import numpy as np
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic

from epfast import _checks, schedules
from epfast._arrays import Array
from epfast._core.vector import build_facts
from epfast.losses import Loss, describe as describe_loss

#: format of the files that ``write`` makes
FORMAT = 4
#: bytes read at a time
PIECE = 1 << 20
#: bytes that a packed file may hold beyond its own size. What ``write`` makes is not packed
UNPACKED = 4 << 20
#: readers of the description of an array by the version of NumPy's format
DESCRIPTIONS = {(1, 0): read_array_header_1_0, (2, 0): read_array_header_2_0}
#: what saving to a device or a full file system says, for fsync: nothing to sync there
UNSYNCED = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP}
#: schedules by the names that files know
SCHEDULES: dict[str, Any] = {
    name: kind
    for name, kind in ((name, getattr(schedules, name)) for name in schedules.__all__)
    if is_dataclass(kind)
}


# ---- write ----


def write(path: str | os.PathLike[str], arrays: dict[str, Any], header: dict[str, Any]) -> None:
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
    members: dict[str, Any] = {}
    for key, value in arrays.items():
        members[key] = np.asarray(value)
        if members[key].dtype.kind not in "fiub":
            raise TypeError(f"{key} is {_checks.describe(members[key])}; allowed: real numbers")
    whole = plain("header", {"format": FORMAT, "version": build_facts()["version"], **header})
    whole["digest"] = digest(members, whole)
    members["header"] = np.array(json.dumps(whole))
    with _replacing(name) as file:
        np.savez(file, **members)


def digest(arrays: dict[str, Array], header: dict[str, Any]) -> str:
    """A checksum of names, arrays and header, by which a damaged file is known."""
    checksum = hashlib.blake2b(json.dumps(header, sort_keys=True).encode(), digest_size=16)
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        checksum.update(f"{name} {array.dtype.str} {arrays[name].shape}".encode())
        checksum.update(array.view(np.uint8).data if array.size else b"")
    return checksum.hexdigest()


def plain(name: str, value: Any) -> Any:
    """A setting for JSON: numbers of NumPy and fractions become Python's."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
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
    before = _regular(name)
    # the target of a link is replaced, not the link
    target = os.path.realpath(name)
    folder = os.path.dirname(target)
    new = os.path.join(folder, f".epfast-{secrets.token_hex(8)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        # closed to others until it has the permissions of the file that it replaces
        number = os.open(new, flags, 0o666 if before is None else 0o600)
    except OSError as error:
        message = f"no file can be made in the folder of {name!r}: {error.strerror}"
        raise OSError(error.errno, message, folder) from error
    try:
        with os.fdopen(number, "wb") as file:
            yield file
            file.flush()
            _sync(file.fileno())
        if before is not None:
            _permit(new, before)
        os.replace(new, target)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(new)
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, error.strerror, name) from error
        raise
    # where folders cannot be opened the rename is as safe as the system makes it
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def _regular(name: str) -> os.stat_result | None:
    """The status of a file that may be written, or None if there is no such file."""
    if os.path.basename(name) in ("", os.curdir, os.pardir):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    try:
        status = os.stat(name)
    except FileNotFoundError:  # a link that leads nowhere, too: what it names is made
        return None
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file; allowed: a file or a new name", name)
    if not os.access(name, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
    return status


def _permit(new: str, before: os.stat_result) -> None:
    """Give a new file the owner, where that is allowed, and the permissions of an old one."""
    if hasattr(os, "chown"):
        with suppress(OSError):
            os.chown(new, before.st_uid, before.st_gid)
    os.chmod(new, stat.S_IMODE(before.st_mode))


def _sync(number: int) -> None:
    """Wait until a file is on the disk."""
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in UNSYNCED:
            raise


# ---- read ----


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Array], dict[str, Any]]:
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
    with open(_openable(path), "rb") as raw:
        size = os.fstat(raw.fileno()).st_size
        with zipfile.ZipFile(raw) as archive:
            members = archive.infolist()
            names = [member.filename for member in members]
            if len(set(names)) < len(names):
                raise ValueError("a name occurs twice")
            if sum(member.compress_size for member in members) > size:
                raise ValueError("the parts are larger than the file")
            held = sum(member.file_size for member in members)
            if held > size + UNPACKED:
                raise ValueError(f"it is packed, {held} bytes in {size}, which save does not do")
            arrays = {name.removesuffix(".npy"): _array(archive, name) for name in names}
    text = arrays.pop("header")
    if text.dtype.kind != "U" or text.ndim:
        raise ValueError("the header is no text")
    for name, value in arrays.items():
        if value.dtype.kind == "U":
            raise ValueError(f"{name} is a text")
    header = json.loads(str(text))
    if not isinstance(header, dict):
        raise ValueError("the header holds no names")
    if header.get("format") != FORMAT:
        raise ValueError(f"its format is {header.get('format')!r}")
    if header.pop("digest", None) != digest(arrays, header):
        raise ValueError("it holds other numbers than those that were written")
    return arrays, header


def _openable(path: str | os.PathLike[str]) -> str:
    """The name of a file, not of a pipe, at which reading would wait."""
    name = _checks.path("path", path)
    mode = os.stat(name).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise ValueError("it is no regular file")
    return name


def _array(archive: zipfile.ZipFile, name: str) -> Array:
    """One array of an archive."""
    member = archive.getinfo(name)
    if member.flag_bits & 1:
        raise ValueError(f"{name} is encrypted")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"{name} is packed in another way than NumPy does")
    with archive.open(member) as file:
        try:
            shape, is_fortran, kind = DESCRIPTIONS[read_magic(file)](file)
        except (ValueError, KeyError, TokenError):  # the last of parentheses that do not close
            raise ValueError(f"{name} is no array") from None
        if kind.kind not in "fiubU":
            raise ValueError(f"{name} is no array of numbers")
        count = math.prod(shape)
        if min(shape, default=0) < 0 or count * kind.itemsize != member.file_size - file.tell():
            raise ValueError(f"{name} says shape {shape}, and holds {member.file_size} bytes")
        result = np.empty(count, dtype=kind)
        _fill(result, file)
    return result.reshape(shape, order="F" if is_fortran else "C")


def _fill(result: Array, file: Any) -> None:
    """Read all bytes of an array, and the end, at which the checksum is compared."""
    target = result.view(np.uint8) if result.size else np.empty(0, np.uint8)
    for start in range(0, len(target), PIECE):
        piece = target[start : start + PIECE]
        piece[:] = np.frombuffer(file.read(len(piece)), np.uint8)
    if file.read(1):
        raise ValueError("an array is longer than it says")


# ---- what posteriors have in common ----


def as_ours(schedule: Any) -> schedules.Schedule:
    """A schedule for a file. A user's class is written with the numbers of its nearest base.

    It is an EP of its power, where that base would refuse them or there is none.
    """
    saved: schedules.Schedule = schedule
    if SCHEDULES.get(type(schedule).__name__) is type(schedule):
        return saved
    for kind in type(schedule).__mro__:
        if SCHEDULES.get(kind.__name__) is kind:
            with suppress(TypeError, ValueError):
                saved = kind(**{f.name: getattr(schedule, f.name) for f in fields(kind) if f.init})
                return saved
    return schedules.EP(power=float(schedule.power), damping=1.0)


def restore_responses(given: Array, loss: Loss | None) -> Array:
    """The responses of a fit, (n, width).

    Those of the losses here begin with the user's y, from which the rest follows.
    """
    y = given[:, None] if given.ndim == 1 else given
    if loss is None:
        return _checks.array("y", y, shape=(None, None))
    more = loss.has_offset and not loss.by_residual
    y = _checks.array("y", y, shape=(None, loss.response_width + more), finite=False)
    if np.isnan(y).any():
        raise ValueError("y holds NaN")
    if describe_loss(loss) is not None:
        own = np.ascontiguousarray(y[:, : loss.response_width])
        user, n = loss.as_given(own), len(own)
        made = _made_again(own, loss) if user is None else loss.responses("y", user, n)
        if not np.allclose(made, own, rtol=1e-6, atol=1e-6):  # to rounding; ends may be infinite
            raise ValueError("y contradicts the loss: what follows from its first column differs")
    return y


def _made_again(y: Array, loss: Loss) -> Array:
    first = [y[:, 0], *(y[:, :k] for k in range(2, y.shape[1] + 1))]
    for user in first[:-1]:
        try:
            return loss.responses("y", np.ascontiguousarray(user), len(y))
        except (TypeError, ValueError):
            continue
    return loss.responses("y", np.ascontiguousarray(first[-1]), len(y))
