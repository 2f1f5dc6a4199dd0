"""Whether two builds of epfast give the same numbers: one small fit of every combination.

    python tools/same_results.py record FILE.npz
    python tools/same_results.py compare FILE.npz [--tolerance 1e-10] [--rounding OTHER.npz]
                                                  [--only 'gp *'] [--records]
    python tools/same_results.py list [--only PATTERN]

``record`` runs all cases and stores what they give. ``compare`` runs them again, with this build,
and prints what differs from the file: bit for bit (NaN equals NaN), or with a tolerance relative to
the largest entry of the array. The exit status is 1 if anything differs, is missing or raises.

A case is plain data (``same_results_cases.py``), and its name is that data. One function per entry
point turns it into a call (``same_results_calls.py``), in the arguments of 0.1.0 or of the versions
after it, so that a file recorded with one serves the other. A combination that is refused
(ValueError, TypeError) is recorded as such; that a later build accepts it is no difference, and
only told. A few fits amplify rounding without bound (no convergence); a second file that the same
build recorded under EPFAST_SIMD=baseline shows which, for --rounding. ``change``, ``converged``
and the counts of refused sites are compared with --records.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

# more threads may sum in another order; before NumPy is imported
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import same_results_calls as calls
from same_results_calls import Spec
from same_results_cases import SCHEDULES, cases, ep
from scipy import sparse

import epfast

#: quantities whose meaning may change start with this; compared only with --records
RECORD = "~"
#: what may differ where a fit stops by a tolerance (``settles``) and not after a number of sweeps
SETTLED = 1e-6
#: and times what the file of --rounding differs
AMPLIFIED = 10.0
#: quantities that are near 0 where all is well: their differences are absolute
SMALL = ("residual", "violation", "~change", "~violation")

# ---- what is looked at ----


class Notes(dict[str, Any]):
    """Quantities by name: arrays, or the name of what they raised."""

    def take(self, name: str, compute: Callable[[], Any]) -> Any:
        """Note a number, an array, a named tuple of them, or an error; pass over None."""
        try:
            value = compute()
        except AttributeError:  # this version, or this kind of result, does not have it
            return None
        except Exception as error:
            self[name] = type(error).__name__
            return None
        if value is None:
            return None
        if isinstance(value, tuple):
            fields = getattr(value, "_fields", range(len(value)))
            for key, part in zip(fields, value, strict=True):
                self[f"{name}.{key}"] = np.asarray(part, dtype=np.float64)
        else:
            self[name] = np.asarray(value, dtype=np.float64)
        return value

    def attributes(self, thing: Any, names: str, prefix: str = "") -> None:
        for name in names.split():
            self.take(prefix + name, lambda name=name: getattr(thing, name))

    def history(self, post: Any) -> None:
        records = post.history
        self.take("history.log_evidence", lambda: [info.log_evidence for info in records])
        for name in ("cost", "factor_cost"):
            if getattr(records[0], name, None) is not None:
                self.take(f"history.{name}", lambda n=name: [getattr(r, n) for r in records])
        for name in ("change", "n_refused", "n_failed"):
            self.take(f"{RECORD}{name}", lambda n=name: [getattr(r, n) for r in records])
        for name in ("converged", "n_sweeps", "n_refused"):
            self.take(f"{RECORD}last.{name}", lambda n=name: getattr(post, n))


def _positive(probability: np.ndarray) -> np.ndarray:
    """Of the label +1, in whatever shape it comes."""
    return probability if probability.ndim == 1 else probability[:, 1]


def _predictions(notes: Notes, post: Any, new: tuple[Any, ...], prefix: str = "") -> None:
    notes.take(f"{prefix}latent", lambda: post.predict_latent(*new))
    notes.take(f"{prefix}proba", lambda: _positive(post.predict_proba(*new)))


def _reloaded(notes: Notes, post: Any, new: tuple[Any, ...], loss: str) -> None:
    """Predictions after a save and a load."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "post.npz")
        try:
            post.save(path)
            found = (
                epfast.load(path, loss=calls.LOSSES[loss])
                if loss in calls.CUSTOM
                else epfast.load(path)
            )
        except Exception as error:
            notes["loaded"] = type(error).__name__
            return
    notes.attributes(found, "log_evidence", "loaded.")
    _predictions(notes, found, new, "loaded.")


def _residual_of(case: Spec) -> str:
    """Its name: that of sites which rows share is a change, whose definition moved."""
    shares = case["schedule"][0] in ("SEP", "AEP", "DSEP", "DAEP")
    return f"{RECORD}residual" if shares or case.get("batch_size") else "residual"


LINEAR = "mean variance covariance precision shift sites log_evidence"


