"""Records of fits: what is kept in a file, and how far the results of a library are from it.

``many.py`` and ``beliefs.py`` have the fits.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import epfast
from epfast import backend
from tests.golden.fits import ABSENT, At, Bounds, Data, Fit, Numbers, numbers as common_numbers

SETTLED, ONCE, SEARCHED = Bounds(1e-7, 1e-6), Bounds(1e-12, 1e-9), Bounds(1e-5, 1e-5)
#: quantities by group and fit
Kept = dict[str, dict[str, Numbers]]


# ---- what is looked at ----


def numbers(fit: Fit) -> tuple[Numbers, bool]:
    """What a fit gives, by the name of each quantity, and whether it says that it converged."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = fit.call()
        if isinstance(result, tuple) and not isinstance(result, At):
            result = {str(k): part for k, part in enumerate(result)}
        if isinstance(result, dict):
            converged = bool(result.pop("converged", True))
            return {k: np.ravel(np.asarray(v, np.float64)) for k, v in result.items()}, converged
        found, converged = common_numbers(fit._replace(call=lambda: result))
        schedule = getattr(getattr(result, "result", result), "schedule", None)
        converged = converged or not getattr(schedule, "tol", 1.0)
        if hasattr(result, "get_params"):
            found |= of_estimator(result, fit.new)
    return found, converged


def of_estimator(model: Any, new: tuple[Any, ...]) -> Numbers:
    """Posteriors, hyper-parameters and predictions of an estimator."""
    posts = model.posteriors_ if hasattr(model, "posteriors_") else [model.posterior_]
    quantities: dict[str, Callable[[], Any]] = {
        "posterior mean": lambda: np.concatenate([np.ravel(post.mean) for post in posts]),
        "posterior variance": lambda: np.concatenate([np.ravel(post.variance) for post in posts]),
        "coefficients": lambda: np.append(model.coef_, model.intercept_),
        "prior_variance_": lambda: model.prior_variance_,
        "kernel": lambda: np.exp(model.kernel_.theta),
        "loss": lambda: [
            getattr(loss, name)
            for loss in (model.loss_ if isinstance(model.loss_, list) else [model.loss_])
            for name in loss.learnable
        ],
        "coupling_": lambda: model.coupling_,
        "hyper": lambda: model.posterior_.hyper.to_numpy(np.float64),
    }
    found: Numbers = {}
    for name, compute in quantities.items():
        try:
            found[name] = np.ravel(np.asarray(compute(), dtype=np.float64))
        except ABSENT:
            continue
    if new and not hasattr(model, "predict_proba"):
        mean, sd = model.predict(*new, return_std=True)
        found |= {"predict mean": np.ravel(mean), "predict variance": np.ravel(sd) ** 2}
    return found


class Distance(NamedTuple):
    """How far a quantity is from the one that is kept."""

    size: float
    unit: str
    bound: float

    def beyond(self) -> float:
        """In units of its bound."""
        return self.size / self.bound


def scale_of(name: str, kept: Numbers) -> tuple[Any, str]:
    """What a distance of a quantity is measured by, and the word for it."""
    old = np.abs(kept[name])
    if name.startswith(("log_evidence", "loo", "nats")):
        return 1.0, "nats"
    if name == "proba":
        return 1.0, "of probability"
    if name.endswith("variance"):
        return old, "of itself"
    variance = kept.get(name[: -len("mean")] + "variance") if name.endswith("mean") else None
    if variance is not None and variance.shape == old.shape and np.isfinite(variance).all():
        return np.sqrt(variance), "sd"
    most = np.max(old, where=np.isfinite(old), initial=0.0)
    return np.maximum(old, 1e-3 * most), "of itself"


def distances(kept: Numbers, found: Numbers, bounds: Bounds) -> dict[str, Distance]:
    """How far each quantity is from the one that is kept."""
    apart = {name: Distance(np.inf, "missing", 1.0) for name in kept.keys() ^ found.keys()}
    for name in kept.keys() & found.keys():
        old, new = kept[name], found[name]
        if new.shape != old.shape or not np.array_equal(np.isfinite(new), np.isfinite(old)):
            apart[name] = Distance(np.inf, "of another shape", 1.0)
            continue
        scale, unit = scale_of(name, kept)
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            far = np.abs(new - old) / scale
        far = np.where(np.isfinite(old) & (new != old), far, 0.0)
        bound = bounds.nats if unit == "nats" else bounds.sd
        apart[name] = Distance(
            float(far.max(initial=0.0)), unit, 2.0 * bound if name.endswith("variance") else bound
        )
    return apart


def is_same(kept: Numbers, found: Numbers) -> bool:
    """Whether all bits are those that are kept."""
    return kept.keys() == found.keys() and all(
        kept[name].shape == new.shape and kept[name].tobytes() == new.tobytes()
        for name, new in found.items()
    )


class Outcome(NamedTuple):
    """What became of a fit: "same" bits, "near" by the tight bound, "searched" or "beyond"."""

    verdict: str
    said: str = ""


