"""compare: fits of the same responses side by side, by leave-one-out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from epfast.inference.records import Recorded
from epfast.inference.report import table


def compare(posteriors: Mapping[str, Any] | Sequence[Any]) -> Any:
    """Compare fits by their exact leave-one-out log probabilities.

    Each row's response is predicted from all the others, with the cavities of EP: no refitting, no
    draws. Sums over the rows are compared. The standard error of a difference is that of a sum of
    paired differences (Vehtari, Gelman & Gabry 2017).

    Parameters
    ----------
    posteriors : dict of str to posterior, or sequence of posteriors
        At least one, of models of the same responses, with stored sites and their rows: linear ones
        with full covariance, and processes.

    Returns
    -------
    pandas.DataFrame, or a table that prints aligned where pandas is missing
        A row per fit, the best first: ``loo`` (the sum, higher is better), ``se``, ``difference``
        from the best, ``se_difference``, ``log_evidence`` (NaN for losses that are no likelihoods),
        ``converged``.

    Raises
    ------
    ValueError, TypeError
        If the responses differ, if some losses are likelihoods and some are none, or if a fit
        gives no leave-one-out.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(100, 2))
    >>> y = np.where(X[:, 0] + 0.5 * rng.normal(size=100) > 0, 1, -1)
    >>> fits = {"both": epfast.fit_linear(X, y), "second": epfast.fit_linear(X[:, 1:], y)}
    >>> list(epfast.compare(fits).index)
    ['both', 'second']
    """
    named = _named(posteriors)
    first_name, first = next(iter(named.items()))
    values = {}
    for name, post in named.items():
        loss, y = post.known_loss(), post.observed()
        if y is None:
            raise ValueError(f"{name} does not know its rows; allowed: post.with_rows(X, y)")
        if loss.is_likelihood != first.known_loss().is_likelihood:
            raise ValueError(
                f"{name} has the loss {loss!r} and {first_name} {first.loss!r}, of which one is a "
                "likelihood and one is none; allowed: either kind alone"
            )
        base = first.observed()
        if len(y) != len(base) or not np.array_equal(y[:, 0], base[:, 0]):
            raise ValueError(
                f"{name} was fitted to other responses than {first_name}; allowed: the same "
                "responses in the same order"
            )
        if post.sites is None or not hasattr(post, "loo_log_predictive"):
            raise ValueError(
                f"{name} has no sites that give leave-one-out; allowed: a fit by EP, "
                "which stores a site per row"
            )
        values[name] = post.loo_log_predictive()
    order = sorted(values, key=lambda name: -values[name].sum())
    best = values[order[0]]
    less = {name: values[name] - best for name in order}
    columns = {
        "loo": np.array([values[name].sum() for name in order]),
        "se": np.array([_error(values[name]) for name in order]),
        "difference": np.array([less[name].sum() for name in order]),
        "se_difference": np.array([_error(less[name]) for name in order]),
        "log_evidence": np.array([_evidence(named[name]) for name in order]),
        "converged": np.array([named[name].converged for name in order]),
    }
    return table(order, columns, {"rows": len(best)})


def _named(posteriors: Any) -> dict[str, Any]:
    if isinstance(posteriors, Mapping):
        named = {str(name): post for name, post in posteriors.items()}
    elif isinstance(posteriors, Sequence) and not isinstance(posteriors, str):
        named = {f"posteriors[{i}]": post for i, post in enumerate(posteriors)}
    else:
        raise TypeError(
            f"posteriors is a {type(posteriors).__name__}; allowed: a list or a dict of posteriors"
        )
    if not named:
        raise ValueError("posteriors is empty; allowed: one posterior at least")
    for name, post in named.items():
        if not (isinstance(post, Recorded) and hasattr(post, "loo_log_predictive")):
            raise TypeError(f"{name} is a {type(post).__name__}; allowed: a posterior")
    return named


def _error(values: Any) -> float:
    return float(np.sqrt(len(values) * values.var()))


def _evidence(post: Any) -> float:
    return float(post.log_evidence) if post.loss.is_likelihood else float("nan")