def see_linear(notes: Notes, post: Any, case: Spec) -> None:
    """Of a linear model."""
    rows: Any = calls.NEW_ROWS[post.mean.size]
    if case.get("rows") == "sparse":
        rows = sparse.csr_matrix(rows)
    notes.attributes(post, LINEAR)
    notes.take(_residual_of(case), lambda: post.residual)
    notes.history(post)
    _predictions(notes, post, (rows,))
    notes.take("sample", lambda: post.sample(2, 0))
    if case["posterior"] == "full" and post.sites is not None:
        notes.take("loo", lambda: post.loo_log_predictive())
    _reloaded(notes, post, (rows,), case["loss"])
    if case.get("after") == "partial_fit":
        X, y = calls.DATA["further"]
        one_pass = case["schedule"][0] == "ADF"
        given = {"schedule": calls.schedule_of(SCHEDULES["ADF"] if one_pass else ep(sweeps=2))}
        if "weights" in case:
            given["weights"] = 0.5 + np.arange(len(y)) % 2
        more = post.partial_fit(X, y, **given)
        notes.attributes(more, LINEAR, "more.")
        if more.sites is not None:
            notes.take("more.loo", lambda: more.loo_log_predictive())
    if case.get("after") == "remove":
        less = post.remove([1, 5, 20])
        notes.attributes(less, LINEAR, "less.")
        notes.take("less.loo", lambda: less.loo_log_predictive())


def see_gp(notes: Notes, post: Any, case: Spec) -> None:
    """Of a process."""
    notes.attributes(post, "mean variance alpha covariance marginal_precision sites relaxed")
    notes.attributes(post, "log_evidence")
    notes.take(_residual_of(case), lambda: post.residual)
    notes.history(post)
    new: tuple[Any, ...] = (calls.K_STAR, np.full(len(calls.K_STAR), 4.0))
    if "rank" in case:
        notes.attributes(post.factor, "G pivots residual traces", "factor.")
        new = (calls.K_STAR[:, post.pivots], new[1])
        notes.take("latent without rest", lambda: post.predict_latent(new[0], None))
    _predictions(notes, post, new)
    # the signs of eigenvectors may change by rounding
    notes.take("sample" if "rank" in case else f"{RECORD}sample", lambda: post.sample(2, 0))
    if post.sites is not None:
        notes.take("loo", lambda: post.loo_log_predictive())
    if "relaxation" in case:
        notes.take("energies", lambda: post.relaxed_energies())
    elif "rank" not in case:
        notes.take("gradient", lambda: post.log_evidence_gradient(calls.DK))
        if case["loss"].startswith("noisy_step"):
            notes.take("gradient by epsilon", lambda: post.log_evidence_gradient_epsilon())
    _reloaded(notes, post, new, case["loss"])


def see_svm(notes: Notes, svm: Any, case: Spec) -> None:
    """Of a support vector machine."""
    notes.attributes(svm, "alpha bias dual_objective violation support dual_coef gamma")
    X = calls.NEW_ROWS[6]
    new = X @ calls.DATA["six"][0].T if case["kernel"] == "precomputed" else X
    notes.take("decision", lambda: svm.decision_function(new))
    notes.take("history.dual", lambda: [info.dual_objective for info in svm.history])
    for name in ("iterations", "kernel_evaluations", "violation"):
        notes.take(f"{RECORD}{name}", lambda n=name: [getattr(r, n) for r in svm.history])


def see_classifier(notes: Notes, model: Any, case: Spec) -> None:
    """Of a face for scikit-learn."""
    notes.attributes(model, "coef_ intercept_ coef_covariance_ log_evidence_ prior_variance_")
    notes.attributes(model, "log_marginal_likelihood_value_")
    notes.attributes(model, "n_iter_ converged_", RECORD)
    rows = calls.NEW_ROWS[6][:, :-1] if case["entry"] == "LinearClassifier" else calls.NEW_INPUTS
    notes.take("latent", lambda: model.predict_latent(rows))
    notes.take("decision", lambda: model.decision_function(rows))
    notes.take("proba", lambda: model.predict_proba(rows))
    if case["entry"] == "GPClassifier":
        notes.take("theta", lambda: model.kernel_.theta)
        if "rank" not in case and case["optimizer"]:
            theta = model.kernel_.theta
            notes.take("evidence", lambda: model.log_marginal_likelihood(theta, eval_gradient=True))


def see_backend(notes: Notes, result: Any, case: Spec) -> None:
    """Of a primitive."""
    notes.take("result", lambda: tuple(result))


ENTRIES: dict[str, tuple[Callable[[Spec], Any], Callable[[Notes, Any, Spec], None]]] = {
    "linear": (calls.fit_linear, see_linear),
    "gp": (calls.fit_gp, see_gp),
    "svm": (calls.fit_svm, see_svm),
    "LinearClassifier": (calls.fit_linear_classifier, see_classifier),
    "GPClassifier": (calls.fit_gp_classifier, see_classifier),
    "backend": (calls.call_backend, see_backend),
}

