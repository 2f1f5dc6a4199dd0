"""Regression by a formula, ``y ~ x + (x | g)``, with group effects, averaged over their sds.

Formulas are read by `formulae <https://bambinos.github.io/formulae>`_, families and default priors
are those of bambi: see :func:`epfast.formula.fit`. ``pip install epfast[formula]``.
"""

from __future__ import annotations

import math
import os
import pickle
import re
import warnings
from collections.abc import Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations, product
from operator import attrgetter
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import interpolate, sparse, special

from epfast import _checks, losses
from epfast._arrays import AnyArray, Array, Indices, Matrix
from epfast.gaussian import IntegratedPosterior
from epfast.gaussian.files import contents
from epfast.gaussian.fit_hyper import fit_hyper
from epfast.gaussian.fit_linear import fit_linear
from epfast.gaussian.posterior import Posterior
from epfast.inference.certificates import Check
from epfast.inference.files import write
from epfast.inference.report import checked_level, ends_of
from epfast.losses import Loss
from epfast.losses.names import own_name
from epfast.priors import LKJ, Gamma, HalfCauchy, HalfNormal, HalfStudentT, Scale

if TYPE_CHECKING:
    from formulae.environment import Environment, VarLookupDict
    from formulae.terms.call import Call
    from formulae.terms.call_resolver import LazyCall
    from formulae.terms.terms import GroupSpecificTerm, Model, Term
    from formulae.terms.variable import Variable
    from formulae.transforms import Proportion
    from pandas import DataFrame, Series

    Data: TypeAlias = DataFrame | Mapping[str, ArrayLike]

__all__ = ["FormulaFit", "fit"]

NEEDED = "epfast.formula needs formulae and pandas: pip install 'epfast[formula]'"
#: names of families in errors: those of bambi and brms. Each other name of such a loss will do
NAMES = (
    *("gaussian", "t", "laplace", "bernoulli", "binomial", "poisson", "negativebinomial"),
    *("gamma", "weibull"),
)
#: for the loss of each family the parameters that are learned, by their names in the table of
#: results and in the loss
FAMILIES: dict[str, dict[str, str]] = {
    "gaussian": {"sigma": "sd"},
    "student_t": {"sigma": "scale", "nu": "df"},
    "laplace_noise": {"b": "scale"},
    "logistic": {},
    "binomial": {},
    "poisson": {},
    "negative_binomial": {"alpha": "size"},
    "gamma_noise": {"alpha": "shape"},
    "weibull": {"alpha": "shape"},
}
#: losses whose linear predictor is a logarithm in the unit of y
OF_LOG = ("gamma_noise", "weibull")
#: the largest size of numbers, and for a response the least range, or size where it is constant
MOST, LEAST = 1e70, 1e-70
#: sd of default priors of slopes in units of y over x, and of sds of groups
WIDE = 2.5
#: largest size of a dense matrix of all columns, and most columns of groups in it. Beyond rows are
#: sparse, with which fits take 1.0 to 1.2 of the time with 40 such columns, .6 with 120, and .4
#: with 320
DENSE, FEW = 5_000_000, 100
#: what is said of effects that are where numeric columns are at their means
AT_MEANS = " at the means"
#: new levels that an error names
NAMED = 5
#: other names in formulas, for errors
AT_HAND = "functions of the caller, log(x), bs(x, df=4), scale(x), poly(x, 2), C(x)"
#: signs of other languages, and what stands for them here
SIGNS = {
    "^": "interactions are (a + b) ** 2, and squares I(a ** 2)",
    ".": "a dot does not stand for all columns; write their names",
}
#: text in quotes, which has no signs of a formula
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")
#: what formulas are made of, for errors
SYNTAX = "+ between terms, one | or || in parentheses for a group term, as in (x | g)"
#: functions that make responses
RESPONSES = ("p", "prop", "proportion", "cbind")
#: ways to write counts of successes
COUNTS = "prop(successes, trials), cbind(successes, failures) or successes | trials(trials)"
#: priors of common terms, scales and correlations, and their names in errors
NORMAL = tuple, "(mean, sd) of a normal prior"
OF_SCALE = Scale, "a prior of epfast.priors, such as HalfNormal(1.0)"
OF_PAIRS = LKJ, "epfast.priors.LKJ, such as LKJ(2.0)"


def cbind(successes: Series, failures: Series) -> Proportion:
    """Counts of successes and failures, as R writes them."""
    from formulae.transforms import proportion

    return proportion(successes, successes + failures)


#: functions and other values that formulas name
Functions = dict[str, Any]
#: what a variable or call of a formula has learned from the data, by names of its parts
Memory = dict[str, Any]
#: prior of a term, mean and sd of a normal one; of an sd or a parameter; of correlations
Prior = tuple[float, float] | Scale | LKJ

#: functions in formulas, in addition to those of formulae and of the caller
FUNCTIONS: Functions = {
    one.__name__: one for one in (np.exp, np.log, np.log10, np.log1p, np.log2, np.sqrt, cbind)
}


class NewRows(NamedTuple):
    """What a formula says of rows."""

    #: columns of the weights, (n, d), dense or sparse, and offsets, (n,)
    rows: Array | sparse.csr_array
    offset: Array
    #: columns of the effects of new levels, (n, e), and the number of the new level, or -1
    new: Array
    level: NDArray[np.intp]


