"""Batteries: all losses, schemes and schedules with all engines, from the registries.

What is legal is asked of :func:`epfast.gaussian.table.legal`, so that a new loss, scheme,
schedule or row of a table is tested where it goes, and skipped where it is refused.
"""

from dataclasses import MISSING, fields
from typing import Any, NamedTuple

import numpy as np
import pytest

from epfast import fit_gp, fit_linear, losses, schedules, schemes
from epfast.gaussian import table
from epfast.gaussian.fit_linear import sparse_form
from epfast.gaussian.prior import KernelPrior, PriorArguments, checked_kernel
from epfast.gaussian.rows import Data, data_of
from epfast.gaussian.table import ENGINES, engine_of, legal
from tests.oracles.data import rbf

LOSSES = {name: kind() for name, kind in losses.NAMED.items()}
#: losses of the margin y h, y = -1 or +1
MARGINS = {name: loss for name, loss in LOSSES.items() if loss.by_margin}
SCHEMES = {name: kind() for name, kind in schemes.NAMED.items()}
#: but for nearest rows, whose door are the estimators
ROWS = {key: row for key, row in ENGINES.items() if key[0] != "nearest"}
TABLES = {
    wing: {key: row for key, row in ROWS.items() if (key[0] == "process") == (wing == "gp")}
    for wing in ("linear", "gp")
}
#: of the schedules of a battery, so few that what does not converge ends soon
SWEEPS = 3


def variants(kind):
    """A schedule class in each of its orders: as it is; with a damping and a power."""
    names = {field.name: field for field in fields(kind) if field.init}
    given: dict[str, Any] = {
        name: 3
        for name, field in names.items()
        if field.default is MISSING and field.default_factory is MISSING
    }
    given |= {name: SWEEPS for name in ("sweeps", "steps") if name in names}
    given |= {"tol": 0.0} if "tol" in names else {}
    numbers = {"damping": 0.6, "power": 0.8}
    for order in schedules.ORDERS if "order" in names else (None,):
        for more in ({}, {name: value for name, value in numbers.items() if name in names}):
            try:
                yield kind(**given | more | ({} if order is None else {"order": order}))
            except ValueError:  # an order that is not one of this schedule
                break
            if not more and not any(name in names for name in numbers):
                break


#: every schedule, by the sites that it stores
SCHEDULES: dict[str, list[Any]] = {}
for _name in schedules.__all__:
    _kind = getattr(schedules, _name)
    if isinstance(_kind, type) and hasattr(_kind, "__dataclass_fields__"):
        SCHEDULES.setdefault(_kind.stores, []).extend(variants(_kind))


class Case(NamedTuple):
    """A row of a table with a schedule, a scheme and a loss, which are legal together."""

    wing: str
    covariance: str
    factor: str
    schedule: Any
    scheme: str
    loss: str

    def __str__(self):
        numbers = [self.schedule.order, self.schedule.damping or "", self.schedule.power or ""]
        schedule = "-".join(map(str, [type(self.schedule).__name__, *numbers]))
        row = [self.wing, self.covariance, self.factor]
        return "-".join([*row, schedule, self.scheme, self.loss]).replace("--", "-")


def battery(items):
    """A test of these cases, with groups by row of the table, schedule, scheme and loss."""

    def mark(test):
        groups = pytest.mark.cover(
            lambda case: (*case[:3], case.schedule.stores),
            lambda case: (type(case.schedule), case.schedule.order),
            lambda case: (case.factor, case.scheme),
            lambda case: case.loss,
        )
        return groups(pytest.mark.parametrize("case", list(items), ids=str)(test))

    return mark


def is_legal(wing, covariance, factor, schedule, scheme, loss):
    """Whether the door lets it in."""
    try:
        legal(covariance, factor, schedule, SCHEMES[scheme], LOSSES[loss], {})
    except ValueError:
        return False
    return True


def cases():
    """All that is legal."""
    for wing, cells in TABLES.items():
        for covariance, factor, stores in cells:
            for schedule in SCHEDULES[stores]:
                for scheme in SCHEMES:
                    for loss in LOSSES:
                        case = Case(wing, covariance, factor, schedule, scheme, loss)
                        if is_legal(*case):
                            yield case


def intervals(h, rng):
    """Ends about h, (n, 2): some infinite, some equal."""
    lower, upper = h - rng.exponential(size=len(h)), h + rng.exponential(size=len(h))
    kind = rng.integers(0, 4, size=len(h))
    lower = np.where(kind == 0, -np.inf, np.where(kind == 3, h, lower))
    return np.column_stack([lower, np.where(kind == 1, np.inf, np.where(kind == 3, h, upper))])


def responses_of(loss, h, rng):
    """Responses that the loss takes, at latent values h (n,)."""
    n = len(h)
    h = h + 0.5 * rng.normal(size=n)
    trials = rng.integers(1, 6, size=n)
    for y in (
        h,
        np.exp(h),
        np.where(h > 0, 1.0, -1.0),
        np.minimum(rng.poisson(np.exp(h)), 20),
        np.digitize(h, (-1.0, 1.0)),
        intervals(h, rng),
        np.column_stack([rng.binomial(trials, 1.0 / (1.0 + np.exp(-h))), trials]),
    ):
        try:
            loss.responses("y", y, n)
        except (ValueError, TypeError):
            continue
        return y
    raise AssertionError(f"no responses for {loss!r}: add a kind above")


def rows(loss, n=24, d=3, seed=0):
    """X and responses that the loss takes."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, responses_of(loss, X @ np.linspace(1.0, -0.5, d), rng)


def arguments(case):
    """What the case is for a door, beside rows."""
    given = {"loss": LOSSES[case.loss], "scheme": SCHEMES[case.scheme], "schedule": case.schedule}
    if case.wing == "linear":
        size = 5 if case.factor == "minibatch" else None
        given |= {"posterior": case.covariance, "batch_size": size}
    return given


def fit(case, **given):
    """Fit a case through its door."""
    X, y = rows(LOSSES[case.loss])
    if case.wing == "gp":
        return fit_gp(rbf(X), y, **arguments(case), **given)
    return fit_linear(X, y, **arguments(case), **given)


def engine(case):
    """The engine of a case."""
    X, y = rows(LOSSES[case.loss])
    if case.wing == "linear":
        chosen = table.choose(table.Request(**arguments(case)))
        if case.covariance == "sparse":
            form = sparse_form(X, PriorArguments(), None, None, None, "sparse")
            return engine_of(chosen.problem(data_of(form[0], y, None, chosen.loss), form[1]))
        full = case.covariance == "full"
        prior = PriorArguments().prior(X.shape[1], full)
        return engine_of(chosen.problem(data_of(X, y, None, chosen.loss), prior))
    loss, scheme = LOSSES[case.loss], SCHEMES[case.scheme]
    schedule = case.schedule.filled(power=1.0, damping=1.0)
    chosen = table.Choices(loss, scheme, schedule, "process", None)
    data, kernel = Data(None, loss.responses("y", y, len(y))), checked_kernel(rbf(X), False, 0.0)
    problem = chosen.problem(data, KernelPrior(kernel))
    return TABLES["gp"][case.covariance, case.factor, schedule.stores].engine(problem)