# ---- record and compare ----


def run(case: Spec) -> tuple[str, str, Notes]:
    """How a case went ("ok", "refused", "absent", or what it raised), why, and its quantities."""
    fit, see = ENTRIES[case["entry"]]
    notes = Notes()
    try:
        result = fit(case)
    except calls.AbsentError as error:
        return "absent", str(error), notes
    except Exception as error:
        kind = type(error)
        status = "refused" if kind in (ValueError, TypeError) else kind.__name__
        return status, f"{kind.__name__}: {error}", notes
    try:
        see(notes, result, case)
    except Exception as error:
        return "fails later", f"{type(error).__name__}: {error}", notes
    return "ok", "", notes


class Chosen(dict[str, Spec]):
    """The cases whose names match a pattern; each is told before it runs, if wanted."""

    def __init__(self, pattern: str, trace: bool) -> None:
        super().__init__({name: case for name, case in cases().items() if fnmatch(name, pattern)})
        self.pattern, self.trace = pattern, trace

    def runs(self) -> Iterator[tuple[str, Spec]]:
        for name, case in self.items():
            if self.trace:
                print(name, file=sys.stderr, flush=True)
            yield name, case


def record(path: str, chosen: Chosen) -> int:
    """Write statuses, names, and all numbers behind each other."""
    status, places, raised = {}, {}, {}
    numbers, filled, began = [], 0, time.perf_counter()
    for name, case in chosen.runs():
        status[name], _, notes = run(case)
        for key, value in notes.items():
            full_name = f"{name} | {key}"
            if isinstance(value, str):
                raised[full_name] = value
                continue
            places[full_name] = filled, value.shape
            numbers.append(value.ravel())
            filled += value.size
    facts = epfast.backend.build_config() | {"new": calls.NEW}
    index = json.dumps({"facts": facts, "status": status, "places": places, "raised": raised})
    np.savez_compressed(path, index=np.array(index), numbers=np.concatenate(numbers))
    _summary(status, len(places), began)
    for name, how in status.items():
        if how not in ("ok", "refused"):
            print(f"  {how}: {name}")
    return 0


def _summary(status: dict[str, str], arrays: int, began: float) -> None:
    counts: dict[str, int] = {}
    for how in status.values():
        counts[how] = counts.get(how, 0) + 1
    shown = ", ".join(f"{count} {how}" for how, count in sorted(counts.items()))
    seconds = time.perf_counter() - began
    print(f"{len(status)} cases ({shown}), {arrays} arrays, {seconds:.1f} s")


def difference(old: np.ndarray, new: np.ndarray, least: float) -> tuple[bool, float]:
    """Whether all bits are the same, NaN being NaN; and the largest difference.

    The difference is relative to the largest entry, or to ``least`` if that is larger.
    """
    if old.shape != new.shape:
        return False, float("inf")
    missing = np.isnan(old) & np.isnan(new)
    same_bits = old.view(np.uint64) == new.view(np.uint64)
    if (same_bits | missing).all():
        return True, 0.0
    finite = np.isfinite(old) & np.isfinite(new)
    if not (finite | missing | (old == new)).all():
        return False, float("inf")
    gap = float(np.abs(np.where(finite, new - old, 0.0)).max())
    scale = max(least, float(np.abs(old[finite]).max(initial=0.0)))
    return False, gap / scale if scale > 0.0 else gap


class Recorded:
    """What a file holds."""

    def __init__(self, path: str) -> None:
        with np.load(path) as file:
            self.numbers, index = file["numbers"], json.loads(str(file["index"]))
        self.facts, self.status = index["facts"], index["status"]
        self.places, self.raised = index["places"], index["raised"]
        self.keys: dict[str, list[str]] = {}
        for full_name in (*self.places, *self.raised):
            name, key = full_name.split(" | ")
            self.keys.setdefault(name, []).append(key)

    def value(self, name: str, key: str) -> np.ndarray | str:
        full_name = f"{name} | {key}"
        if full_name in self.raised:
            return self.raised[full_name]
        first, shape = self.places[full_name]
        return self.numbers[first : first + int(np.prod(shape, dtype=int))].reshape(shape)