class ModelMatrix:
    """Columns of the terms of a formula: common ones, and effects with a column per level.

    It keeps what columns of new rows need: of the data levels and what transforms have measured,
    of the caller what the formula names.
    """

    def __init__(self, formula: str, family: str, frame: DataFrame, env: VarLookupDict) -> None:
        """env: the environment of the functions in the formula."""
        self.formula, self.family = formula, family
        model, correlated = _read(formula)
        _check_columns(frame, model.var_names)
        frame = _in_order(frame, model.var_names)
        for one in _components([*model.terms, model.response.term]):
            if one.name in frame.columns:
                _check_objects(frame, one)
        self.functions = _borrowed(model, frame, env)
        for term in model.group_terms:
            if all(hasattr(one, "reference") for one in term.factor.components):  # variables
                term.set_data = partial(_set_levels, term, frame)
        model.eval(frame, _environment(self.functions))
        #: names of the components of each common term, None of an intercept
        self.common: list[list[str] | None] = [
            [one.name for one in term.components] if hasattr(term, "components") else None
            for term in model.common_terms
        ]
        terms = [*model.common_terms, *model.group_terms]
        #: what was learned from the data, by the order of the components
        self.memory = [_memory_of(one) for one in _components(terms)]
        kept = [term for term in terms if term.kind != "offset"]
        #: columns of each term, and labels of all columns
        self.terms: dict[str, tuple[int, int]] = {}
        self.labels: list[str] = []
        for term in kept:
            if term.name in self.terms:
                raise ValueError(f"it has two terms that are written {term.name!r}")
            start = len(self.labels)
            self.labels += map(str, term.labels)
            self.terms[term.name] = start, len(self.labels)
        self.n_common = sum(len(term.labels) for term in kept[: -len(model.group_terms) or None])
        #: for each effect, such as "x|g", its term and its columns
        self.effects: dict[str, tuple[str, Indices]] = {}
        factors: list[Factors] = []
        for term in model.group_terms:
            names = ["1"] if term.kind == "intercept" else term.expr.labels
            factors += _factors_of(term.expr)
            for k, name in enumerate(f"{one}|{term.factor.name}" for one in names):
                # columns of a level are next to each other
                columns = np.arange(*self.terms[term.name])[k :: len(names)]
                self.effects[name] = term.name, columns
        if not self.labels:
            raise ValueError("it has only offsets; allowed: an intercept, 1, or other terms")
        #: groups of correlated effects, and all pairs of them, in the order of fit_hyper
        self.blocks: list[tuple[str, ...]] = []
        self.pairs: list[tuple[str, str]] = []
        for group in correlated:
            for factor in dict.fromkeys(one.factor.name for one in group):
                names = {one.name for one in group if one.factor.name == factor}
                of = tuple(name for name, (term, _) in self.effects.items() if term in names)
                self.blocks += [of] * (len(of) > 1)
                self.pairs += [(of[j], of[i]) for i in range(len(of)) for j in range(i)]
        for name in (one for one in self.effects if sum(one in of for of in self.blocks) > 1):
            raise ValueError(
                f"it correlates {name!r} in two terms; allowed: one term, or (x || g) without "
                "correlations"
            )
        #: T (e, e): the effects of a level are T c, and c are those of columns with a mean of 0
        self.turn = np.eye(len(self.effects))
        for at in map(self._places_of, self.blocks):
            self.turn[np.ix_(at, at)] = _turn_of([factors[k] for k in at])
        self._build()
        values, level = self._response_in(frame), getattr(self.response, "reference", None)
        #: levels of a response that is no number
        self.levels = _levels_of(values)
        if level is not None and not values.any():
            raise ValueError(f"{level!r} is not a level of {self.response.name!r}")

    # -- what is kept --

    def _build(self) -> None:
        """Terms that know what was learned, without data."""
        from formulae.terms.terms import Intercept, Term

        model, _ = _read(self.formula)
        parsed = {one.name: one for one in _components(model.common_terms)}
        model.common_terms = [
            Intercept() if names is None else Term(*deepcopy([parsed[name] for name in names]))
            for names in self.common
        ]
        terms, env = [*model.common_terms, *model.group_terms], _environment(self.functions)
        for one, memory in zip(_components(terms), self.memory, strict=True):
            _remind(one, memory, env)
        for term in (*model.common_terms, *(one.expr for one in model.group_terms)):
            parts = getattr(term, "components", [])
            if parts:
                term.kind = parts[0].kind if len(parts) == 1 else "interaction"
        self.response = model.response.term.components[0]
        self.model, self._env = model, env

    def __getstate__(self) -> dict[str, Any]:
        for name, value in self.functions.items():
            try:
                pickle.dumps(value)
            except Exception as error:
                raise TypeError(
                    f"{name!r} of the formula is {_checks.describe(value)}, which cannot be "
                    "pickled; allowed: a function that a module defines, or a column of its values"
                ) from error
        made = "model", "response", "_env"
        state = {name: value for name, value in vars(self).items() if name not in made}
        ufuncs = {
            name: value.__name__ for name, value in self.functions.items() if _of_numpy(value)
        }
        others = {name: value for name, value in self.functions.items() if name not in ufuncs}
        return state | {"functions": others, "ufuncs": ufuncs}

    def __setstate__(self, state: dict[str, Any]) -> None:
        ufuncs = {name: getattr(np, value) for name, value in state["ufuncs"].items()}
        if not all(map(_of_numpy, ufuncs.values())):
            raise ValueError("functions of the formula are none of NumPy")
        functions = {**state["functions"], **ufuncs}
        vars(self).update({key: value for key, value in state.items() if key != "ufuncs"})
        self.functions = functions
        self._build()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # nothing changes it

    def check_written(self) -> None:
        """Refuse functions of the user, and levels of other types, which no file holds."""
        levels = [one for memory in self.memory for one in memory["levels"] or ()]
        for one in (one for one in levels if not isinstance(one, bool | int | float | str)):
            raise ValueError(
                f"{one!r} is a level, which is not written; allowed: numbers and text, or pickle "
                "in place of save"
            )
        for name, value in self.functions.items():
            if not _of_numpy(value) and not isinstance(value, bool | int | float | str):
                raise ValueError(
                    f"{name!r} of the formula is {_checks.describe(value)}, which is not written; "
                    "allowed: functions of formulae and NumPy, pickle in place of save, or a "
                    "column of its values"
                )

    # -- the effects --

    def _places_of(self, members: tuple[str, ...]) -> list[int]:
        return [list(self.effects).index(name) for name in members]

    def turn_of(self, members: tuple[str, ...]) -> Array:
        """The part of ``turn`` of correlated effects, (q, q)."""
        at = self._places_of(members)
        return self.turn[np.ix_(at, at)]

    def correlation(self, values: Array) -> Array:
        """Correlations of the effects of a level, (..., e, e). values: sds, then correlations."""
        names = list(self.effects)
        half = 0.5 * np.eye(len(names)) + np.zeros((*values.shape[:-1], 1, 1))
        for k, (one, other) in enumerate(self.pairs, len(names)):
            half[..., names.index(one), names.index(other)] = values[..., k]
        return np.asarray(half + half.swapaxes(-1, -2))

    def covariance(self, values: Array) -> Array:
        """Covariance of the effects of a level, (..., e, e)."""
        sds = values[..., : len(self.effects)]
        return np.asarray(sds[..., :, None] * self.correlation(values) * sds[..., None, :])

    def of_effects(self, values: Array) -> Array:
        """Hyper-parameters (..., m) of the effects of a level, from those of c; see ``turn``."""
        names = list(self.effects)
        covariance = self.turn @ self.covariance(values) @ self.turn.T
        sds, found = np.sqrt(np.diagonal(covariance, 0, -2, -1)), np.array(values)
        found[..., : len(names)] = sds
        for k, pair in enumerate(self.pairs, len(names)):
            i, j = map(names.index, pair)
            found[..., k] = np.clip(covariance[..., i, j] / (sds[..., i] * sds[..., j]), -1.0, 1.0)
        return found

    # -- rows --

    def rows(
        self, frame: DataFrame, new_levels: str = "error"
    ) -> tuple[Array | sparse.csr_array, Array, Array]:
        """Columns of rows, their offsets, and the columns of the effects of new levels."""
        return self.new_rows(frame, new_levels)[:3]

    def new_rows(self, frame: DataFrame, new_levels: str = "error") -> NewRows:
        """Columns of rows, with those of new levels."""

        def values(term: Term) -> Array:
            if term.kind == "offset":
                columns = term.components[0].call.eval(frame, self._env).x
            else:
                columns = term.eval_new_data(frame)
            evaluated = np.asarray(columns, dtype=np.float64).reshape(len(frame), -1)
            for row in np.flatnonzero(~np.isfinite(evaluated).all(axis=1)):
                raise ValueError(f"{term.name!r} is NaN or infinite in row {row}; allowed: numbers")
            size = np.abs(evaluated).max(initial=0.0)
            if size > MOST:
                raise ValueError(f"{term.name!r} has {size:g} in size; allowed: up to {MOST:g}")
            return evaluated

        _check_columns(frame, {name for term in self.model.terms for name in term.var_names})
        for one in _components(self.model.terms):
            _check_kinds(frame, one)
        n, d = len(frame), len(self.labels)
        common = [term for term in self.model.common_terms if term.kind != "offset"]
        X = np.hstack([np.empty((n, 0)), *map(values, common)])
        offset = sum((values(term)[:, 0] for term in self._offsets), np.zeros(n))
        new, numbers = [np.empty((n, 0))], [np.empty((n, 0), dtype=np.intp)]
        places, entries = [np.broadcast_to(np.arange(self.n_common), X.shape)], [X]
        for term in self.model.group_terms:
            columns = [where for of, where in self.effects.values() if of == term.name]
            level, unseen = term.eval_new_data_group_index(frame)
            count = math.prod(len(one.levels) for one in term.factor.components)
            if unseen:
                _check_levels(term.factor, unseen, new_levels)
            at, seen = values(term.expr), (level < count)[:, None]
            places.append(np.array(columns).T[np.where(seen[:, 0], level, 0)])
            entries.append(np.where(seen, at, 0.0))
            new.append(np.where(seen, 0.0, at))
            numbers.append(np.where(seen, -1, (level - count)[:, None]).repeat(at.shape[1], axis=1))
        rows = X
        if d > self.n_common:
            whole = np.hstack(entries)
            kept = whole != 0.0
            start = np.append(0, np.cumsum(kept.sum(axis=1)))
            rows = sparse.csr_array((whole[kept], np.hstack(places)[kept], start), shape=(n, d))
            small = n * d <= DENSE and d - self.n_common <= FEW
            rows = rows.toarray() if small else rows
        return NewRows(rows, offset, np.column_stack(new), np.column_stack(numbers))

    @property
    def _offsets(self) -> list[Term]:
        return [term for term in self.model.common_terms if term.kind == "offset"]

    @property
    def has_offset(self) -> bool:
        return bool(self._offsets)

    # -- the response --

    def _response_in(self, frame: DataFrame) -> Series | AnyArray:
        """The response of rows as the formula has it: numbers, labels, or counts and trials."""
        one = self.response
        _check_columns(frame, one.var_names)
        if not hasattr(one, "call"):
            values = frame[one.name]
            named = one.reference is not None
            return np.where(values == one.reference, 1.0, 0.0) if named else values
        try:
            values = one.call.eval(frame, self._env)
        except ValueError as error:
            if one.call.callee not in RESPONSES:
                raise
            raise ValueError(f"in {one.name!r} {error}; allowed: {COUNTS}") from error
        if hasattr(values, "successes"):
            return values.eval().astype(np.float64)
        return getattr(values, "data", values) if hasattr(values, "contrast") else values

    def observed(self, frame: DataFrame) -> Array:
        """Responses of rows as the loss takes them."""
        from pandas.api.types import is_numeric_dtype

        loss, values = own_name(self.family), self._response_in(frame)
        of_counts = np.ndim(values) == 2
        if of_counts:
            y = np.asarray(values)
        elif is_numeric_dtype(values):
            y = np.asarray(values, dtype=np.float64)
        else:
            others = [one for one in _levels_of(values) if one not in self.levels]
            if others:
                raise ValueError(
                    f"{self.response.name!r} has the level {others[0]!r}, which the fit does not "
                    f"have; allowed: {', '.join(map(repr, self.levels))}"
                )
            y = np.asarray([self.levels.index(one) for one in values], dtype=np.float64)
        labels = not of_counts and not is_numeric_dtype(values)
        of_two = not of_counts and np.isin(y, (0.0, 1.0)).all() and len(self.levels) in (0, 2)
        right, allowed = {
            "logistic": (of_two, "0 and 1, a variable of two levels, or y['level']"),
            "binomial": (of_counts, f"{COUNTS}; family='bernoulli' for 0 and 1"),
        }.get(loss, (not of_counts and not labels and np.isfinite(y).all(), "finite numbers"))
        if not right:
            raise ValueError(
                f"{self.response.name!r} is not a response of family {self.family!r}; allowed: "
                f"{allowed}"
            )
        return 2.0 * y - 1.0 if loss == "logistic" else y


