"""Regression by a formula, ``y ~ x + (x | g)``, with group effects, averaged over their sds.

Formulas are read by `formulae <https://bambinos.github.io/formulae>`_, families and default priors
are those of bambi: see :func:`fit`. ``pip install epfast[formula]``.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from epfast import _checks, losses
from epfast._arrays import Array
from epfast.gaussian.fit_linear import fit_linear
from epfast.gaussian.hyper import fit_hyper
from epfast.inference import report
from epfast.losses import Loss
from epfast.priors import LKJ, HalfNormal, HalfStudentT, Scale

__all__ = ["FormulaFit", "fit"]

#: families by the names of bambi and brms: the loss, and its numbers that are learned, each by the
#: name in the table of results and the one in the loss
FAMILIES: dict[str, tuple[str, dict[str, str]]] = {
    "gaussian": ("gaussian", {"sigma": "sd"}),
    "t": ("student_t", {"sigma": "scale", "nu": "df"}),
    "student": ("student_t", {"sigma": "scale", "nu": "df"}),
    "bernoulli": ("logistic", {}),
    "binomial": ("binomial", {}),
    "poisson": ("poisson", {}),
    "negativebinomial": ("negative_binomial", {"alpha": "size"}),
    "negbinomial": ("negative_binomial", {"alpha": "size"}),
    "gamma": ("gamma_noise", {"alpha": "shape"}),
    "weibull": ("weibull", {"alpha": "shape"}),
}
#: sd of default priors of slopes in units of y over x, and of sds of groups
WIDE = 2.5
#: numbers of a dense matrix of all columns above which group columns are kept sparse
DENSE = 5_000_000
NEW_LEVELS = ("integrate", "zero", "error")


class Effects(NamedTuple):
    """The columns of the group terms: effects, each of which has a column per level."""

    #: of each effect: its name, as "x|g", its term, and its columns among those of the groups
    names: tuple[str, ...]
    terms: tuple[str, ...]
    columns: tuple[NDArray[np.intp], ...]
    #: groups of effects that are correlated, by their grouping factor
    correlated: dict[str, tuple[int, ...]]

    def covariance(self, values: Array) -> Array:
        """Of the effects of new levels, (e, e), from hyper-parameters: sds and then correlations.

        Those of a group of correlated effects go on where those of the last one end.
        """
        found, start = np.eye(len(self.names)), len(self.names)
        for members in self.correlated.values():
            for i, one in enumerate(members):
                for other in members[:i]:
                    found[one, other] = found[other, one] = values[start]
                    start += 1
        sds = values[: len(self.names)]
        return np.asarray(sds[:, None] * found * sds)


@dataclass(frozen=True, eq=False)
class FormulaFit:
    """What :func:`fit` returns.

    Attributes
    ----------
    formula, family : str
        As given.
    posterior : IntegratedPosterior or FullPosterior
        Of all weights: of the common terms, then of the group terms.
    labels : tuple of str
        Names of the weights.
    """

    formula: str
    family: str
    posterior: Any = field(repr=False)
    labels: tuple[str, ...] = field(repr=False)
    design: Any = field(repr=False)
    #: columns of the common terms that are no offsets, and names of these
    columns: NDArray[np.intp] = field(repr=False)
    offsets: tuple[str, ...] = field(repr=False)
    #: names of the hyper-parameters, as in the tables
    hyper_labels: tuple[str, ...] = field(repr=False)
    effects: Effects = field(repr=False)

    @property
    def converged(self) -> bool:
        """Whether all fits have settled."""
        return bool(self.posterior.converged)

    @property
    def log_evidence(self) -> float:
        """log p(y), integrated over weights and hyper-parameters."""
        return float(self.posterior.log_evidence)

    @property
    def _common(self) -> int:
        return len(self.columns)

    @property
    def fixed(self) -> Any:
        """A table of the common weights: mean, sd, and a central interval of 94 %."""
        return self._table(slice(0, self._common))

    @property
    def random(self) -> Any:
        """A table of the group effects, each beside the common weight of its term."""
        return self._table(slice(self._common, None))

    @property
    def hyper(self) -> Any:
        """A table of sds of groups and numbers of the likelihood; empty if there are none."""
        if not self.hyper_labels:
            return report.table((), {name: [] for name in ("mean", "sd", "5%", "50%", "95%")}, {})
        found = self.posterior.hyper
        columns = {name: np.asarray(found[name]) for name in found}
        return report.table(self.hyper_labels, columns, {})

    def summary(self, level: float = 0.94) -> Any:
        """A table of common weights, sds of groups and numbers of the likelihood.

        Parameters
        ----------
        level : float
            Posterior probability of the intervals, between 0 and 1.
        """
        level = report.level_at_door(level)
        ends = 0.5 * (1.0 - level), 0.5 * (1.0 + level)
        of_common = slice(0, self._common)
        rows = {"mean": self.posterior.mean[of_common], "sd": self._sd[of_common]}
        low, high = self.posterior.credible_interval(level)[of_common].T
        if self.hyper_labels:
            table, quantile = self.posterior.hyper, self.posterior.hyper_quantile
            rows = {name: np.append(rows[name], np.asarray(table[name])) for name in rows}
            low, high = (
                np.append(end, quantile(p)) for end, p in zip((low, high), ends, strict=True)
            )
        names = [f"{100 * p:g}%" for p in ends]
        labels = [*self.labels[of_common], *self.hyper_labels]
        attrs = {"log_evidence": self.log_evidence, "converged": self.converged}
        return report.table(labels, rows | dict(zip(names, (low, high), strict=True)), attrs)

    @property
    def _sd(self) -> Array:
        return np.asarray(np.sqrt(self.posterior.variance))

    def _table(self, which: slice) -> Any:
        low, high = self.posterior.credible_interval(0.94)[which].T
        columns = {
            "mean": self.posterior.mean[which],
            "sd": self._sd[which],
            "3%": low,
            "97%": high,
        }
        return report.table(self.labels[which], columns, {})

    # -- prediction --

    def predict_latent(self, data: Any, new_levels: str = "integrate") -> tuple[Array, Array]:
        """Mean and variance of the linear predictor of new rows, (n,) each.

        Parameters
        ----------
        data : pandas.DataFrame
            With the variables of the right side of the formula.
        new_levels : {"integrate", "zero", "error"}
            What the effect of a level is that was not in the data: drawn anew from its group,
            which adds the variance of the group; 0; or an error.
        """
        parts = list(self._latent(data, new_levels))
        share = np.array([weight for weight, _, _, _ in parts])
        means, variances = (np.array(one) for one in list(zip(*parts, strict=True))[2:])
        mean = share @ means
        return mean, share @ (variances + (means - mean) ** 2)

    def predict(self, data: Any, new_levels: str = "integrate", return_std: bool = False) -> Any:
        """Mean of y of new rows, (n,): of 0 and 1 its probability, of trials that of one.

        Parameters
        ----------
        data, new_levels
            As in :meth:`predict_latent`.
        return_std : bool
            Whether to return the standard deviation of y, too.
        """
        parts = list(self._latent(data, new_levels))
        share = np.array([weight for weight, _, _, _ in parts])
        means = np.array([_mean(loss, m, v) for _, loss, m, v in parts])
        mean = share @ means
        if not _checks.flag("return_std", return_std):
            return mean
        variances = np.array(
            [
                p * (1.0 - p) if loss.by_margin else loss.predict_variance(m, v)
                for p, (_, loss, m, v) in zip(means, parts, strict=True)
            ]
        )
        return mean, np.sqrt(share @ (variances + (means - mean) ** 2))

    def _latent(self, data: Any, new_levels: str) -> Iterator[tuple[float, Loss, Array, Array]]:
        """Weight, loss, and mean and variance of the linear predictor, of each point."""
        rows, offset, new = self._rows(data, _checks.choice("new_levels", new_levels, NEW_LEVELS))
        points = getattr(self.posterior, "posteriors", (self.posterior,))
        weights = getattr(self.posterior, "weights", np.ones(1))
        values = getattr(self.posterior, "points", np.empty((1, 0)))
        for post, weight, value in zip(points, weights, values, strict=True):
            mean, variance = post.predict_latent(rows)
            if new_levels == "integrate" and new.any():
                variance = variance + ((new @ self.effects.covariance(value)) * new).sum(1)
            yield float(weight), post.known_loss().with_offset(False), mean + offset, variance

    def _rows(self, data: Any, new_levels: str) -> tuple[Any, Array, Array]:
        """Columns of new rows, their offsets, and what multiplies the effects of new levels."""
        frame = _frame(data, "data")
        with _readable(self.formula, frame):
            common = self.design.common.evaluate_new_data(frame)
        group = None
        if self.design.group is not None:
            with _readable(self.formula, frame, silent=new_levels != "error"):
                group = self.design.group.evaluate_new_data(frame)
            used = set().union(*(term.var_names for term in self.design.group.terms.values()))
            for name in used & set(frame.columns):
                lost = frame[name].isna().to_numpy()
                if lost.any():
                    raise ValueError(
                        f"{name!r} is missing in row {int(lost.argmax())} of data; allowed: a level"
                    )
        X, offset = _common_columns(common, self.columns, self.offsets)
        if group is None:
            return X, offset, np.empty((len(X), 0))
        Z, known, new = sparse.csr_matrix(group.design_matrix), [], []
        for name, part in self.design.group.slices.items():
            whole, size = group.slices[name], part.stop - part.start
            known.append(Z[:, whole.start : whole.start + size])
            # a row is of one level: its columns of new ones add up to its own
            width = self.effects.terms.count(name)
            others = Z[:, whole.start + size : whole.stop]
            new += [np.asarray(others[:, k::width].sum(axis=1)).ravel() for k in range(width)]
        return _beside(X, sparse.hstack(known, format="csr")), offset, np.column_stack(new)


def fit(
    formula: str,
    data: Any,
    family: str = "gaussian",
    *,
    priors: Mapping[str, Any] | None = None,
    weights: Any = None,
    strategy: str = "auto",
    rng: int = 0,
) -> FormulaFit:
    """Fit a regression by a formula, and average over the sds of its groups and its noise.

    Parameters
    ----------
    formula : str
        As lme4, brms and bambi read it: ``"y ~ x + h + (x | g)"``. A group term ``(x | g)`` has an
        intercept and a slope for each level of g, which are correlated, as in lme4 and brms, and
        independent with ``(x || g)``; each has an sd. ``(1 | g:h)``, ``(1 | g/h)``, ``offset(z)``,
        ``scale(x)``, ``bs(x, df=4)`` and the response ``prop(successes, trials)`` are read too.
    data : pandas.DataFrame
        A column per variable, without missing values in those of the formula.
    family : str
        "gaussian", "t" (or "student"), "bernoulli", "binomial", "poisson", "negativebinomial" (or
        "negbinomial"), "gamma" or "weibull".
    priors : dict, optional
        By the name of a common term ``(mean, sd)`` of a normal prior; by the name of a group term,
        as ``"1|g"``, and of a number of the family, as ``"sigma"``, one of :mod:`epfast.priors`;
        by ``"cor|g"`` :class:`epfast.priors.LKJ` of the correlations of a group. None, and terms
        without one: as bambi scales them, slopes are N(0, 2.5 sd(y) / sd(x)), sds of groups
        half-normal of 2.5 sd(y) over the size of their columns, sigma half-Student-t of 4 degrees
        of freedom and sd(y); sd(y) is 1 but for "gaussian" and "t". Correlations are LKJ(2).
    weights : array_like of shape (n,), optional
        As in :func:`epfast.fit_linear`.
    strategy, rng
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
    _checks.choice("family", family, tuple(FAMILIES))
    frame = _frame(data, "data")
    text, terms_with_bar = _bars(formula)
    with _readable(formula, frame) as formulae:
        correlated = [_names(formulae, part) for part in terms_with_bar]
        # env=1: functions in the formula are those of the caller
        design = formulae.design_matrices(text, frame, na_action="error", env=1)
    if design.response is None:
        raise ValueError(f"formula is {formula!r}; allowed: one with a response, as 'y ~ x'")
    if design.common is None:
        raise ValueError(f"formula is {formula!r}; allowed: an intercept or another common term")
    name, numbers = FAMILIES[family]
    y, unit, center = _response(design.response, family)
    offsets = tuple(term for term in design.common.terms if term.startswith("offset("))
    common = np.asarray(design.common.design_matrix, dtype=np.float64)
    outside = [
        k for term in offsets for k in range(*design.common.slices[term].indices(len(common.T)))
    ]
    columns = np.setdiff1d(np.arange(len(common.T)), outside)
    X, offset = _common_columns(design.common, columns, offsets)
    terms = [term for term in design.common.terms if term not in offsets]
    effects = _effects(design.group, correlated)
    of_groups = dict.fromkeys([*effects.terms, *effects.names])
    known = [*terms, *of_groups, *(f"cor|{name}" for name in effects.correlated), *numbers]
    given = _checked_priors(priors, known, terms)
    mean, sd = _scaled(X, unit, center)
    labels = [str(label) for term in terms for label in design.common.terms[term].labels]
    start = 0
    for term in terms:
        size = len(design.common.terms[term].labels)
        if term in given:
            mean[start : start + size], sd[start : start + size] = given[term]
        start += size
    rows: Any = X
    sds, pairs = {}, {}
    if effects.names:
        Z = sparse.csr_matrix(design.group.design_matrix)
        for effect, term, part in zip(effects.names, effects.terms, effects.columns, strict=True):
            columns_of_rows = np.asarray(Z[:, part].sum(axis=1))
            reach = float(np.sqrt((columns_of_rows**2).mean())) or 1.0
            prior = given.get(effect, given.get(term, HalfNormal(WIDE * unit / reach)))
            sds[effect] = len(columns) + part, prior
        for factor, members in effects.correlated.items():
            names = tuple(effects.names[k] for k in members)
            pairs[names] = given.get(f"cor|{factor}", LKJ())
        for term in design.group.slices:
            labels += [str(label) for label in design.group.terms[term].labels]
        rows = _beside(X, Z)
        mean, sd = (
            np.append(one, np.full(Z.shape[1], end)) for one, end in ((mean, 0.0), (sd, 1.0))
        )
    learn = {theirs: given.get(ours, HalfStudentT(4.0, unit)) for ours, theirs in numbers.items()}
    settings: dict[str, Any] = {"loss": losses.resolve(name), "prior_variance": sd**2}
    settings |= {"prior_mean": mean, "weights": weights}
    settings["offset"] = offset if offsets else None
    if sds or learn:
        free: dict[str, Any] = {"sds": sds, "learn": learn, "correlations": pairs}
        post: Any = fit_hyper(rows, y, **free, strategy=strategy, rng=rng, **settings)
    else:
        post = fit_linear(rows, y, posterior="full", **settings)
    hyper = [f"sd {name}" for name in sds]
    for factor, members in effects.correlated.items():
        of = [effects.names[k].removesuffix(f"|{factor}") for k in members]
        hyper += [f"cor {of[j]},{of[i]}|{factor}" for i in range(len(of)) for j in range(i)]
    hyper += numbers
    more = design, columns, offsets, tuple(hyper), effects
    return FormulaFit(formula, family, post, tuple(labels), *more)


