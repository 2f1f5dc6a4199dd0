"""Regression by a formula, ``y ~ x + (x | g)``, with group effects, averaged over their sds.

Formulas are read by `formulae <https://bambinos.github.io/formulae>`_, families and default priors
are those of bambi: see :func:`epfast.formula.fit`. ``pip install epfast[formula]``.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy import sparse

from epfast import _checks, losses
from epfast._arrays import Array
from epfast.gaussian import IntegratedPosterior
from epfast.gaussian.fit_linear import fit_linear
from epfast.gaussian.hyper import fit_hyper
from epfast.losses.names import own_name
from epfast.priors import LKJ, HalfNormal, HalfStudentT, Scale

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
#: the largest size of numbers, and for a response the least range, or size where it is constant
MOST, LEAST = 1e70, 1e-70
#: functions in formulas, in addition to those of formulae and of the caller
FUNCTIONS = {one.__name__: one for one in (np.exp, np.log, np.log10, np.log1p, np.log2, np.sqrt)}
#: sd of default priors of slopes in units of y over x, and of sds of groups
WIDE = 2.5
#: largest size of a dense matrix of all columns. Above it group columns are sparse
DENSE = 5_000_000
#: other names in formulas, for errors
AT_HAND = "functions of the caller, log(x), bs(x, df=4), scale(x), poly(x, 2), C(x)"
#: priors of common terms, scales and correlations, and their names in errors
NORMAL = tuple, "(mean, sd) of a normal prior"
OF_SCALE = Scale, "a prior of epfast.priors, such as HalfNormal(1.0)"
OF_PAIRS = LKJ, "epfast.priors.LKJ, such as LKJ(2.0)"


class ModelMatrix:
    """Columns of the terms of a formula: common ones, and effects with a column per level."""

    def __init__(self, formula: str, frame: Any, env: Any) -> None:
        """env: the environment of the functions in the formula."""
        model, correlated = _read(formula)
        _check_columns(frame, model.var_names)
        for term in model.group_terms:
            if all(hasattr(one, "reference") for one in term.factor.components):  # variables
                term.set_data = partial(_set_levels, term, frame)
        model.eval(frame, env)
        model.response.set_type(frame, env)
        model.response.set_data()
        self.model = model
        self.common = [term for term in model.common_terms if term.kind != "offset"]
        self.offsets = [term for term in model.common_terms if term.kind == "offset"]
        #: columns of each term, and labels of all columns
        self.terms: dict[str, slice] = {}
        self.labels: list[str] = []
        for term in (*self.common, *model.group_terms):
            start = len(self.labels)
            self.labels += map(str, term.labels)
            self.terms[term.name] = slice(start, len(self.labels))
        self.n_common = sum(len(term.labels) for term in self.common)
        #: for each effect, such as "x|g", its term and its columns
        self.effects: dict[str, tuple[str, Any]] = {}
        for term in model.group_terms:
            names = ["1"] if term.kind == "intercept" else term.expr.labels
            for k, name in enumerate(f"{one}|{term.factor.name}" for one in names):
                # columns of a level are next to each other
                columns = np.arange(len(self.labels))[self.terms[term.name]][k :: len(names)]
                self.effects[name] = term.name, columns
        if not self.labels:
            raise ValueError("it has only offsets; allowed: an intercept, 1, or other terms")
        #: groups of correlated effects, and all pairs of them, in the order of fit_hyper
        self.blocks: list[tuple[str, ...]] = []
        self.pairs: list[tuple[str, str]] = []
        for group in correlated:
            for factor in dict.fromkeys(one.factor.name for one in group):
                terms = {one.name for one in group if one.factor.name == factor}
                of = tuple(name for name, (term, _) in self.effects.items() if term in terms)
                self.blocks += [of] * (len(of) > 1)
                self.pairs += [(of[j], of[i]) for i in range(len(of)) for j in range(i)]
        for name in (one for one in self.effects if sum(one in of for of in self.blocks) > 1):
            raise ValueError(
                f"it correlates {name!r} in two terms; allowed: one term, or (x || g) without "
                "correlations"
            )

    def covariance(self, values: Array) -> Array:
        """Covariance of the effects of a new level, (e, e). values: sds, then correlations."""
        names = list(self.effects)
        sds, half = values[: len(names)], 0.5 * np.eye(len(names))
        for (one, other), value in zip(self.pairs, values[len(names) :], strict=False):
            half[names.index(one), names.index(other)] = value
        return np.asarray(sds[:, None] * (half + half.T) * sds)

    def rows(self, frame: Any, new_levels: str = "error") -> tuple[Any, Array, Array]:
        """Columns of rows, their offsets, and the columns of the effects of new levels."""

        def values(term: Any) -> Array:
            evaluated = np.reshape(term.eval_new_data(frame), (len(frame), -1)).astype(np.float64)
            for row in np.flatnonzero(~np.isfinite(evaluated).all(axis=1)):
                raise ValueError(f"{term.name!r} is NaN or infinite in row {row}; allowed: numbers")
            size = np.abs(evaluated).max(initial=0.0)
            if size > MOST:
                raise ValueError(f"{term.name!r} has {size:g} in size; allowed: up to {MOST:g}")
            return evaluated

        _check_columns(frame, {name for term in self.model.terms for name in term.var_names})
        n, d = len(frame), len(self.labels)
        X, new = np.hstack([np.empty((n, 0)), *map(values, self.common)]), [np.empty((n, 0))]
        offset = sum((values(term)[:, 0] for term in self.offsets), np.zeros(n))
        Z = sparse.lil_array((n, d - self.n_common))
        for term in self.model.group_terms:
            columns = [places for of, places in self.effects.values() if of == term.name]
            level, unseen = term.eval_new_data_group_index(frame)
            if unseen and new_levels == "error":
                raise ValueError(
                    f"{unseen[0]!r} is not a level of {term.factor.name!r} in the fit; allowed: "
                    "levels of the fit, or new_levels='integrate' or 'zero'"
                )
            at, seen = values(term.expr), level < len(term.groups)
            for places, one in zip(columns, at.T, strict=True):
                Z[np.flatnonzero(seen), places[level[seen]] - self.n_common] = one[seen]
            new.append(np.where(seen[:, None], 0.0, at))
        rows = np.hstack([X, Z.toarray()]) if n * d <= DENSE else sparse.hstack([X, Z], "csr")
        return rows, offset, np.column_stack(new)


@dataclass(frozen=True, eq=False)
class FormulaFit:
    """The result of :func:`epfast.formula.fit`.

    Attributes
    ----------
    formula, family : str
        The arguments of the fit.
    posterior : IntegratedPosterior
        Posterior of all weights: those of the common terms, then those of the group terms. It has
        one point if there are no hyper-parameters.
    labels : tuple of str
        Names of the weights.
    converged : bool
        Whether all fits converged.
    log_evidence : float
        log p(y), integrated over weights and hyper-parameters.
    """

    formula: str
    family: str
    posterior: IntegratedPosterior = field(repr=False)
    labels: tuple[str, ...] = field(repr=False)
    design: ModelMatrix = field(repr=False)
    #: names of the hyper-parameters, as in the tables
    hyper_labels: tuple[str, ...] = field(repr=False)

    converged = property(attrgetter("posterior.converged"))
    log_evidence = property(attrgetter("posterior.log_evidence"))

    @property
    def fixed(self) -> Any:
        """Table of the common weights: mean, sd, and a central interval of 94 %."""
        return self._table(0.94).iloc[: self.design.n_common]

    @property
    def random(self) -> Any:
        """Table of the group effects, which are added to the common weights."""
        return self._table(0.94).iloc[self.design.n_common : len(self.labels)]

    @property
    def hyper(self) -> Any:
        """Table of sds of groups and parameters of the likelihood. Empty if there are none."""
        return self.posterior.hyper.set_axis(list(self.hyper_labels))

    def summary(self, level: float = 0.94) -> Any:
        """Table of common weights, sds of groups and parameters of the likelihood.

        Parameters
        ----------
        level : float, default=0.94
            Posterior probability of the intervals, between 0 and 1.
        """
        return self._table(level).drop(index=list(self.labels[self.design.n_common :]))

    def _table(self, level: float) -> Any:
        """Table of all weights and hyper-parameters."""
        labels = [*self.labels, *self.hyper_labels]
        return self.posterior.summary(level).iloc[:, :4].set_axis(labels)

    # -- prediction --

    def predict_latent(self, data: Any, new_levels: str = "integrate") -> tuple[Array, Array]:
        """Mean and variance of the linear predictor of new rows, (n,) each.

        Parameters
        ----------
        data : pandas.DataFrame
            With the variables of the right side of the formula.
        new_levels : {"integrate", "zero", "error"}, default="integrate"
            Effect of a level that the fit did not have. "integrate" averages over the distribution
            of its group, which adds the variance of the group. "zero" sets the effect to 0. "error"
            raises a ValueError.
        """
        post, means, variances = self._latent(data, new_levels)
        mean = post.weights @ means
        return mean, post.weights @ (variances + (means - mean) ** 2)

    def predict(self, data: Any, new_levels: str = "integrate", return_std: bool = False) -> Any:
        """Mean of y of new rows, (n,). For 0 and 1, and for trials, the probability of a success.

        Parameters
        ----------
        data, new_levels
            As in :meth:`predict_latent`.
        return_std : bool, default=False
            Whether to return the standard deviation of y, too.
        """
        post, *moments = self._latent(data, new_levels)
        losses_ = [one.known_loss().with_offset(False) for one in post.posteriors]
        points, labels = list(zip(losses_, *moments, strict=True)), losses_[0].by_margin
        of_mean = "predict_proba" if labels else "predict"
        means = np.array([getattr(loss, of_mean)(m, v) for loss, m, v in points])
        mean = post.weights @ means
        if not _checks.flag("return_std", return_std):
            return mean
        # the variance of labels -1 and 1 is four times that of 0 and 1
        within = [loss.predict_variance(m, v) / (4.0 if labels else 1.0) for loss, m, v in points]
        return mean, np.sqrt(post.weights @ (within + (means - mean) ** 2))

    def _latent(self, data: Any, new_levels: str) -> tuple[IntegratedPosterior, Array, Array]:
        """The posterior, and means and variances of the linear predictor at its points, (k, n)."""
        _checks.choice("new_levels", new_levels, ("integrate", "zero", "error"))
        frame, post = _frame(data), self.posterior
        with _readable(self.formula, frame):
            rows, offset, new = self.design.rows(frame, new_levels)
        parts = [one.predict_latent(rows) for one in post.posteriors]
        means, variances = (np.array(one) for one in zip(*parts, strict=True))
        if new_levels == "integrate" and new.any():
            variances += [((new @ self.design.covariance(at)) * new).sum(1) for at in post.points]
        return post, means + offset, variances


@_checks.named
def fit(
    formula: str,
    data: Any,
    family: str = "gaussian",
    *,
    priors: Mapping[str, Any] | None = None,
    weights: Any = None,
    strategy: str = "auto",
    rng: np.random.Generator | int | None = 0,
) -> FormulaFit:
    """Fit a regression by a formula, and average over the sds of its groups and its noise.

    Parameters
    ----------
    formula : str
        A formula as in lme4, brms and bambi, such as ``"y ~ x + h + (x | g)"``. A group term
        ``(x | g)`` has an intercept and a slope for each level of g. They are correlated, as in
        lme4 and brms, and independent with ``(x || g)``. Each has an sd. ``0 + (1 | g)`` has no
        common intercept. Other terms are ``x:h``, ``x * h``, ``(1 | g:h)``, ``(1 | g/h)``,
        ``offset(z)``, ``I(x ** 2)``, ``C(k)``, ``log(x)``, ``scale(x)``, ``poly(x, 2)``,
        ``bs(x, df=4)`` and functions of the caller. Other responses are ``log(y)``,
        ``prop(successes, trials)`` and ``y['level']``.
    data : pandas.DataFrame
        A column per variable. Columns in the formula have no missing values.
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

        Defaults are those of bambi. Slopes have N(0, 2.5 sd(y) / sd(x)), sds of groups a
        half-normal of scale 2.5 sd(y) over the size of their columns, sigma a half-Student-t of 4
        degrees of freedom and scale sd(y), and correlations LKJ(2). For families other than
        "gaussian", "t" and "laplace", sd(y) is replaced by 1.
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
        env = formulae.environment.Environment.capture(2).with_outer_namespace(FUNCTIONS)
        design = ModelMatrix(formula, frame, env)
        rows, offset, _ = design.rows(frame)
        y, unit, center = _response(design.model.response.term, name, family, bool(design.effects))
    if isinstance(weights, str):
        weights = frame[_checks.choice("weights", weights, tuple(map(str, frame.columns)))]
    cor = {members: f"cor|{members[0].rpartition('|')[2]}" for members in design.blocks}
    kinds: dict[str, Any] = {term.name: NORMAL for term in design.common}
    kinds |= dict.fromkeys([*design.terms, *design.effects, *numbers], OF_SCALE) | kinds
    given = _checked_priors(priors, kinds | dict.fromkeys(cor.values(), OF_PAIRS))
    mean, sd = _scaled(rows, design.n_common, unit, center)
    for term in (one.name for one in design.common if one.name in given):
        mean[design.terms[term]], sd[design.terms[term]] = given[term]
    sds: dict[str, Any] = {}
    for effect, (term, at) in design.effects.items():
        reach = np.sqrt((rows[:, at] ** 2).sum() / len(y)) or 1.0
        sds[effect] = at, given.get(effect, given.get(term, HalfNormal(WIDE * unit / reach)))
    learn = {its: given.get(one, HalfStudentT(4.0, unit)) for one, its in numbers.items()}
    settings: dict[str, Any] = {"prior_variance": sd**2, "prior_mean": mean, "weights": weights}
    settings |= {"loss": losses.resolve(name), "offset": offset if design.offsets else None}
    if sds or learn:
        settings["correlations"] = {members: given.get(key, LKJ()) for members, key in cor.items()}
        settings |= {"sds": sds, "learn": learn, "strategy": strategy, "rng": rng}
        post = fit_hyper(rows, y, **settings)
    else:
        only = fit_linear(rows, y, posterior="full", **settings)
        post = IntegratedPosterior.of([only], [0.0], np.empty((1, 0)), (), [0.0], 1)
    hyper = [f"sd {effect}" for effect in sds]
    hyper += [f"cor {a.rpartition('|')[0]},{b}" for a, b in design.pairs]
    return FormulaFit(formula, family, post, tuple(design.labels), design, (*hyper, *numbers))