@dataclass(frozen=True, eq=False, repr=False)
class FormulaFit(Posterior):
    """The result of :func:`epfast.formula.fit`: a posterior whose rows are frames.

    :func:`epfast.compare` takes it, and :func:`epfast.load` reads what ``save`` wrote. A fit can be
    pickled and copied; pickles and files leave the rows out, see ``with_rows``.

    Attributes
    ----------
    formula, family : str
        The arguments of the fit.
    posterior : IntegratedPosterior
        Posterior of all weights: those of the common terms, then those of the group terms. It has
        one point if there are no hyper-parameters.
    labels : tuple of str
        Names of the weights.
    mean, variance, sd : ndarray of shape (d,)
        Of all weights, in the order of ``labels``.
    converged : bool
        Whether all fits converged.
    log_evidence : float
        log p(y), integrated over weights and hyper-parameters.
    """

    kind: ClassVar[str] = "formula"

    formula: str
    family: str
    posterior: IntegratedPosterior
    design: ModelMatrix = field(repr=False)

    def __repr__(self) -> str:
        said = f"log_evidence={self.log_evidence:.4g}, converged={self.converged}"
        return f"FormulaFit({self.formula!r}, family={self.family!r}, {said})"

    problem = property(attrgetter("posterior.problem"))
    state = property(attrgetter("posterior.state"))
    history = property(attrgetter("posterior.history"))
    quantity = property(attrgetter("posterior.quantity"))
    labels = property(attrgetter("posterior.labels"))
    mean = property(attrgetter("posterior.mean"))
    variance = property(attrgetter("posterior.variance"))
    sd = property(attrgetter("posterior.sd"))
    covariance = property(attrgetter("posterior.covariance"), doc="Covariance of the weights.")
    converged = property(attrgetter("posterior.converged"))
    log_evidence = property(attrgetter("posterior.log_evidence"))
    residual = property(
        attrgetter("posterior.residual"), doc="Distance from a fixed point of EP, the largest."
    )
    n_fits = property(attrgetter("posterior.n_fits"), doc="Fits that the average took.")
    ess = property(attrgetter("posterior.ess"), doc="Effective number of points of the average.")

    # -- tables --

    @property
    def fixed(self) -> DataFrame:
        """Table of the common weights: mean, sd, and a central interval of 94 %."""
        return self._table(0.94).iloc[: self.design.n_common]

    @property
    def random(self) -> DataFrame:
        """Table of the group effects, which are added to the common weights."""
        return self._table(0.94).iloc[self.design.n_common : len(self.labels)]

    @property
    def _hyper_names(self) -> list[str]:
        """Names of the hyper-parameters in the formula."""
        pairs = [f"cor {a.rpartition('|')[0]},{b}" for a, b in self.design.pairs]
        return [*self.design.effects, *pairs, *FAMILIES[own_name(self.family)]]

    @property
    def hyper_labels(self) -> tuple[str, ...]:
        """Names of the hyper-parameters in the tables."""
        sds = self.design.effects
        return tuple(f"sd {one}" if one in sds else one for one in self._hyper_names)

    @property
    def hyper(self) -> DataFrame:
        """Table of sds of groups and parameters of the likelihood. Empty if there are none.

        In ``(x | g)`` sds and correlations are those of intercepts at x = 0.
        """
        return self.posterior.hyper.set_axis(list(self.hyper_labels))

    def summary(self, level: float = 0.94) -> DataFrame:
        """Table of common weights, sds of groups and parameters of the likelihood.

        Parameters
        ----------
        level : float, default=0.94
            Posterior probability of the intervals, between 0 and 1.
        """
        return self._table(level).drop(index=list(self.labels[self.design.n_common :]))

    def _table(self, level: float) -> DataFrame:
        """Table of all weights and hyper-parameters."""
        labels = [*self.labels, *self.hyper_labels]
        return self.posterior.summary(level).iloc[:, :4].set_axis(labels)

    # -- the posterior --

    def quantile(self, p: float) -> Array:
        """Quantiles of all weights, (d,); see :meth:`epfast.IntegratedPosterior.quantile`."""
        return self.posterior.quantile(p)

    def credible_interval(self, level: float = 0.95) -> Array:
        """Central credible intervals of all weights, (d, 2)."""
        return self.posterior.credible_interval(level)

    def sample(self, size: int, rng: np.random.Generator | int | None = None) -> Array:
        """Draw all weights, (size, d), each by the posterior of one of the points."""
        return self.posterior.sample(size, rng)

    def latent_at(self, draws: ArrayLike) -> Array:
        """Latent values of the rows at draws of ``sample``, (k, n), without offsets."""
        latent: Array = self.posterior.latent_at(draws)
        return latent

    def log_likelihood(self, draws: ArrayLike) -> Array:
        """Log likelihood of each row at draws of ``sample``, (k, n)."""
        return self.posterior.log_likelihood(draws)

    def loo_log_predictive(self) -> Array:
        """Leave-one-out log probability of each response, (n,), from the cavities."""
        return self.posterior.loo_log_predictive()

    def loss_gradient(self) -> dict[str, float | Array]:
        """Derivatives of the log evidence by parameters of the likelihood, averaged."""
        return self.posterior.loss_gradient()

    def check(self, draws: int = 1000, rng: np.random.Generator | int | None = 0) -> Check:
        """Compare the fits with the exact posteriors at the points of the average.

        See :meth:`epfast.IntegratedPosterior.check`.
        """
        return self._remembered(self.posterior.check(draws, rng))

    def to_arviz(self, draws: int = 1000, rng: np.random.Generator | int | None = 0) -> Any:
        """Draws for ArviZ, with the names of the formula.

        As :meth:`epfast.FullPosterior.to_arviz`. The weights are the variable ``coefficient`` along
        ``term``. Each hyper-parameter is a variable. Those of groups are named ``"1|g"``.
        """
        named = self.posterior.named(hyper_names=tuple(self._hyper_names))
        return named.to_arviz(draws, rng)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to an ``.npz`` file, from which :func:`epfast.load` makes the fit again.

        It predicts new frames, and does not know its rows. Nothing is pickled: functions of your
        own in the formula cannot be written.

        Raises
        ------
        ValueError
            If the formula has functions of your own. Those of NumPy and formulae are written.
        """
        self.design.check_written()
        write(path, *contents(self))

    def check_fields(self) -> None:
        """Refuse fields that are inconsistent, as those of a damaged file."""
        names = len(self.labels), len(self.mean), len(self.design.labels)
        if len(set(names)) > 1 or self.posterior.points.shape[1] != len(self._hyper_names):
            raise ValueError("the posterior and the columns of the formula are inconsistent")

    # -- its rows --

    def with_rows(self, data: Data) -> Self:
        """The same fit with its rows, which a loaded or unpickled one does not know.

        Parameters
        ----------
        data : pandas.DataFrame
            The rows that were fitted, in their order.
        """
        rows, y, given = self._rows_and_responses(data)
        return replace(self, posterior=self.posterior.with_rows(rows, y, **given))

    def partial_fit(self, data: Data, weights: ArrayLike | None = None) -> Self:
        """Add new rows of known levels: EP fits their sites, and the other sites stay.

        Parameters
        ----------
        data : pandas.DataFrame
            New rows.
        weights : array_like of shape (m,), optional
            Their weights.
        """
        rows, y, given = self._rows_and_responses(data)
        return replace(
            self,
            posterior=self.posterior.partial_fit(
                rows, y, weights=weights, offset=given.get("offset")
            ),
        )

    def remove(self, rows: ArrayLike) -> Self:
        """Remove the sites of some rows, by their numbers; see :meth:`epfast.FullPosterior.remove`.

        Parameters
        ----------
        rows : int or array_like of int
            Numbers of rows, from 0.
        """
        return replace(self, posterior=self.posterior.remove(rows))

    def _rows_and_responses(
        self, data: Data
    ) -> tuple[Array | sparse.csr_array, Array, dict[str, Array]]:
        """Columns and responses of rows, and their offsets by name if there are some."""
        frame = _frame(data)
        with _readable(self.formula, frame):
            rows, offset, _ = self.design.rows(frame)
            y = self.design.observed(frame)
        return rows, y, {"offset": offset} if self.design.has_offset else {}

    # -- prediction --

    def predict_latent(
        self, data: Data, new_levels: str = "error", joint: bool = False
    ) -> tuple[Array, Array]:
        """Mean and variance of the linear predictor of new rows, (n,) each.

        Parameters
        ----------
        data : pandas.DataFrame
            With the variables of the right side of the formula.
        new_levels : {"error", "integrate", "zero"}, default="error"
            What is done about a level of a group that the fit did not have. "error" raises a
            ValueError that names the levels. "integrate" averages over the distribution of the
            group, which adds the variance of the group. "zero" sets the effect to 0. A level that
            the fit has as another type, such as "3" for 3, is an error in any case.
        joint : bool, default=False
            True: the covariance of the rows, (n, n), in place of their variances.
        """
        means, variances = self._latents(data, new_levels, _checks.flag("joint", joint))
        mean = self.posterior.weights @ means
        gaps = means - mean
        squares = gaps[:, :, None] * gaps[:, None, :] if joint else gaps**2
        return mean, np.tensordot(self.posterior.weights, variances + squares, 1)

    def predict(
        self,
        data: Data,
        new_levels: str = "error",
        return_std: bool = False,
        interval: float | None = None,
    ) -> Any:
        """Mean of y of new rows, (n,). For 0 and 1, and for trials, the probability of a success.

        Parameters
        ----------
        data, new_levels
            As in :meth:`predict_latent`.
        return_std : bool, default=False
            Whether to return the standard deviation of y, too.
        interval : float, optional
            Probability of a central interval of y, whose ends (n, 2) are returned, too. Not for 0
            and 1, and not for trials.
        """
        points, weights = self._points(data, new_levels), self.posterior.weights
        of_mean = "predict_proba" if points[0][0].by_margin else "predict"
        means = np.array([getattr(loss, of_mean)(m, v) for loss, m, v in points])
        mean = weights @ means
        result = [mean]
        if _checks.flag("return_std", return_std):
            # the variance of labels -1 and 1 is four times that of 0 and 1
            scale = 4.0 if points[0][0].by_margin else 1.0
            within = [loss.predict_variance(m, v) / scale for loss, m, v in points]
            result.append(np.sqrt(weights @ (within + (means - mean) ** 2)))
        if interval is not None:
            level = checked_level(interval, "interval")
            if own_name(self.family) in ("logistic", "binomial"):
                raise ValueError(
                    f"interval is {interval} for family {self.family!r}; allowed: None, since y is "
                    "0 or 1; predict_latent has the uncertainty of the linear predictor"
                )
            likelihoods, latents = [one[0] for one in points], [one[1:] for one in points]
            ends = [
                losses.quantiles.of_mixture(p, likelihoods, weights, latents)
                for p in ends_of(level)
            ]
            result.append(np.stack(ends, axis=-1))
        return mean if len(result) == 1 else tuple(result)

    def log_predictive(self, data: Data, new_levels: str = "error") -> Array:
        """Log probability of the responses of new rows, (n,).

        Parameters
        ----------
        data : pandas.DataFrame
            With the variables of the formula, those of the response too.
        new_levels
            As in :meth:`predict_latent`.
        """
        frame = _frame(data)
        with _readable(self.formula, frame):
            y = self.design.observed(frame)
        points = self._points(frame, new_levels)
        logs = [loss.log_predictive(loss.responses("y", y, len(y)), m, v) for loss, m, v in points]
        weights = self.posterior.weights[:, None]
        return np.asarray(special.logsumexp(np.array(logs), axis=0, b=weights))

    def score(self, data: Data, new_levels: str = "error") -> float:
        """Mean log probability of the responses of new rows. Higher is better.

        Parameters
        ----------
        data, new_levels
            As in :meth:`log_predictive`.
        """
        return float(self.log_predictive(data, new_levels).mean())

    def sample_y(
        self,
        data: Data,
        size: int,
        rng: np.random.Generator | int | None = None,
        new_levels: str = "error",
    ) -> Array:
        """Draw responses of new rows from the posterior predictive distribution, (size, n).

        A draw of the weights, and of the effects of new levels, serves all rows.

        Parameters
        ----------
        data, new_levels
            As in :meth:`predict_latent`.
        size : int
            Number of draws.
        rng : numpy.random.Generator or int, optional
            A generator, or a seed for one. None draws afresh.

        Returns
        -------
        ndarray of shape (size, n)
            In the unit of y. Of labels, and of trials one each, 0 or 1: the mean is ``predict``.
        """
        size, rng = _checks.integer("size", size, least=0), _checks.generator("rng", rng)
        found, post = self._new_rows(data, new_levels), self.posterior
        drawn = [np.empty((0, len(found.offset)))]
        for k, n in enumerate(rng.multinomial(size, post.weights)):
            weights = post.posteriors[k].sample(int(n), rng)
            latent = np.asarray(found.rows @ weights.T).T + found.offset
            latent += self._new_effects(found, post.points[k], int(n), rng)
            y = post.posteriors[k].known_loss().with_offset(False).sample(latent, rng)
            drawn.append((y + 1.0) / 2.0 if own_name(self.family) == "logistic" else y)
        return np.asarray(rng.permutation(np.concatenate(drawn)))

    def _new_effects(
        self, found: NewRows, point: Array, size: int, rng: np.random.Generator
    ) -> Array:
        """Draws of what new levels add to the rows, (size, n)."""
        count = 1 + int(found.level.max(initial=-1))
        # far from the origin of x the covariance has a small eigenvalue that rounding would hide
        values, vectors = np.linalg.eigh(self.design.correlation(point))
        root = point[: len(values), None] * vectors * np.sqrt(np.maximum(values, 0.0))
        effects = root @ rng.standard_normal((size, len(values), count + 1))
        # found.new is 0 where the level is -1
        pairs = zip(found.new.T, found.level.T, strict=True)
        parts = (x * effects[:, a, level] for a, (x, level) in enumerate(pairs))
        return np.asarray(sum(parts, np.zeros((size, len(found.offset)))))

    def _new_rows(self, data: Data, new_levels: str) -> NewRows:
        """What the formula says of rows; new levels add nothing with "zero"."""
        _checks.choice("new_levels", new_levels, ("error", "integrate", "zero"))
        frame = _frame(data)
        with _readable(self.formula, frame):
            found = self.design.new_rows(frame, new_levels)
        return found if new_levels == "integrate" else found._replace(new=0.0 * found.new)

    def _latents(self, data: Data, new_levels: str, joint: bool) -> tuple[Array, Array]:
        """Means (k, n), and variances or covariances, of the linear predictor at the points."""
        found, post = self._new_rows(data, new_levels), self.posterior
        parts = post.latents_at(found.rows, joint)
        means, variances = (np.array(one) for one in zip(*parts, strict=True))
        if found.new.any():
            for k, at in enumerate(post.points):
                variances[k] += _variance_of_new(found, self.design.covariance(at), joint)
        return means + found.offset, variances

    def _points(self, data: Data, new_levels: str) -> list[tuple[Loss, Array, Array]]:
        """The likelihoods of the points, and means and variances of the linear predictor."""
        likelihoods = [one.known_loss().with_offset(False) for one in self.posterior.posteriors]
        return list(zip(likelihoods, *self._latents(data, new_levels, False), strict=True))


def _variance_of_new(found: NewRows, covariance: Array, joint: bool) -> Array:
    """What new levels add to the variances of rows, or to their covariance if joint."""
    new, level = found.new, found.level
    if not joint:
        return np.asarray(((new @ covariance) * new).sum(axis=1))
    total = np.zeros((len(new), len(new)))
    for a, b in zip(*np.nonzero(covariance), strict=True):  # effects of the same group
        same = level[:, a, None] == level[:, b]
        total += same * covariance[a, b] * np.outer(new[:, a], new[:, b])
    return total


@_checks.named
def fit(
    formula: str,
    data: Data,
    family: str = "gaussian",
    *,
    priors: Mapping[str, Prior] | None = None,
    weights: ArrayLike | str | None = None,
    strategy: str = "auto",
    rng: np.random.Generator | int | None = 0,
) -> FormulaFit:
    """Fit a regression by a formula, and average over the sds of its groups and its noise.

    Parameters
    ----------
    formula : str
        A formula as in lme4, brms and bambi, such as ``"y ~ x + h + (x | g)"``. A group term
        ``(x | g)`` has an intercept and a slope for each level of g. They are correlated, as in
        lme4 and brms, and independent with ``(x || g)``. Each has an sd. All results are those of
        intercepts at x = 0, as in lme4. ``0 + (1 | g)`` has no common intercept. Other terms are
        ``x:h``, ``x * h``, ``(1 | g:h)``, ``(1 | g/h)``, ``offset(z)``, ``I(x ** 2)``, ``C(k)``,
        ``log(x)``, ``scale(x)``, ``poly(x, 2)``, ``bs(x, df=4)`` and functions of the caller.
        ``offset()`` may stand at any place between ``+``, more than once. Other responses are
        ``log(y)``, ``I(y > 0)``, ``y['level']``, and of trials ``prop(successes, trials)``,
        ``cbind(successes, failures)`` or ``successes | trials(trials)``.
    data : pandas.DataFrame
        A column per variable. Columns in the formula have no missing values. Categories keep their
        order, text is in alphabetical order, and the first level is the reference.
    family : str, default="gaussian"
        "gaussian", "t", "laplace", "bernoulli", "binomial", "poisson", "negativebinomial", "gamma"
        or "weibull", or another name of such a loss, as "student" or "negbinomial". "bernoulli"
        takes 0 and 1, booleans, or two labels. The second label, in alphabetical order or in the
        order of categories, is 1.
    priors : dict, optional
        Priors by name:

        - a common term, such as ``"x"``: ``(mean, sd)`` of a normal prior
        - a group term, such as ``"1|g"``, or a parameter of the family, such as ``"sigma"``: a
          prior of :mod:`epfast.priors`
        - ``"cor|g"``, the correlations of a group: :class:`epfast.priors.LKJ`

        In ``(x | g)`` priors are those of intercepts where x has its mean over the rows, your own
        priors too, so that the origin of x does not matter. In ``(x * z | g)`` they are those of
        effects where x and z have their means, and in ``(bs(x) | g)`` where each column has. A
        warning about such an effect names it ``"1|g at the means"``. ``(x || g)`` and
        ``(0 + x | g)`` are other models from another origin of x: no column is centred.

        Defaults depend on no unit of y or x. Slopes have N(0, 2.5 sd(y) / sd(x)), an intercept
        N(mean(y), 2.5 sd(y)) at the means of the columns, sds of slopes of groups a half-normal of
        scale 2.5 sd(y) / sd(x), in ``(x || g)`` and ``(0 + x | g)`` too, sds of intercepts of
        groups a half-normal of scale 2.5 sd(y), sigma and b a half-Student-t of 4 degrees of
        freedom and scale sd(y), nu Gamma(2, 0.1), alpha a half-Cauchy of scale 1, and correlations
        LKJ(2). For families other than "gaussian", "t" and "laplace", sd(y) is replaced by 1 and
        mean(y) by 0, or for "gamma" and "weibull" by log(mean(y)). An intercept whose prior is
        given has it where all columns are 0. bambi and brms differ in what :doc:`/tutorial_groups`
        lists.
    weights : array_like of shape (n,) or str, optional
        Weights of the rows, as in :func:`epfast.fit_linear`, or the name of their column.
    strategy : str, default="auto"
        As in :func:`epfast.fit_hyper`.
    rng : numpy.random.Generator or int, default=0
        As in :func:`epfast.fit_hyper`.

    Returns
    -------
    FormulaFit

    Raises
    ------
    ImportError
        If formulae or pandas is not installed.
    ValueError, TypeError
        In words of the formula: a term that it cannot have, a variable or level that the data lack,
        a prior of a term that is not there.

    Examples
    --------
    >>> import numpy as np, pandas as pd, epfast.formula
    >>> rng = np.random.default_rng(0)
    >>> g = np.repeat(list("abcdef"), 10)
    >>> x = rng.normal(size=60)
    >>> y = 1 + 2 * x + np.repeat(rng.normal(size=6), 10) + 0.5 * rng.normal(size=60)
    >>> model = epfast.formula.fit("y ~ x + (1 | g)", pd.DataFrame({"x": x, "y": y, "g": g}))
    >>> model.summary().loc["x", "mean"].round()
    np.float64(2.0)
    """
    name = own_name(family)
    if not isinstance(family, str) or name not in FAMILIES:
        _checks.choice("family", family, NAMES)
    numbers = FAMILIES[name]
    frame = _frame(data)
    if not isinstance(formula, str):
        raise TypeError(f"formula is {_checks.describe(formula)}; allowed: a str, such as 'y ~ x'")
    with _readable(formula, frame) as formulae:
        # functions in the formula are those of the caller
        env = formulae.environment.Environment.capture(2).namespace
        design = ModelMatrix(formula, family, frame, env)
        rows, offset, _ = design.rows(frame)
        y = design.observed(frame)
        unit, center = _unit_of(y, offset, name, bool(design.effects))
    if isinstance(weights, str):
        weights = frame[_checks.choice("weights", weights, tuple(map(str, frame.columns)))]
    cor = {members: f"cor|{members[0].rpartition('|')[2]}" for members in design.blocks}
    common = list(design.terms)[: len(design.terms) - len(design.model.group_terms)]
    kinds: dict[str, Any] = dict.fromkeys([*design.terms, *design.effects, *numbers], OF_SCALE)
    kinds |= dict.fromkeys(common, NORMAL) | dict.fromkeys(cor.values(), OF_PAIRS)
    given = _checked_priors(priors, kinds)
    mean, sd, middle = _scaled(rows, design.n_common, unit, center)
    for term in (one for one in common if one in given):
        at = slice(*design.terms[term])
        mean[at], sd[at] = given[term]
        middle[at] = 0.0
    moved = (np.count_nonzero(design.turn, axis=1) > 1).tolist()
    called = {one: one + AT_MEANS * move for one, move in zip(design.effects, moved, strict=True)}
    sds: dict[str, tuple[Indices, Scale]] = {}
    of_effects = zip(design.effects.items(), _sizes(rows, design), strict=True)
    for (effect, (term, columns)), size in of_effects:
        prior = given.get(effect, given.get(term, HalfNormal(WIDE * unit / size)))
        sds[called[effect]] = columns, prior
    learn = {its: given.get(one, _default(one, unit)) for one, its in numbers.items()}
    settings: dict[str, Any] = {"weights": weights, "loss": losses.resolve(name)}
    settings |= {"offset": offset if design.has_offset else None}
    # as if an intercept with its default prior were that of centred columns
    turn = np.eye(len(middle)) + middle
    mean[: len(middle)] = np.linalg.solve(turn, mean[: len(middle)])
    precision = turn.T @ (turn / sd[: len(middle), None] ** 2) if middle.any() else None
    settings["prior_mean"] = mean
    if sds or learn:
        settings["correlations"] = {
            tuple(called[one] for one in members): (given.get(key, LKJ()), design.turn_of(members))
            for members, key in cor.items()
        }
        settings |= {"sds": sds, "learn": learn, "strategy": strategy, "rng": rng}
        dense = None if precision is None else (np.arange(len(middle)), precision)
        post = fit_hyper(rows, y, prior_variance=sd**2, prior_precision=dense, **settings)
        names = tuple(one.replace(AT_MEANS, "") for one in post.hyper_names)
        points, nodes, mode = map(design.of_effects, (post.points, post.nodes, post.mode))
        post = replace(post, hyper_names=names, points=points, nodes=nodes, mode=mode)
    else:
        settings |= {"prior_variance": sd**2} if precision is None else {}
        only = fit_linear(rows, y, posterior="full", prior_precision=precision, **settings)
        post = IntegratedPosterior.of([only], [0.0], np.empty((1, 0)), (), [0.0], 1)
    return FormulaFit(formula, family, post.named(tuple(design.labels)), design)


# ---- the formula ----


def _read(formula: str) -> tuple[Model, list[list[GroupSpecificTerm]]]:
    """The model of a formula, and the terms of each ``(x | g)``, whose effects are correlated."""
    from formulae import expr as tree_of, parser, resolver, scanner, token, transforms
    from formulae.terms import call_resolver
    from formulae.terms.terms import Intercept, NegatedIntercept
    from pandas import Series

    class ReadCall(call_resolver.LazyCall):  # type: ignore[misc]
        """A call that can be compared with what is none, and hashed."""

        def __eq__(self, other: LazyCall) -> bool:
            return isinstance(other, ReadCall) and bool(super().__eq__(other))

        def __hash__(self) -> int:
            return hash((self.callee, len(self.args), *self.kwargs))

        def eval(self, data_mask: DataFrame, env: Environment) -> Series:
            if self.callee != "offset" or len(self.args) != 1:
                return super().eval(data_mask, env)
            x = self.args[0].eval(data_mask, env)  # formulae takes columns and numbers alone
            return transforms.Offset(Series(np.broadcast_to(np.asarray(x), len(data_mask))))

    class CallReader(call_resolver.CallResolver):  # type: ignore[misc]
        def visitCallExpr(self, expr: tree_of.Call) -> LazyCall:  # noqa: N802
            call = super().visitCallExpr(expr)
            return ReadCall(call.callee, call.args, call.kwargs)

    correlated: list[list[GroupSpecificTerm]] = []

    class TermReader(resolver.Resolver):  # type: ignore[misc]
        def visitCallExpr(self, expr: tree_of.Call) -> Term:  # noqa: N802
            term = super().visitCallExpr(expr)
            term.components[0].call = CallReader(expr).resolve()
            return term

        def visitBinaryExpr(self, expr: tree_of.Binary) -> Term | Model:  # noqa: N802
            if expr.operator.kind == "TILDE":
                expr = tree_of.Binary(left_side(expr.left), expr.operator, expr.right)
            elif expr.operator.kind in call_resolver.CallResolver.BINARY_OPERATORS and (
                expr.operator.lexeme in ("==", "!=", "<", "<=", ">", ">=")
            ):
                raise ValueError(f"{expr.operator.lexeme!r} needs I(), as in I(x > 1)")
            bar = getattr(expr.left, "operator", None)
            if bar is not None and bar.kind == "PIPE":
                raise _unread(bar.lexeme)
            sign = expr.operator.lexeme, getattr(expr.right, "value", None)
            if sign in (("-", 1), ("+", 0)):  # formulae does not support this everywhere
                return NegatedIntercept() + expr.left.accept(self) - Intercept()
            terms = super().visitBinaryExpr(expr)
            if expr.operator.lexeme == "|":
                correlated.append(getattr(terms, "group_terms", [terms]))
            return terms

    def left_side(expr: tree_of.Binary) -> tree_of.Binary:
        """The response, of which ``k | trials(n)`` of brms becomes ``prop(k, n)``."""
        if isinstance(expr, tree_of.Grouping):
            return left_side(expr.expression)
        sign = getattr(expr, "operator", None)
        called: Any = getattr(getattr(expr, "right", None), "callee", None)
        if sign is not None and called is not None and called.name.lexeme == "trials":
            name = tree_of.Variable(token.Token("IDENTIFIER", "prop"))
            return tree_of.Call(name, [expr.left, *expr.right.args])
        if sign is not None and sign.kind != "PIPE":
            raise ValueError(
                f"{sign.lexeme!r} left of ~ is no response; arithmetic needs I(), as in I(y + 1) "
                f"or I(y > 0), and counts are {COUNTS}"
            )
        return expr

    plain = QUOTED.sub("", formula)
    for mark, said in SIGNS.items():
        if re.search(rf"(?<![\w)]){re.escape(mark)}(?!\d)|[\^]" if mark == "." else r"\^", plain):
            raise ValueError(f"{mark!r} is not supported; {said}")
    if plain.count("`"):
        raise ValueError("a name in backquotes has no end")
    if plain.count("~") > 1:
        raise ValueError("it has more than one ~; allowed: one, behind the response")
    if "~" not in plain or not formula.partition("~")[0].strip():
        raise ValueError("it has no response; allowed: a formula with a response, such as y ~ x")
    tokens: list[token.Token] = []
    for one in scanner.Scanner(formula).scan():
        if tokens and one.lexeme == tokens[-1].lexeme == "|":  # formulae does not support ||
            one.lexeme += tokens.pop().lexeme
        tokens.append(one)
    reader = parser.Parser(tokens)
    tree = reader.parse()
    if not reader.at_end():
        raise _unread(reader.peek().lexeme)
    model = TermReader(tree).resolve()
    model.common_terms = [one for one in model.common_terms if one != NegatedIntercept()]
    _check_calls(model)
    return model, correlated


def _check_calls(model: Model) -> None:
    """Refuse calls of responses right of ~, and offsets in other terms or left of it."""
    (response,) = model.response.term.components
    if getattr(getattr(response, "call", None), "callee", None) == "offset":
        raise ValueError(f"{response.name!r} is no response; it stands right of ~")
    for term in model.terms:
        parts = list(_components([term]))
        for one in (one for one in parts if hasattr(one, "call")):
            if one.call.callee in RESPONSES:
                raise ValueError(f"{one.name!r} is a response, which stands left of ~")
            if one.call.callee == "offset" and (len(parts) > 1 or term in model.group_terms):
                raise ValueError(f"{one.name!r} is in another term; allowed: offset() alone")


def _components(terms: Iterable[Term | GroupSpecificTerm]) -> Iterator[Variable | Call]:
    """Variables and calls of terms, in their order."""
    for term in terms:
        parts = [term.expr, term.factor] if hasattr(term, "factor") else [term]
        for part in parts:
            yield from getattr(part, "components", [])


def _nodes(lazy: LazyCall) -> Iterator[LazyCall]:
    """A call, and all that it calls or names."""
    yield lazy
    for part in (*getattr(lazy, "args", ()), *getattr(lazy, "kwargs", {}).values()):
        yield from _nodes(part)


def _known() -> Functions:
    """Functions that every formula has."""
    from formulae.categorical import ENCODINGS
    from formulae.transforms import TRANSFORMS

    return {**FUNCTIONS, **TRANSFORMS, **ENCODINGS}


def _borrowed(model: Model, frame: DataFrame, env: VarLookupDict) -> Functions:
    """What the calls of a formula name, that neither every formula nor the frame has."""
    known, found = _known(), {}
    for one in _components([*model.terms, model.response.term]):
        for node in _nodes(getattr(one, "call", None)):
            name: Any = getattr(node, "callee", getattr(node, "name", None))
            if name is None or name in known:
                continue
            if name in frame.columns and not hasattr(node, "callee"):
                continue
            first, *rest = name.split(".")
            try:
                value = env[first]
                for part in rest:
                    value = getattr(value, part)
            except (KeyError, AttributeError):
                raise KeyError(name) from None
            found[name] = value
    return found


def _environment(functions: Functions) -> Environment:
    """Where formulae finds functions, also those with the names of their modules."""
    from formulae.environment import Environment

    names = {**functions, **_known()}
    for name, value in functions.items():
        first, *rest = name.split(".")
        if rest:
            place = names.setdefault(first, SimpleNamespace())
            for part in rest[:-1]:
                place = vars(place).setdefault(part, SimpleNamespace())
            setattr(place, rest[-1], value)
    return Environment([names])


def _of_numpy(value: Any) -> bool:
    """Whether a function is one of NumPy's by its name."""
    return isinstance(value, np.ufunc) and getattr(np, value.__name__, None) is value