def _effects(group: Any, correlated: list[tuple[str, ...]]) -> Effects:
    """The effects of the group terms; correlated: terms whose effects are."""
    names: list[str] = []
    terms: list[str] = []
    columns: list[NDArray[np.intp]] = []
    for term, part in {} if group is None else group.slices.items():
        of, factor = group.terms[term], term.rpartition("|")[2]
        # those of a level are next to each other
        width = (part.stop - part.start) // len(of.groups)
        for k, label in enumerate(map(str, of.labels[:width])):
            names.append(label[: label.rindex(f"|{factor.split(':')[0]}[")] + f"|{factor}")
            terms.append(term)
            columns.append(np.arange(part.start + k, part.stop, width))
    found: dict[str, tuple[int, ...]] = {}
    for some in correlated:
        for factor in dict.fromkeys(term.rpartition("|")[2] for term in some):
            members = tuple(
                k for k, term in enumerate(terms) if term in some and term.endswith(f"|{factor}")
            )
            if len(members) > 1:
                if factor in found:
                    raise ValueError(
                        f"formula has two terms of correlated effects of {factor!r}; allowed: one, "
                        f"as (x + z | {factor}), or independent ones, as (x || {factor})"
                    )
                found[factor] = members
    return Effects(tuple(names), tuple(terms), tuple(columns), found)