def _read(formula: str) -> tuple[Any, list[list[Any]]]:
    """The model of a formula, and the terms of each ``(x | g)``, whose effects are correlated."""
    from formulae import parser, resolver, scanner
    from formulae.terms.terms import Intercept, NegatedIntercept

    correlated: list[list[Any]] = []

    class Resolver(resolver.Resolver):  # type: ignore[misc]
        def visitBinaryExpr(self, expr: Any) -> Any:  # noqa: N802
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

    tokens: list[Any] = []
    for token in scanner.Scanner(formula).scan():
        if tokens and token.lexeme == tokens[-1].lexeme == "|":  # formulae does not support ||
            token.lexeme += tokens.pop().lexeme
        tokens.append(token)
    reader = parser.Parser(tokens)
    tree = reader.parse()
    if not reader.at_end():
        raise _unread(reader.peek().lexeme)
    model = Resolver(tree).resolve()
    if getattr(model, "response", None) is None:
        raise ValueError("it has no response; allowed: a formula with a response, such as y ~ x")
    model.common_terms = [one for one in model.common_terms if one != NegatedIntercept()]
    return model, correlated


def _set_levels(term: Any, frame: Any, spans_intercept: bool) -> None:
    """As ``set_data`` of a group term of formulae, but for its dense columns of all levels."""
    term.expr.set_data(spans_intercept)
    term.kind, names = term.expr.kind, []
    for variable in term.factor.components:
        values = frame[variable.name]
        is_ordered = getattr(values.dtype, "ordered", False)
        levels = values.cat.categories if is_ordered else np.unique(values)
        variable.levels, variable.spans_intercept = levels.tolist(), True
        names.append([str(level) for level in variable.levels])
        variable.contrast_matrix = SimpleNamespace(labels=names[-1])
    term.groups = list(map(":".join, product(*names)))


