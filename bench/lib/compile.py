"""C code to compare with: compiled when a script runs, on the BLAS that epfast uses."""

from __future__ import annotations

import ctypes
import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy.linalg import cython_blas

#: type of what a function returns, and types of its arguments
Signature = tuple[Any, Sequence[Any]]

NATIVE = ("-O3", "-march=native")


def library(
    source: Path, functions: Mapping[str, Signature], flags: Sequence[str] = NATIVE
) -> ctypes.CDLL:
    """Compile a file by ``$CC`` or gcc, load it, and declare its functions."""
    compiler = shlex.split(os.environ.get("CC", "gcc"))
    with tempfile.TemporaryDirectory() as folder:  # a library that is loaded needs no file
        path = Path(folder) / f"{source.stem}.so"
        command = [*compiler, "-std=gnu11", *flags, "-fPIC", "-shared"]
        subprocess.run([*command, str(source), "-o", str(path), "-lm"], check=True)
        loaded = ctypes.CDLL(str(path))
    for name, (returned, arguments) in functions.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = returned, list(arguments)
    return loaded


def blas(name: str) -> ctypes.c_void_p:
    """Address of one of SciPy's BLAS functions."""
    capsule = cython_blas.__pyx_capi__[name]
    get_name, get_pointer = (
        ctypes.pythonapi.PyCapsule_GetName,
        ctypes.pythonapi.PyCapsule_GetPointer,
    )
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    signature = get_name(capsule)
    if b"int *" not in signature:
        raise RuntimeError(f"SciPy's {name} takes no pointers to int: {signature!r}")
    return ctypes.c_void_p(get_pointer(capsule, signature))