def _names(formulae: Any, part: str) -> tuple[str, ...]:
    """Names of the group terms that a part of a formula stands for."""
    terms = formulae.model_description(f"0 + {part}").group_terms
    return tuple(term.name for term in terms)


def _bars(formula: Any) -> tuple[str, list[str]]:
    """The formula with | for each ||, which formulae does not know, and its terms with one |."""
    if not isinstance(formula, str):
        raise TypeError(
            f"formula is {_checks.describe(formula)}; allowed: str, as 'y ~ x + (1 | g)'"
        )
    left, said = formula.partition("~")[0], f"formula is {formula!r}"
    if "|" in left and "[" not in left:
        raise ValueError(f"{said}; allowed left of ~: no |, but prop(successes, trials) of counts")
    text, quote = "", ""
    found: list[str] = []
    opened: list[int] = []
    bars: dict[int, int] = {}
    for k, letter in enumerate(formula):
        second = letter == "|" and not quote and formula[k - 1 : k] == "|"
        text += "" if second else letter
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"`":
            quote = letter
        elif letter in "([{":
            opened.append(len(text) - 1)
        elif letter in ")]}" and opened:
            start = opened.pop()
            count = bars.pop(len(opened) + 1, 0)
            if count == 1:
                found.append(text[start:])
            elif count > 1 and (count > 2 or text[start:].count("|") > 1):
                raise ValueError(f"{said}; allowed: one | or || in a group term, as in (x || g)")
        elif letter == "|":
            if not opened:
                raise ValueError(f"{said}; allowed: group terms in parentheses, as in (x | g)")
            bars[len(opened)] = bars.get(len(opened), 0) + 1
    return text, found