def _memory_of(one: Variable | Call) -> Memory:
    """What a variable or call has learned from the data."""
    contrast = one.contrast_matrix
    memory = {name: getattr(one, name) for name in ("kind", "spans_intercept")}
    memory["levels"] = None if one.levels is None else list(map(_plain, one.levels))
    has_matrix = hasattr(contrast, "matrix")
    memory["contrast"] = (contrast.matrix, list(contrast.labels)) if has_matrix else None
    transforms = [
        getattr(node, "stateful_transform", None) for node in _nodes(getattr(one, "call", None))
    ]
    memory["transforms"] = [
        None if of is None else {name: _flat(value) for name, value in vars(of).items()}
        for of in transforms
    ]
    return memory


def _remind(one: Variable | Call, memory: Memory, env: Environment) -> None:
    """Give a variable or call what it has learned."""
    from formulae.categorical import ContrastMatrix

    for name in ("kind", "levels", "spans_intercept"):
        setattr(one, name, memory[name])
    if memory["contrast"] is not None:
        one.contrast_matrix = ContrastMatrix(*memory["contrast"])
    if hasattr(one, "call"):
        one.env = env
        pairs = zip(_nodes(one.call), memory["transforms"], strict=True)
        for node, state in ((node, state) for node, state in pairs if state is not None):
            node.stateful_transform = env.namespace[node.callee]()
            vars(node.stateful_transform).update(
                {name: _unflat(value) for name, value in state.items()}
            )


