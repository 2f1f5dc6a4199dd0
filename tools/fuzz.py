"""Throw random calls, legal and hostile, at everything that epfast makes public.

    python tools/fuzz.py [--seed 1] [--doors 20000] [--fits 2000] [--graphs 5000] [--jobs 1]
                         [--state FILE.jsonl [--resume]]
    python tools/fuzz.py --seconds 20              # CI: all kinds, so many seconds
    python tools/fuzz.py --seed 1 --case doors:1695    # one case again, here, with its traceback

A case is a function of (seed, kind, number). "doors" are cheap calls with arguments of which some
are of the wrong type, shape or size (``fuzz_doors_*.py``); "fits" are combinations of losses,
schemes, schedules and hostile data (``fuzz_fits.py``); "graphs" are factor graphs with steps of
their lives (``fuzz_graphs.py``). ``fuzz_oracles.py`` says what is a failure:
an error that is not ours, NaN or infinity, a changed input, a warning of NumPy, a fit that claims
too much. Beside these, a process that dies, and a call that takes longer than ``--limit`` seconds.

Cases run in processes of their own, in batches. Each process writes the number of its case to
shared memory before it begins, so that the case by which one dies, or hangs, is known; it is run
again alone, and if it lives, after ever more of the cases before it. The state is a file of JSON
lines, one per batch that is done; ``--resume`` leaves these out. The summary counts the failures by
kind, with up to five cases each. The exit status is 1 if there is one; what is marked as
"approximation" (EP far from the integral) is counted apart.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple, TextIO

# before NumPy is imported; more threads than cores would only slow each other down
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

#: cases per batch: about a second
BATCH = {"doors": 1000, "fits": 50, "graphs": 100}
KINDS = tuple(BATCH)
#: bytes that a process may take: a hostile size is a MemoryError, not a machine that swaps
MEMORY = 6 << 30
#: cases shown of each failure
SHOWN = 5
#: seconds between two looks at the processes
LOOK = 0.25


#: a server that has imported everything makes a process in no time; not on every system
METHODS = multiprocessing.get_all_start_methods()
CONTEXT: Any = multiprocessing.get_context("forkserver" if "forkserver" in METHODS else "spawn")
if "forkserver" in METHODS:
    # older servers know the path only from here
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, [Path(__file__).parent, *sys.path[1:]]))
    CONTEXT.set_forkserver_preload(["fuzz_doors", "fuzz_fits", "fuzz_graphs"])


class Piece(NamedTuple):
    """Cases of one kind, a batch or what a dead process left of it."""

    kind: str
    first: int
    last: int


# ---- in a process ----


def judged(seed: int, kind: str, number: int) -> Any:
    """Make the case and run it."""
    import warnings

    import fuzz_doors
    import fuzz_fits
    import fuzz_graphs
    from fuzz_oracles import Case, run
    from fuzz_values import Draw

    makers = {"doors": fuzz_doors, "fits": fuzz_fits, "graphs": fuzz_graphs}
    maker = makers[kind].draw_case
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            case = maker(Draw(seed, kind, number))
    except Exception as error:  # of the fuzzer, or of a call that it takes for good
        case = Case("making the case", repr, {}, outcome="not made", error=error)
        case.fail("not made", repr(error))
        return case
    return run(case)


def work(pipe: Connection, place: Any, seed: int, dump: str) -> None:
    """Run pieces until there are no more. place: where kind and number of the case go."""
    _limits(dump)
    while True:
        piece = pipe.recv()
        if piece is None:
            return
        place[0] = KINDS.index(piece.kind)
        counts: Counter[str] = Counter()
        failures = []
        for number in range(piece.first, piece.last):
            place[1] = number
            case = judged(seed, piece.kind, number)
            counts[case.outcome] += 1
            failures += [[number, *failure] for failure in case.found]
        place[1] = -1
        pipe.send((piece, dict(counts), failures))


def _limits(dump: str) -> None:
    """Write a traceback where a process dies or is asked; do not take all the memory."""
    file = open(dump, "w")  # noqa: SIM115 (it stays open as long as the process)
    faulthandler.enable(file)
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, file)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


# ---- the processes ----


class Worker:
    """A process, and the piece that it has."""

    def __init__(self, seed: int, folder: str, name: int) -> None:
        context = CONTEXT
        self.dump = Path(folder) / f"dump{name}"
        self.place = context.RawArray("q", [0, -1])
        self.pipe, other = context.Pipe()
        target = (other, self.place, seed, str(self.dump))
        self.process = context.Process(target=work, args=target, daemon=True)
        self.process.start()
        other.close()
        self.piece: Piece | None = None
        self.seen, self.since = -1, time.monotonic()

    def give(self, piece: Piece) -> None:
        self.piece = piece
        self.pipe.send(piece)
        self.seen, self.since = -1, time.monotonic()

    def stuck_for(self) -> float:
        """Seconds since the case changed."""
        if self.place[1] != self.seen or self.place[1] < 0:
            self.seen, self.since = self.place[1], time.monotonic()
        return time.monotonic() - self.since

    def end(self) -> str:
        """Kill it; return what it wrote about where it was."""
        if self.process.is_alive() and hasattr(signal, "SIGUSR1"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid or 0, signal.SIGUSR1)
            time.sleep(0.5)
        self.process.kill()
        self.process.join()
        text = self.dump.read_text() if self.dump.exists() else ""
        frames = [line for line in text.splitlines() if "File" in line and "epfast" in line]
        return " < ".join(frame.rpartition("epfast")[2] for frame in frames[:3])


def crowded() -> float:
    """How many processes share a core: by so much a call takes longer."""
    try:
        return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    except (AttributeError, OSError):  # not on this system
        return 1.0


class Runner:
    """Hands out pieces, collects what comes back, finds the cases by which processes die."""

    def __init__(self, options: argparse.Namespace, report: Report) -> None:
        self.options, self.report = options, report
        self.left: deque[Piece] = deque()
        self.folder = tempfile.TemporaryDirectory(prefix="fuzz")
        self.workers: list[Worker] = []
        self.made = 0

    def _worker(self) -> Worker:
        self.made += 1
        return Worker(self.options.seed, self.folder.name, self.made)

    def run(self, pieces: Iterator[Piece]) -> None:
        """Run the pieces, as far as there are any."""
        try:
            self.workers = [self._worker() for _ in range(self.options.jobs)]
            while self._hand_out(pieces):
                busy = [w for w in self.workers if w.piece is not None]
                wait([w.pipe for w in busy] + [w.process.sentinel for w in busy], LOOK)
                for worker in busy:
                    self._look_at(worker)
        finally:
            for worker in self.workers:
                worker.process.kill()
            self.folder.cleanup()

    def _hand_out(self, pieces: Iterator[Piece]) -> bool:
        for worker in self.workers:
            if worker.piece is None:
                piece = self.left.popleft() if self.left else next(pieces, None)
                if piece is not None:
                    worker.give(piece)
        return any(worker.piece is not None for worker in self.workers)

    def _look_at(self, worker: Worker) -> None:
        piece = worker.piece
        assert piece is not None
        try:
            if worker.pipe.poll():
                self.report.add(*worker.pipe.recv())
                worker.piece = None
                return
        except (EOFError, OSError):
            pass
        number = worker.place[1]
        if not worker.process.is_alive():
            code = worker.process.exitcode
            kind, what = "crash", f"exit status {code}"
        elif worker.stuck_for() > self.options.limit * crowded():
            kind, what = "hang", f"more than {self.options.limit:g} s"
        else:
            return
        where = worker.end()
        number = piece.first if number < 0 else number
        if kind == "crash":
            what += self._alone(Piece(piece.kind, piece.first, number + 1))
        failure = [number, kind, where or "unknown", what]
        self.report.add(Piece(piece.kind, number, number + 1), {kind: 1}, [failure])
        for rest in ((piece.first, number), (number + 1, piece.last)):
            if rest[0] < rest[1]:
                self.left.append(Piece(piece.kind, *rest))
        self.workers[self.workers.index(worker)] = self._worker()

    def _alone(self, piece: Piece) -> str:
        """Whether the last case makes a process die by itself, or after the others only."""
        for first, said in ((piece.last - 1, ""), (piece.first, f", after {piece.kind}:{{}} only")):
            worker = self._worker()
            worker.give(Piece(piece.kind, first, piece.last))
            wait([worker.pipe, worker.process.sentinel], self.options.limit)
            try:
                alive = worker.pipe.poll() and worker.pipe.recv()
            except (EOFError, OSError):
                alive = False
            worker.process.kill()
            if not alive:
                return said.format(first)
        return ", not when run again"


# ---- the report ----


class Report:
    """What was found so far, in memory and in the file."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.seed = options.seed
        self.done: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
        self.cases: Counter[str] = Counter()
        self.failures: dict[str, list[tuple[str, int, str]]] = {}
        self.counts: Counter[str] = Counter()
        self.pieces: set[Piece] = set()
        self.file: TextIO | None = None
        if options.state is not None:
            self._open(options.state, options.resume)

    def _open(self, path: Path, resume: bool) -> None:
        if resume and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    stored = json.loads(line)
                except ValueError:  # the process ended while it wrote
                    continue
                if stored["seed"] != self.seed:
                    sys.exit(f"{path} is of seed {stored['seed']}; give --seed {stored['seed']}")
                self._count(Piece(*stored["piece"]), stored["counts"], stored["failures"])
        elif path.exists() and path.stat().st_size:
            sys.exit(f"{path} is there; give --resume to go on, or another file")
        self.file = path.open("a", encoding="utf-8")

    def is_done(self, piece: Piece) -> int:
        """The number of cases of a batch that are done."""
        if piece in self.pieces:
            return piece.last - piece.first
        parts = (p for p in self.pieces if p.kind == piece.kind)
        parts = (p for p in parts if piece.first <= p.first < piece.last)
        return sum(p.last - p.first for p in parts)

    def add(self, piece: Piece, counts: dict[str, int], failures: list[Any]) -> None:
        self._count(piece, counts, failures)
        if self.file is not None:
            stored = {"seed": self.seed, "piece": piece, "counts": counts, "failures": failures}
            self.file.write(json.dumps(stored) + "\n")
            self.file.flush()

    def _count(self, piece: Piece, counts: dict[str, int], failures: list[Any]) -> None:
        from fuzz_oracles import Failure

        self.pieces.add(piece)
        self.cases[piece.kind] += piece.last - piece.first
        self.done[piece.kind].update(counts)
        for number, *rest in failures:
            failure = Failure(*rest)
            key = failure.key()
            self.counts[key] += 1
            cases = self.failures.setdefault(key, [])
            if len(cases) < SHOWN:
                cases.append((piece.kind, number, failure.what))

    def summary(self, seconds: float) -> bool:
        """Print all; return whether there was a failure."""
        from fuzz_oracles import NOTED

        for kind in KINDS:
            if self.cases[kind]:
                what = ", ".join(f"{name} {n}" for name, n in self.done[kind].most_common())
                print(f"{self.cases[kind]} {kind}: {what}")
        print(f"{seconds:.0f} s")
        failed: Counter[str] = Counter()
        for key in sorted(self.counts, key=lambda k: (k.split(" | ")[0], -self.counts[k])):
            kind, where, _ = key.split(" | ", 2)
            failed[kind] += self.counts[key]
            cases = self.failures[key]
            names = " ".join(f"{what}:{number}" for what, number, _ in cases)
            print(
                f"  {self.counts[key]:6d}  {kind} | {where} | {cases[0][2][:220]}\n{'':10}{names}"
            )
        print("failures: " + (", ".join(f"{k} {n}" for k, n in failed.most_common()) or "none"))
        return any(kind not in NOTED for kind in failed)