def _unread(lexeme: str) -> ValueError:
    return ValueError(
        f"{lexeme!r} is not supported there; allowed: + between terms, one | or || in parentheses "
        "for a group term, as in (x | g), prop(successes, trials) left of ~, weights= for weights"
    )


def _frame(data: Any) -> Any:
    """The data as a frame, from a frame or a dict of columns."""
    with _checks.needs(NEEDED, "pandas"):
        import pandas

    frame = pandas.DataFrame(data) if isinstance(data, Mapping) else data
    if not isinstance(frame, pandas.DataFrame):
        raise TypeError(f"data is {_checks.describe(data)}; allowed: a pandas.DataFrame")
    if not len(frame):
        raise ValueError("data has 0 rows; allowed: at least one row")
    return frame


def _check_columns(frame: Any, names: set[str]) -> None:
    """Refuse missing values and times, which terms do not support."""
    part = frame[[name for name in frame.columns if name in names]]
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


@contextmanager
def _readable(formula: str, frame: Any) -> Iterator[Any]:
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
        raise ValueError(f"formula {formula!r} cannot be read with these data: {reason}") from error


def _response(
    response: Any, name: str, family: str, has_groups: bool
) -> tuple[Array, float, float]:
    """y as the loss of that name takes it, and its unit and mean for default priors."""
    y, kind = np.asarray(response.data, dtype=np.float64), response.kind
    y = y[:, 1] if kind == "categoric" and y.shape[1:] == (2,) else y
    of_two = y.ndim == 1 and np.isin(y, (0.0, 1.0)).all()
    right, allowed = {
        "logistic": (of_two, "0 and 1, a variable of two levels, or y['level']"),
        "binomial": (
            kind == "proportion",
            "prop(successes, trials), or family='bernoulli' for 0 and 1",
        ),
    }.get(name, (y.ndim == 1 and kind == "numeric" and np.isfinite(y).all(), "finite numbers"))
    if not right:
        raise ValueError(
            f"{response.name!r} is not a response of family {family!r}; allowed: {allowed}"
        )
    y = 2.0 * y - 1.0 if name == "logistic" else y
    if not losses.resolve(name).in_units_of_y:
        return y, 1.0, 0.0
    spread = float(np.ptp(y)) or abs(float(y[0]))
    if spread and not LEAST <= spread <= MOST:
        raise ValueError(
            f"{response.name!r} is {y.min():g} to {y.max():g}; allowed: a range, or where it is "
            f"constant a size, from {LEAST:g} to {MOST:g}, in another unit"
        )
    if has_groups and not np.ptp(y):
        raise ValueError(
            f"the response is {y[0]:g} in all rows; allowed with group terms: different numbers"
        )
    return y, float(y.std(ddof=min(1, len(y) - 1))) or 1.0, float(y.mean())


def _scaled(rows: Any, n: int, unit: float, center: float) -> tuple[Array, Array]:
    """Prior means and sds of weights. Common terms are scaled as by bambi, others are 0 and 1."""
    X, mean, sd = rows[:, :n], np.zeros(rows.shape[1]), np.ones(rows.shape[1])
    X = X if isinstance(X, np.ndarray) else X.toarray()
    spread = X.std(axis=0)
    constant = spread <= 1e-12 * np.abs(X).max(axis=0, initial=0.0)
    sd[:n] = WIDE * unit / np.where(constant, 1.0, spread)
    far = float(np.sqrt(((sd[:n] * X.mean(axis=0))[~constant] ** 2).sum()))
    sd[:n][constant], mean[:n][constant] = np.hypot(WIDE * unit, far), center
    return mean, sd


def _checked_priors(given: Any, kinds: dict[str, Any]) -> dict[str, Any]:
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