def _flat(value: Any) -> Any:
    """A number of a transform as arrays and plain values."""
    if isinstance(value, interpolate.CubicSpline):
        return {"spline": [value.c, value.x, value.extrapolate]}
    if isinstance(value, dict) and "basis" in value:  # of the rows, for what formulas do not ask
        return None
    return value


def _unflat(value: Any) -> Any:
    if isinstance(value, dict) and "spline" in value:
        return interpolate.CubicSpline.construct_fast(*value["spline"])
    return value


class Factors(NamedTuple):
    """What a column of a term is the product of."""

    #: for each label the mean of its column, or None of a category or constant
    means: dict[str, float | None]
    #: mean of the product
    of_all: float


def _factors_of(expr: Term) -> list[Factors]:
    """Of the columns of a term that has its data; an intercept is a product of nothing."""
    parts = []
    with np.errstate(all="ignore"):
        for one in getattr(expr, "components", []):
            columns = np.asarray(one.value, dtype=np.float64).reshape(len(one.value), -1)
            fixed = _are_constant(columns) | (one.kind != "numeric")
            triples = zip(one.labels, fixed.tolist(), columns.mean(axis=0).tolist(), strict=True)
            parts.append([(label, None if of else mean) for label, of, mean in triples])
        whole = np.asarray(expr.data, dtype=np.float64).reshape(len(expr.data), -1)
        pairs = zip(product(*parts), whole.mean(axis=0).tolist(), strict=True)
        return [Factors(dict(of), mean) for of, mean in pairs]