def _frame(data: Any, name: str) -> Any:
    """The data, where they are a frame; or of a dict of columns."""
    import pandas

    if isinstance(data, Mapping):
        data = pandas.DataFrame(data)
    if not isinstance(data, pandas.DataFrame):
        raise TypeError(f"{name} is {_checks.describe(data)}; allowed: a pandas.DataFrame")
    if len(data) == 0:
        raise ValueError(f"{name} has 0 rows; allowed: one row at least")
    return data


@contextmanager
def _readable(formula: str, frame: Any, silent: bool = False) -> Iterator[Any]:
    """The library of formulas, whose errors are said in words of the formula."""
    try:
        import formulae
    except ImportError as error:
        raise ImportError("epfast.formula needs formulae: pip install epfast[formula]") from error
    key = "EVAL_UNSEEN_CATEGORIES"
    before = formulae.config[key]
    formulae.config[key] = "silent" if silent else "error"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.filterwarnings("ignore", "Constructing a Categorical")  # pandas, of formulae
            yield formulae
    except KeyError as error:
        name = error.args[0]
        allowed = f"the columns of data, {', '.join(map(str, frame.columns[:9]))}"
        if re.search(rf"\b{re.escape(str(name))}\s*\(", formula):
            allowed = "functions at hand, as np.log(x), and bs(x, df=4), scale(x), poly(x, 2)"
        raise ValueError(f"formula {formula!r} names {name!r}; allowed: {allowed}") from None
    except Exception as error:  # of its parser, and of what a term computes
        raise ValueError(f"formula {formula!r} cannot be read with these data: {error}") from error
    finally:
        formulae.config[key] = before