# ---- what to run ----


def pieces(options: argparse.Namespace, report: Report) -> Iterator[Piece]:
    """The batches, all kinds in turn, each in proportion to how many are wanted."""
    wanted = {kind: getattr(options, kind) for kind in KINDS}
    at = dict.fromkeys(KINDS, 0)
    spent = dict.fromkeys(KINDS, 0.0)
    began = time.monotonic()
    while True:
        if options.seconds is not None:
            if time.monotonic() - began > options.seconds:
                return
            kind = min(KINDS, key=lambda k: at[k] / BATCH[k] + spent[k])
        else:
            open_kinds = [k for k in KINDS if at[k] < wanted[k]]
            if not open_kinds:
                return
            kind = min(open_kinds, key=lambda k: at[k] / wanted[k])
        size = BATCH[kind] if options.seconds is None else BATCH[kind] // 5
        last = at[kind] + size if options.seconds else min(at[kind] + size, wanted[kind])
        piece = Piece(kind, at[kind], last)
        at[kind] = last
        done = report.is_done(piece)
        if done < last - piece.first:
            yield piece


def one(seed: int, name: str) -> int:
    """Run a case here, and say what it is; return the exit status."""
    kind, _, number = name.rpartition(":")
    found = 0
    for each in [kind] if kind else KINDS:
        case = judged(seed, each, int(number))
        print(f"{each}:{number}  {case.where}")
        for argument, value in case.given.items():
            print(f"    {argument} = {value!r}")
        print(f"  {case.outcome}")
        if case.error is not None:
            traceback.print_exception(case.error, file=sys.stdout)
        for failure in case.found:
            print(f"  FAILURE {failure.kind}: {failure.what}")
        found += len(case.found)
    return int(found > 0)


def main(arguments: list[str]) -> int:
    """Run what the arguments say; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", help="run one case here: doors:NUMBER, or NUMBER")
    parser.add_argument("--doors", type=int, default=20000, help="number of cheap calls")
    parser.add_argument("--fits", type=int, default=2000)
    parser.add_argument("--graphs", type=int, default=5000)
    parser.add_argument("--seconds", type=float, help="as many as this takes, of all kinds")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--limit",
        type=float,
        default=60.0,
        help="seconds that a call may take, longer where others share the cores",
    )
    parser.add_argument("--state", type=Path, help="file of JSON lines")
    parser.add_argument("--resume", action="store_true", help="leave out what --state has")
    options = parser.parse_args(arguments)
    if options.case is not None:
        return one(options.seed, options.case)
    if options.resume and options.state is None:
        parser.error("--resume needs --state")
    report = Report(options)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    with contextlib.suppress(KeyboardInterrupt):
        Runner(options, report).run(pieces(options, report))
    return int(report.summary(time.monotonic() - began))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