def _turn_of(factors: list[Factors]) -> Array:
    """T (q, q): effects of columns are T c, and c those of products of columns with a mean of 0.

    x z is (x - a)(z - b) + b x + a z - a b, if the other columns are there. Else it is one column,
    and less its mean if there is an intercept.
    """
    turn, places = np.eye(len(factors)), {frozenset(one.means): k for k, one in enumerate(factors)}
    for k, one in enumerate(factors):
        means = {label: mean for label, mean in one.means.items() if mean is not None}
        left = {
            frozenset(one.means).difference(gone): math.prod(-means[label] for label in gone)
            for size in range(1, len(means) + 1)
            for gone in combinations(means, size)
        }
        if left and not left.keys() <= places.keys():
            left = {frozenset(): -one.of_all} if frozenset() in places else {}
        for rest, share in left.items():
            turn[places[rest], k] = share
    return turn


def _set_levels(term: GroupSpecificTerm, frame: DataFrame, spans_intercept: bool) -> None:
    """As ``set_data`` of a group term of formulae, but for its dense columns of all levels."""
    term.expr.set_data(spans_intercept)
    term.kind, names = term.expr.kind, []
    for variable in term.factor.components:
        values = frame[variable.name]
        is_ordered = getattr(values.dtype, "ordered", False)
        levels = values.cat.categories if is_ordered else np.unique(values.unique())
        variable.levels, variable.spans_intercept = levels.tolist(), True
        names.append([str(level) for level in variable.levels])
        variable.contrast_matrix = SimpleNamespace(labels=names[-1])
    term.groups = list(map(":".join, product(*names)))