def _response(response: Any, family: str) -> tuple[Array, float, float]:
    """y as the loss takes it, its unit, and where it is centred."""
    y = np.asarray(response.design_matrix, dtype=np.float64)
    if not np.isfinite(y).all():
        raise ValueError(f"the response {response.name!r} holds NaN or infinity; allowed: numbers")
    if family == "bernoulli":
        if response.kind == "categoric" and y.ndim == 2 and y.shape[1] == 2:
            y = y[:, 1]
        if y.ndim != 1 or not np.isin(y, (0.0, 1.0)).all():
            raise ValueError(
                f"the response {response.name!r} is not of two values; allowed for 'bernoulli': 0 "
                "and 1, a variable of two levels, or y['level']"
            )
        return np.where(y > 0.0, 1.0, -1.0), 1.0, 0.0
    if family == "binomial" and response.kind != "proportion":
        raise ValueError(
            f"the response is {response.name!r}; allowed for 'binomial': prop(successes, trials)"
        )
    if family != "binomial" and (response.kind != "numeric" or y.ndim != 1):
        raise ValueError(
            f"the response {response.name!r} is no number; allowed for {family!r}: one"
        )
    if family in ("gaussian", "t", "student"):
        spread = float(y.std(ddof=1)) if len(y) > 1 else 0.0
        return y, spread or 1.0, float(y.mean())
    return y, 1.0, 0.0