def outcome(kept: Numbers | None, fit: Fit, bounds: Bounds) -> Outcome:
    """Run a fit and judge it."""
    if kept is None:
        return Outcome("beyond", "is not kept")
    try:
        found, _ = numbers(fit)
    except Exception as error:
        return Outcome("beyond", f"raises {type(error).__name__}: {error}")
    if is_same(kept, found):
        return Outcome("same")
    name, worst = max(distances(kept, found, bounds).items(), key=lambda one: one[1].beyond())
    said = f"{name} is {worst.size:.2g} {worst.unit} off, of {worst.bound:.2g}"
    if not worst.beyond() <= 1.0:
        return Outcome("beyond", said)
    tight = Bounds(min(bounds.sd, SETTLED.sd), min(bounds.nats, SETTLED.nats))
    near = all(one.beyond() <= 1.0 for one in distances(kept, found, tight).values())
    return Outcome("near" if near else "searched", said)


# ---- the file ----


def facts() -> list[str]:
    """What bits depend on besides the library."""
    build = backend.build_config()
    threads = os.environ.get("OPENBLAS_NUM_THREADS", "")
    names = ("numpy", "scipy", "simd", "lapack", "compiler", "buildtype")
    versions = [f"{name} {build[name]}" for name in names]
    return [*versions, f"scikit-learn {version('scikit-learn')}", f"threads of BLAS {threads}"]


class Record(NamedTuple):
    """Fits in groups, the bounds of each group, and the file that keeps their results."""

    file: Path
    groups: dict[str, tuple[Callable[[Data], Iterator[Fit]], Bounds]]

    def outcomes(
        self, group: str, kept: Kept, data: Data | None = None, only: str = ""
    ) -> Iterator[tuple[str, Outcome]]:
        """What became of the fits of a group, and those that are kept and not among the fits."""
        make, bounds = self.groups[group]
        before, seen = kept.get(group, {}), set()
        for fit in make(data or Data()):
            name = f"{group} | {fit.name}"
            assert name not in seen, f"two fits are named {name}"
            seen.add(name)
            if only in name:
                yield name, outcome(before.get(fit.name), fit, bounds)
        for missing in before:
            name = f"{group} | {missing}"
            if name not in seen and only in name:
                yield name, Outcome("beyond", "is kept, and not among the fits")

    def read(self) -> tuple[Kept, list[str]]:
        """What the file holds, by group, fit and quantity; and the facts of its record."""
        with np.load(self.file) as file:
            parts = np.split(file["numbers"], np.cumsum(file["sizes"])[:-1])
            names, recorded = "".join(map(chr, file["names"])).split("\n"), file["facts"].tolist()
        found: Kept = {}
        for name, part in zip(names, parts, strict=True):
            group, fit, quantity = name.split(" | ")
            found.setdefault(group, {}).setdefault(fit, {})[quantity] = part
        return found, recorded

    def write(self, only: str) -> None:
        """Keep what the fits with this in their name give now, the others as they are kept.

        A fit that raises ends it.
        """
        kept, recorded = self.read() if only else ({}, facts())
        flat: Numbers = {}
        for group, (make, _) in self.groups.items():
            began, count = time.perf_counter(), 0
            for fit in make(Data()):
                name, converged = f"{group} | {fit.name}", True
                if only in name:
                    found, converged = numbers(fit)
                    count += 1
                else:
                    found = kept[group][fit.name]
                if not converged:
                    print(f"  {name}: not converged")
                assert found, f"{name} gives nothing"
                parts = {f"{name} | {key}": part for key, part in found.items()}
                assert not parts.keys() & flat.keys(), f"two fits are named {name}"
                flat |= parts
            if count:
                print(f"{group}: {count} fits, {time.perf_counter() - began:.1f} s", flush=True)
        np.savez_compressed(
            self.file,
            names=np.frombuffer("\n".join(flat).encode("ascii"), dtype=np.uint8),
            sizes=np.array([part.size for part in flat.values()]),
            numbers=np.concatenate(list(flat.values())),
            facts=np.array(recorded),
        )
        print(f"{self.file}: {self.file.stat().st_size / 1000:.0f} kB")

    def compare(self, only: str, nudge: float) -> bool:
        """Print how far the results are from those kept. Whether none is beyond its bounds."""
        kept, recorded = self.read()
        for here, there in zip(facts(), recorded, strict=True):
            if here != there:
                print(f"here {here}, of the record {there}: bits may differ")
        began, verdicts = time.perf_counter(), Counter[str]()
        for group in self.groups:
            for name, found in self.outcomes(group, kept, Data(nudge), only):
                verdicts[found.verdict] += 1
                if found.verdict in ("beyond", "searched"):
                    print(f"{found.verdict:8} {name}: {found.said}", flush=True)
        print(
            f"{sum(verdicts.values())} fits, {time.perf_counter() - began:.0f} s: "
            f"{verdicts['same']} have the same bits, {verdicts['near']} are within the tight "
            f"bounds, {verdicts['searched']} within those of a search, {verdicts['beyond']} beyond"
        )
        return verdicts["beyond"] == 0

    def main(self, doc: str) -> int:
        """See the module."""
        parser = argparse.ArgumentParser(description=doc.splitlines()[0])
        parser.add_argument("--write", action="store_true", help="keep the results of this library")
        parser.add_argument("--compare", action="store_true", help="the default")
        parser.add_argument("--only", default="", help="the fits with this in their name")
        parser.add_argument("--nudge", type=float, default=0.0, help="relative error of the rows")
        options = parser.parse_args()
        if options.write and (options.compare or options.nudge):
            parser.error("--write keeps fits as they are, and takes --only alone beside it")
        print(f"epfast of {Path(epfast.__file__).parent}", flush=True)
        faulthandler.enable()  # says in which fit compiled code falls
        if options.write:
            self.write(options.only)
            return 0
        return 0 if self.compare(options.only, options.nudge) else 1