def _unread(lexeme: str) -> ValueError:
    return ValueError(
        f"{lexeme!r} is not supported there; allowed: {SYNTAX}, {COUNTS} left of ~, weights= for "
        "weights"
    )


# ---- the data ----


def _frame(data: Data) -> DataFrame:
    """The data as a frame, from a frame or a dict of columns."""
    with _checks.needs(NEEDED, "pandas"):
        import pandas

    frame = pandas.DataFrame(data) if isinstance(data, Mapping) else data
    if not isinstance(frame, pandas.DataFrame):
        raise TypeError(f"data is {_checks.describe(data)}; allowed: a pandas.DataFrame")
    if not len(frame):
        raise ValueError("data has 0 rows; allowed: at least one row")
    return frame


def _check_columns(frame: DataFrame, names: set[str]) -> None:
    """Refuse missing values, times and labels of several types, which terms do not support."""
    part = frame[[name for name in frame.columns.unique() if name in names]]
    for name in part.columns[part.columns.duplicated()]:
        raise ValueError(f"data has two columns {name!r}; allowed: one of each name")
    for name in part.columns[part.isna().any()]:
        row = part[name].isna().argmax()
        raise ValueError(
            f"{name!r} is missing in row {row} of data; allowed: data without missing values, such "
            "as data.dropna()"
        )
    for name in part.columns:
        if getattr(part[name].dtype, "kind", "") == "c":
            raise ValueError(f"{name!r} holds complex numbers; allowed: numbers, or labels")
        if _checks.holds_times(part[name]):
            raise ValueError(f"{name!r} holds times; {_checks.NO_TIMES}")
    for name in part.columns[[kind == "object" for kind in part.dtypes]]:
        types = sorted({type(one).__name__ for one in part[name]})
        if len(types) > 1 and "str" in types:
            raise ValueError(
                f"{name!r} holds {' and '.join(types)}; allowed: one type, such as "
                f"data[{name!r}].astype(str)"
            )


def _check_objects(frame: DataFrame, one: Variable | Call) -> None:
    """Refuse a variable whose values pandas knows as objects alone."""
    values = None if hasattr(one, "call") else frame[one.name]
    if values is not None and values.dtype == "object" and not isinstance(values.iloc[0], str):
        raise ValueError(
            f"{one.name!r} holds {type(values.iloc[0]).__name__} as objects; allowed: numbers, "
            f"booleans or text, such as data[{one.name!r}].infer_objects() or .astype(str)"
        )