def _common_columns(
    common: Any, columns: NDArray[np.intp], offsets: tuple[str, ...]
) -> tuple[Array, Array]:
    """Columns of the common terms, and the sum of the offsets."""
    matrix = np.asarray(common.design_matrix, dtype=np.float64)
    for term, part in common.slices.items():
        lost = ~np.isfinite(matrix[:, part]).all(axis=1)
        if lost.any():
            raise ValueError(
                f"the term {term!r} is NaN or infinite in row {int(lost.argmax())} of data; "
                "allowed: finite numbers"
            )
    offset = sum(
        (matrix[:, common.slices[term]].sum(axis=1) for term in offsets), np.zeros(len(matrix))
    )
    return np.ascontiguousarray(matrix[:, columns]), np.asarray(offset)


def _beside(X: Array, Z: Any) -> Any:
    """Common and group columns, dense where that is small."""
    if X.shape[0] * (X.shape[1] + Z.shape[1]) <= DENSE:
        return np.column_stack([X, Z.toarray()])
    return sparse.hstack([sparse.csr_matrix(X), Z], format="csr")


def _scaled(X: Array, unit: float, center: float) -> tuple[Array, Array]:
    """Means and sds of the default priors of common weights, as bambi scales them."""
    spread = X.std(axis=0)
    constant = spread <= 1e-12 * np.abs(X).max(axis=0, initial=0.0)
    sd = WIDE * unit / np.where(constant, 1.0, spread)
    far = float(np.sqrt(((sd * X.mean(axis=0))[~constant] ** 2).sum()))
    return np.where(constant, center, 0.0), np.where(constant, np.hypot(WIDE * unit, far), sd)


def _checked_priors(given: Any, known: list[str], terms: list[str]) -> dict[str, Any]:
    """Priors by the names of terms."""
    if given is not None and not isinstance(given, Mapping):
        raise TypeError(f"priors is {_checks.describe(given)}; allowed: a dict by names of terms")
    found: dict[str, Any] = {}
    for name, prior in (given or {}).items():
        if name not in known:
            said = ", ".join(map(repr, known))
            raise ValueError(f"priors has {name!r}, which is no term; allowed: {said}")
        if name not in terms:
            kind, said = (
                (LKJ, "LKJ(2.0)") if name.startswith("cor|") else (Scale, "HalfNormal(1.0)")
            )
            if not isinstance(prior, kind):
                raise TypeError(
                    f"priors[{name!r}] is {_checks.describe(prior)}; allowed: one of "
                    f"epfast.priors, as {said}"
                )
            found[name] = prior
            continue
        if not isinstance(prior, tuple) or len(prior) != 2:
            raise TypeError(
                f"priors[{name!r}] is {_checks.describe(prior)}; allowed: (mean, sd) of a normal "
                "prior"
            )
        mean = _checks.number(f"priors[{name!r}][0]", prior[0])
        found[name] = mean, _checks.number(f"priors[{name!r}][1]", prior[1], above=0.0)
    return found


def _mean(loss: Loss, mean: Array, variance: Array) -> Array:
    """Mean of y, (n,); of a label the probability of 1."""
    found = loss.predict_proba(mean, variance) if loss.by_margin else loss.predict(mean, variance)
    return np.asarray(found)
