"""Kills a process that saves over a good file, again and again, and counts the files lost.

``python tools/kill_save.py [--kills 200] [--seed 0] [--n 300]``

A child saves two posteriors in turn over one file; after a random time it gets SIGKILL. The file
must then load and be one of the two. Then the disk fills up while a file is saved: a small tmpfs
where one may be mounted, else a limit on the size of files. Exit code 1 if a file was lost.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

import epfast

#: most seconds of a child between its first save and its end
LONGEST = 0.2
CHILD = """
import sys
import epfast
folder, name = sys.argv[1:]
posts = [epfast.load(f"{folder}/{k}.npz") for k in (0, 1)]
print("ready", flush=True)
while True:
    for post in posts:
        post.save(name)
"""
FULL_DISK = """
import resource, sys
import epfast
folder, name, limit = sys.argv[1:]
post = epfast.load(f"{folder}/1.npz")
if int(limit):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), resource.RLIM_INFINITY))
try:
    post.save(name)
except OSError as error:
    print(error)
    sys.exit(7)
"""


def make(folder: Path, n: int) -> list[float]:
    """Save two posteriors of n latent values, n^2 numbers; their log evidences."""
    found = []
    for k in (0, 1):
        x = np.random.default_rng(k).normal(size=n)
        K = np.exp(-0.5 * np.subtract.outer(x, x) ** 2) + 0.1 * np.eye(n)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            post = epfast.fit_gp(K, np.where(x > 0, 1, -1), schedule=epfast.EP(sweeps=2, tol=0))
        post.save(folder / f"{k}.npz")
        found.append(post.log_evidence)
    return found


def is_good(name: Path, known: list[float]) -> bool:
    """Whether the file loads and is one of the posteriors."""
    try:
        return bool(epfast.load(name).log_evidence in known)
    except (ValueError, OSError) as error:
        print(f"lost: {error}", file=sys.stderr)
        return False


def kills(folder: Path, known: list[float], count: int, seed: int) -> tuple[int, int]:
    """Kill children that save; the files lost, and the unfinished ones left beside them."""
    name, rng, lost = folder / "post.npz", random.Random(seed), 0
    for _ in range(count):
        if not is_good(name, known):
            lost += 1
            name.write_bytes((folder / "0.npz").read_bytes())
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(folder), str(name)], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(rng.uniform(0.0, LONGEST))
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
    lost += not is_good(name, known)
    left = list(folder.glob(".epfast-*.tmp"))
    for path in left:
        path.unlink()
    return lost, len(left)


def full_disk(folder: Path, known: list[float]) -> tuple[str, bool]:
    """Save over a good file where the new one does not fit; how it was done, and if it is lost."""
    size = (folder / "1.npz").stat().st_size
    disk = folder / "disk"
    disk.mkdir()
    # room for one file, and for half of another
    options = f"size={size + size // 2}"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)]
    mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    how, limit = ("tmpfs", 0) if mounted else ("RLIMIT_FSIZE", size // 2)
    name = disk / "post.npz"
    try:
        name.write_bytes((folder / "0.npz").read_bytes())
        arguments = [str(folder), str(name), str(limit)]
        child = subprocess.run([sys.executable, "-c", FULL_DISK, *arguments], check=False)
        lost = child.returncode != 7 or not is_good(name, known) or len(list(disk.iterdir())) > 1
    finally:
        if mounted:
            subprocess.run(["umount", str(disk)], check=True)
    return how, lost


def main() -> int:
    """Count, and say how many."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--n", type=int, default=300, help="latent values; files of 8 n^2 bytes")
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        known = make(folder, given.n)
        (folder / "post.npz").write_bytes((folder / "0.npz").read_bytes())
        lost, left = kills(folder, known, given.kills, given.seed)
        print(f"{given.kills} kills: {lost} files lost, {left} unfinished files beside them")
        how, is_lost = full_disk(folder, known)
        print(f"full disk ({how}): {int(is_lost)} files lost")
    return int(lost > 0 or is_lost)


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(main())
