"""combine: one posterior of fits of disjoint rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from epfast._arrays import Array
from epfast.gaussian.linear_posterior import FactorizedPosterior, FullPosterior
from epfast.gaussian.online import joined_data
from epfast.gaussian.prior import cross_terms
from epfast.gaussian.problem import Problem
from epfast.gaussian.rows import same_rows
from epfast.gaussian.shrunk_posterior import ShrunkPosterior
from epfast.gaussian.state import is_proper, product_over, stacked_rows
from epfast.gaussian.wide import is_wide
from epfast.gaussian.wide_posterior import WidePosterior
from epfast.inference import Sites


def combine(posteriors: Sequence[Any]) -> FactorizedPosterior | FullPosterior:
    """Combine fits of disjoint rows: the product of the posteriors over all priors but one.

    N(theta) ∝ Π_k q_k(theta) / prior(theta)^(K-1): precisions and shifts add up, less those of the
    surplus priors, and so do the log scales. What comes out is prior times all the sites. It is
    exact where the sites are, for normal likelihoods. Else each site was fitted beside those of its
    own rows alone, and the result is no fixed point of EP: ``converged`` is False. It is a good
    ``start`` for :func:`epfast.fit_linear` with all the rows, and where each fit has many rows for
    its number of columns the start is as good as the end.

    Parameters
    ----------
    posteriors : sequence of FullPosterior or of FactorizedPosterior
        Two at least, of the same kind, prior, loss, scheme and columns, of rows that no other has.

    Returns
    -------
    FullPosterior or FactorizedPosterior
        Its sites are those of the first, then those of the second, and so on, or None where one
        has none. So are its rows, where all of them are known. Its prior is that of the first: an
        intercept has it at the means of the columns there.

    Raises
    ------
    ValueError, TypeError
        If the posteriors differ in a setting, which is named, or if the product is improper.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(400, 2))
    >>> y = np.where(X @ [1.0, -1.0] + rng.normal(size=400) > 0, 1, -1)
    >>> halves = [epfast.fit_linear(X[k::2], y[k::2], loss="probit") for k in (0, 1)]
    >>> whole = epfast.fit_linear(np.vstack([X[::2], X[1::2]]), np.r_[y[::2], y[1::2]],
    ...                           loss="probit")
    >>> bool(np.abs(epfast.combine(halves).mean - whole.mean).max() < 0.05)
    True
    """
    if not isinstance(posteriors, Sequence):
        raise TypeError(f"posteriors is a {type(posteriors).__name__}; allowed: a list of them")
    if len(posteriors) < 2:
        raise ValueError(f"posteriors holds {len(posteriors)}; allowed: two at least")
    posteriors = _in_one_form(posteriors)
    first = posteriors[0]
    for k, post in enumerate(posteriors):
        if not isinstance(post, FactorizedPosterior | FullPosterior):
            raise TypeError(
                f"posteriors[{k}] is a {type(post).__name__}; allowed: a FullPosterior or "
                "FactorizedPosterior"
            )
        if post.problem.posterior == "sparse":
            raise ValueError(
                f"posteriors[{k}] has a sparse precision; allowed: fits with posterior='full'"
            )
        if isinstance(post, ShrunkPosterior):
            raise ValueError(
                f"posteriors[{k}] has prior={post.prior!r}, which is no normal one and cannot be "
                "divided out; allowed: fits with a normal prior"
            )
        _check_same(k, first, post)
        for j, other in enumerate(posteriors[:k]):
            if post is other or same_rows(post.problem.data, other.problem.data):
                raise ValueError(
                    f"posteriors[{j}] and posteriors[{k}] are fits of the same rows, which would "
                    "count twice; allowed: disjoint rows"
                )
    problems = [post.problem for post in posteriors]
    sites, prior = _joined_sites(posteriors), first.problem.prior.state
    data = joined_data([problem.data for problem in problems])
    if isinstance(first, WidePosterior):
        sweeps = max(post.n_sweeps for post in posteriors)
        return first.joined(sites, data, sweeps=sweeps, converged=False, history=[])
    # of each the prior of the first in place of its own, whose intercept may have another center
    states = [
        post.state._replace(
            precision=post.state.precision + (prior.precision - post.problem.prior.precision)
        )
        for post in posteriors
    ]
    state = product_over(states, prior, sites)
    if not is_proper(state.precision):
        raise ValueError(
            "posteriors have an improper product over the surplus priors; allowed: fits that are "
            "narrower than the prior"
        )
    data = data._replace(groups=_joined_groups(problems, sites))
    problem = first.problem._replace(data=data)
    result: FactorizedPosterior | FullPosterior = type(first)(state, problem, False, [])
    return result


def _in_one_form(posteriors: Sequence[Any]) -> Sequence[Any]:
    """The posteriors, all in the d x d form unless their rows together are wide."""
    wide = [post for post in posteriors if isinstance(post, WidePosterior)]
    rows = sum(post.problem.shape[0] for post in wide)
    if not wide or (len(wide) == len(posteriors) and is_wide(rows, wide[0].shift.size)):
        return posteriors
    return [post.in_d_by_d() if isinstance(post, WidePosterior) else post for post in posteriors]


def _check_same(k: int, first: Any, post: Any) -> None:
    """Raise if two posteriors are of different models."""
    parts: dict[str, tuple[Any, ...]] = {
        "kind": (type(first).__name__, type(post).__name__),
        "number of weights": (first.shift.size, post.shift.size),
        "names": (first.names, post.names),
        "beta": (first.beta, post.beta),
        "loss": (first.loss, post.loss),
        "offset": tuple(getattr(p.problem.loss, "has_offset", False) for p in (first, post)),
        "scheme": (first.scheme, post.scheme),
        "batch_size": (first.batch_size, post.batch_size),
        "intercept": tuple(p.problem.prior.intercept for p in (first, post)),
    }
    for name, (one, another) in parts.items():
        if one != another:
            raise ValueError(
                f"posteriors[{k}] has the {name} {another!r} and posteriors[0] {one!r}; allowed: "
                "the same"
            )
    rounding = (
        0.0 if first.problem.prior.center is None else np.abs(first.problem.prior.precision).max()
    )
    priors = zip(_without_center(first.problem), _without_center(post.problem), strict=True)
    for name, (one, another) in zip(("precision", "shift"), priors, strict=True):
        if not np.allclose(one, another, rtol=1e-12, atol=1e-12 * rounding):
            raise ValueError(
                f"posteriors[{k}] has another prior than posteriors[0] (its {name} differs); "
                "allowed: the same"
            )


def _without_center(problem: Problem) -> tuple[Array, Array]:
    """Precision and shift of the prior, as they would be with that of the intercept at 0."""
    prior = problem.prior
    precision, shift, center = prior.precision, prior.shift, prior.center
    if center is not None and problem.posterior != "wide":
        precision = precision - cross_terms(precision, center)
    return precision, shift


def _joined_sites(posteriors: Sequence[Any]) -> Any:
    """All sites in the order of the fits, or None if some are not stored or do not match."""
    all_sites = [post.sites for post in posteriors]
    if any(sites is None for sites in all_sites) or len({s.shift.ndim for s in all_sites}) > 1:
        return None
    if len({sites.precision.ndim for sites in all_sites}) > 1:
        return None
    size = posteriors[0].batch_size
    if size is not None and posteriors[0].problem.data.groups is None:
        # a minibatch that is not full is the last of its rows, and of all rows only once
        counts = [p.problem.shape[0] if p.problem.has_rows else None for p in posteriors[:-1]]
        if any(count is None or count % size for count in counts):
            return None
    return stacked_rows(all_sites)


def _joined_groups(problems: list[Problem], sites: Sites | None) -> Any:
    """Groups of the rows that share sites, numbered across the fits."""
    groups = [problem.data.groups for problem in problems]
    if sites is None or any(group is None for group in groups):
        return None
    counts = [int(group.max()) + 1 for group in groups]  # type: ignore[union-attr]
    offsets = np.concatenate([[0], np.cumsum(counts)[:-1]])
    return np.concatenate([g + o for g, o in zip(groups, offsets, strict=True)])