class Comparison:
    """The differences so far."""

    def __init__(
        self, recorded: Recorded, other: Recorded | None, tolerance: float, records: bool
    ) -> None:
        self.recorded, self.other = recorded, other
        self.tolerance, self.records = tolerance, records
        #: what differs, in words; and how often, by entry point and quantity
        self.wrong: list[str] = []
        self.counts: dict[str, int] = {}
        self.accepted: list[str] = []
        self.absent: list[str] = []
        self.added = self.compared = self.settled = self.amplified = 0

    def case(self, name: str, case: Spec) -> str:
        """Run a case, and compare it with the file."""
        was = self.recorded.status.get(name, "not in the file")
        now, why, notes = run(case)
        if now == "absent":
            self.absent.append(f"{name}: {why}")
        elif was == "refused" and now == "ok":
            self.accepted.append(name)
        elif was != now:
            self.tell(case, "status", f"{name}: was {was}, now {now} {why}")
        else:
            keys = self.recorded.keys.get(name, [])
            self.added += len(set(notes) - set(keys))
            for key in keys:
                self.quantity(name, case, key, notes.get(key, "missing"))
        return now

    def quantity(self, name: str, case: Spec, key: str, new: np.ndarray | str) -> None:
        """Compare a quantity of a case, as it is now."""
        settles = case.get("settles", False)
        if not self.records and (key.startswith(RECORD) or (settles and "history" in key)):
            return
        self.compared += 1
        old = self.recorded.value(name, key)
        if isinstance(old, str) or isinstance(new, str):
            was, now = (x if isinstance(x, str) else "an array" for x in (old, new))
            if was != now:
                self.tell(case, key, f"{name} | {key}: was {was}, now {now}")
            return
        least = 1.0 if key in SMALL else 0.0
        same, gap = difference(old, np.asarray(new, order="C"), least)
        if same or (self.tolerance > 0.0 and gap <= self.tolerance):
            return
        if settles and gap <= SETTLED:
            self.settled += 1
        elif gap <= AMPLIFIED * self.rounding(name, key, old, least):
            self.amplified += 1
        else:
            self.tell(case, key, f"{name} | {key}: {gap:.2g}")

    def rounding(self, name: str, key: str, old: np.ndarray, least: float) -> float:
        """How far the other file is from this one, which rounding alone may do."""
        if self.other is None or f"{name} | {key}" not in self.other.places:
            return 0.0
        return difference(old, self.other.value(name, key), least)[1]

    def tell(self, case: Spec, key: str, words: str) -> None:
        self.wrong.append(words)
        what = f"{case['entry']} {key}"
        self.counts[what] = self.counts.get(what, 0) + 1


def compare(chosen: Chosen, found: Comparison, most: int) -> int:
    """Print what differs from a file; 1 if anything does."""
    began = time.perf_counter()
    status = {name: found.case(name, case) for name, case in chosen.runs()}
    for name in found.recorded.status:
        if name not in chosen and fnmatch(name, chosen.pattern):
            found.tell({"entry": name.split()[0]}, "not run", f"{name}: not run")
    for title, lines in (
        ("differs", found.wrong),
        ("accepted now", found.accepted),
        ("an argument that is gone", found.absent),
    ):
        for line in lines[:most]:
            print(f"  {title}: {line}")
        if len(lines) > most:
            print(f"  {title}: {len(lines) - most} more (--most)")
    for what, count in sorted(found.counts.items(), key=lambda pair: -pair[1]):
        print(f"  {count} x {what}")
    facts = found.recorded.facts
    now = epfast.backend.build_config()
    print(f"recorded by {facts['version']} ({facts['simd']}), now {now['version']} ({now['simd']})")
    _summary(status, found.compared, began)
    print(
        f"{len(found.wrong)} differences; {found.settled} arrays of fits that stop by a tolerance "
        f"differ by less than {SETTLED:g}; {found.amplified} arrays differ as rounding makes them; "
        f"{found.added} new quantities; {len(found.accepted)} cases accepted now; "
        f"{len(found.absent)} with an argument that is gone"
    )
    return 1 if found.wrong else 0


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["record", "compare", "list"])
    parser.add_argument("file", nargs="?", help="the .npz file")
    parser.add_argument("--only", default="*", help="pattern of case names, as of the shell")
    parser.add_argument("--tolerance", type=float, default=0.0, help="0 compares bits")
    parser.add_argument("--rounding", help="a file of the same build with other instructions")
    parser.add_argument("--most", type=int, default=100, help="differences that are listed")
    parser.add_argument("--trace", action="store_true", help="print each name before it runs")
    parser.add_argument(
        "--records", action="store_true", help="compare change, n_refused and the like too"
    )
    given = parser.parse_intermixed_args()
    faulthandler.enable()
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    chosen = Chosen(given.only, given.trace)
    if given.command == "list":
        print("\n".join(chosen))
        return 0
    if given.file is None:
        parser.error("a file is needed")
    if given.command == "record":
        return record(given.file, chosen)
    other = Recorded(given.rounding) if given.rounding else None
    found = Comparison(Recorded(given.file), other, given.tolerance, given.records)
    return compare(chosen, found, given.most)


if __name__ == "__main__":
    sys.exit(main())