def _check_kinds(frame: DataFrame, one: Variable | Call) -> None:
    """Refuse a variable that is of another type than in the fit."""
    from pandas.api.types import is_numeric_dtype

    if hasattr(one, "call"):
        return
    values = frame[one.name]
    if one.kind == "numeric" and not is_numeric_dtype(values):
        raise ValueError(
            f"{one.name!r} holds {values.dtype}; allowed: numbers, which it has in the fit"
        )
    if one.kind == "categoric":
        _check_types(one.name, one.levels, values.unique())


def _check_types(name: str, levels: Iterable[Hashable], given: Iterable[Hashable]) -> None:
    """Refuse levels that the fit has as another type, such as "3" for 3."""
    known, of_fit = set(levels), {str(level): level for level in levels}
    for level in (_plain(one) for one in given if one not in known):
        same = of_fit.get(str(level), of_fit.get(str(level).removesuffix(".0")))
        if same is not None:
            here, there = type(level).__name__, type(same).__name__
            raise ValueError(
                f"{name!r} holds {level!r}, {here}, and the fit has {same!r}, {there}; allowed: "
                f"levels of the fit, such as data[{name!r}].astype({there})"
            )


def _check_levels(factor: Term, unseen: AnyArray, new_levels: str) -> None:
    """Refuse levels of a group that the fit does not have."""
    parts = factor.components
    by_part: Iterable[Iterable[Hashable]]
    by_part = [unseen] if len(parts) == 1 else zip(*unseen, strict=True)
    for one, given in zip(parts, by_part, strict=True):
        _check_types(one.name, one.levels, given)
    if new_levels == "error":
        first = ", ".join(repr(_plain(one)) for one in unseen[:NAMED])
        more = f" and {len(unseen) - NAMED} more" if len(unseen) > NAMED else ""
        is_one = "is not a level" if len(unseen) == 1 else "are not levels"
        raise ValueError(
            f"{first}{more} {is_one} of {factor.name!r} in the fit; allowed: levels of the fit, or "
            "new_levels='integrate', which averages over the distribution of the group, or 'zero'"
        )


def _plain(level: Hashable) -> Hashable:
    """A level, or a tuple of levels, in types of Python."""
    if isinstance(level, tuple):
        return tuple(map(_plain, level))
    return level.item() if isinstance(level, np.generic) else level


def _in_order(frame: DataFrame, names: set[str]) -> DataFrame:
    """A frame whose categories have an order: that in which they are given."""
    from pandas import CategoricalDtype

    unordered = {
        name: frame[name].cat.remove_unused_categories().cat.as_ordered()
        for name in frame.columns
        if name in names
        and isinstance(frame[name].dtype, CategoricalDtype)
        and not frame[name].dtype.ordered
    }
    return frame.assign(**unordered) if unordered else frame


def _levels_of(values: Series | AnyArray) -> list[Hashable]:
    """Levels of labels, in their order. Numbers have none."""
    from pandas.api.types import is_numeric_dtype

    if np.ndim(values) == 2 or is_numeric_dtype(values):
        return []
    if hasattr(values, "cat"):
        levels: list[Hashable] = values.cat.remove_unused_categories().cat.categories.tolist()
        return levels
    return list(np.unique(np.asarray(values)).tolist())


@contextmanager
def _readable(formula: str, frame: DataFrame) -> Iterator[ModuleType]:
    """The module formulae. Its errors become errors about the formula."""
    with _checks.needs(NEEDED, "formulae"):
        import formulae
    try:
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            yield formulae
    except Exception as error:  # of the parser of formulae, and of functions in the formula
        reason = str(error)
        if isinstance(error, KeyError):
            called = re.search(rf"\b{re.escape(str(error.args[0]))}\s*\(", formula)
            columns = f"the columns of data, {', '.join(map(str, frame.columns[:9]))}"
            reason = f"{error.args[0]!r} is unknown; allowed: {AT_HAND if called else columns}"
        elif isinstance(error, TypeError):
            reason += "; arithmetic needs I(), as in I(x + 1)"
        elif type(error).__module__ in ("formulae.parser", "formulae.scanner"):
            ends = reason.endswith("''")
            reason = f"{'it ends too early' if ends else reason}; allowed: {SYNTAX}"
        raise ValueError(f"formula {formula!r} cannot be read with these data: {reason}") from error


def _unit_of(y: Array, offset: Array, loss: str, has_groups: bool) -> tuple[float, float]:
    """The unit of y in default priors, and the mean of the prior of an intercept."""
    if loss in OF_LOG:
        mean = float((y * np.exp(offset.min() - offset)).mean())
        return 1.0, math.log(mean) - float(offset.min()) if mean > 0.0 else 0.0
    if not losses.resolve(loss).in_units_of_y:
        return 1.0, 0.0
    spread = float(np.ptp(y)) or abs(float(y[0]))
    if spread and not LEAST <= spread <= MOST:
        raise ValueError(
            f"the response is {y.min():g} to {y.max():g}; allowed: a range, or where it is "
            f"constant a size, from {LEAST:g} to {MOST:g}, in another unit"
        )
    if has_groups and not np.ptp(y):
        raise ValueError(
            f"the response is {y[0]:g} in all rows; allowed with group terms: different numbers"
        )
    away = y - offset
    return float(away.std(ddof=min(1, len(y) - 1))) or 1.0, float(away.mean())


def _default(number: str, unit: float) -> Scale:
    """The default prior of a parameter of a family: only those of sigma and b have a unit."""
    if number in ("sigma", "b"):
        return HalfStudentT(4.0, unit)
    return Gamma(2.0, 0.1) if number == "nu" else HalfCauchy(1.0)


def _scaled(rows: Matrix, n: int, unit: float, center: float) -> tuple[Array, Array, Array]:
    """Prior means and sds of weights, and what turns those of common terms, (n, n).

    Common terms are scaled as by bambi, others are 0 and 1. The prior of a constant column is at
    the means of the others: that column's row of the matrix is these means.
    """
    X, mean, sd = rows[:, :n], np.zeros(rows.shape[1]), np.ones(rows.shape[1])
    X = X if isinstance(X, np.ndarray) else X.toarray()
    constant = _are_constant(X)
    sd[:n] = WIDE * unit / np.where(constant, 1.0, X.std(axis=0))
    mean[:n][constant] = center
    middle = np.where(constant[:, None] & ~constant, X.mean(axis=0), 0.0)
    return mean, sd, middle


def _are_constant(X: Array) -> NDArray[np.bool_]:
    """Whether columns (n, m) are constant but for rounding, (m,)."""
    return np.asarray(X.std(axis=0) <= 1e-12 * np.abs(X).max(axis=0, initial=0.0))


def _sizes(rows: Matrix, design: ModelMatrix) -> Array:
    """Sds of the columns of effects, or the size of constant ones, (e,)."""
    columns = [np.asarray(rows[:, at].sum(axis=1)) for _, at in design.effects.values()]
    X = np.array(columns).reshape(-1, rows.shape[0]).T @ design.turn
    sizes = np.where(_are_constant(X), np.sqrt((X**2).mean(axis=0)), X.std(axis=0))
    return np.where(sizes > 0.0, sizes, 1.0)


def _checked_priors(given: Mapping[str, Prior] | None, kinds: dict[str, Any]) -> dict[str, Any]:
    """Check priors by the names of terms, which have these kinds."""
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(f"priors is {_checks.describe(given)}; allowed: a dict of terms to priors")
    priors: dict[str, Any] = dict(given or {})
    for name, prior in priors.items():
        if name not in kinds:
            names = ", ".join(map(repr, kinds))
            raise ValueError(f"priors has {name!r}, which is not a term; allowed: {names}")
        where, (kind, allowed) = f"priors[{name!r}]", kinds[name]
        if not isinstance(prior, kind) or (kind is tuple and len(prior) != 2):
            raise TypeError(f"{where} is {_checks.describe(prior)}; allowed: {allowed}")
        if kind is tuple:
            mean = _checks.number(f"{where}[0]", prior[0])
            priors[name] = mean, _checks.number(f"{where}[1]", prior[1], above=0.0)
    return priors


#: classes of files, see :func:`epfast.load`
CLASSES = {one.__name__: one for one in (FormulaFit, ModelMatrix)}
