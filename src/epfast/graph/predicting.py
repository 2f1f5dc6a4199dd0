"""Predictions: the forward message of a kind of factor, from the beliefs about its neighbours."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from epfast._arrays import Array
from epfast.graph.factors import (
    Between,
    Kind,
    LinearFactor,
    check_instance,
    form_of,
    loss_with_noise,
    per_row,
    responses_of,
    rows_of,
    variables_of,
    with_responses,
)
from epfast.graph.factors_categorical import Mixture, Table, forms_of
from epfast.graph.factors_chains import Transition, Walk
from epfast.graph.factors_continuous import (
    CompoundGamma,
    LogisticLink,
    Noise,
    Product,
    numbers_of,
)
from epfast.graph.noise import log_noise_density
from epfast.graph.own import Factor, ScalePrior
from epfast.graph.problem import check_handles
from epfast.graph.variables import Form
from epfast.losses import Interval, Loss, Ordinal

if TYPE_CHECKING:
    from epfast.graph.posterior import GraphPosterior

METHODS = ("predict", "predict_variance", "predict_proba", "log_predictive")


def predicted(
    post: GraphPosterior,
    method: str,
    factor: Any,
    neighbours: tuple[Any, ...],
    data: dict[str, Any],
) -> Array:
    """What a method of the posterior gives for a factor; errors list what there is for its kind."""
    check_instance(factor)
    if isinstance(factor, LinearFactor):
        factor = factor.loss
    kind = type(factor) if isinstance(factor, Kind) else Loss
    name = kind.__name__ if kind is not Loss else repr(factor)
    doors = DOORS.get(kind, {})
    if method not in doors:
        there = ", ".join(m for m in METHODS if m in doors)
        hint = HINTS.get(kind, "what it leads to has no prediction")
        raise ValueError(f"{method} does not exist for the factor {name}; allowed: {there or hint}")
    door = doors[method]
    try:
        inspect.signature(door).bind(post, factor, *neighbours, **data)
    except TypeError as error:
        takes = ", ".join(str(p) for p in list(inspect.signature(door).parameters.values())[2:])
        takes = takes.replace(": 'Any'", "").replace(" = ", "=")
        raise TypeError(f"{method}() {error}; allowed: {method}({name}, {takes})") from None
    problem = post.problem
    check_handles(factor, neighbours, problem.graph, problem.families, problem.sizes)
    return door(post, factor, *neighbours, **data)


def latent(post: GraphPosterior, h: Form, noise: Any) -> tuple[Array, Array]:
    """Mean and variance of forms with noise, (n,)."""
    mean, variance = post.predict_latent(h)
    return mean.ravel(), variance.ravel() + per_row("noise", noise, h, least=0.0)


# ---- losses on linear forms ----


def by_loss(method: str) -> Callable[..., Array]:
    """A method of the losses, at linear forms."""

    def found(post: GraphPosterior, factor: Any, form: Any, *, noise: Any = None) -> Array:
        h = form_of(post.problem.graph, "form", form, blocks=True)
        loss, more = loss_with_noise(factor, noise)
        numbers = getattr(loss, method)(*latent(post, h, more))
        return np.asarray(numbers.reshape(h.shape + numbers.shape[1:]))

    return found


def loss_log(post: GraphPosterior, factor: Any, form: Any, y: Any, *, noise: Any = None) -> Array:
    """Log density of responses."""
    h, flat = with_responses(form_of(post.problem.graph, "form", form, True), y)
    loss, noise = loss_with_noise(factor, noise)
    mean, variance = latent(post, h, noise)
    responses = loss.observed(flat, h.size)
    return np.asarray(loss.log_predictive(responses, mean, variance).reshape(h.shape))


# ---- Between ----


def between_log(post: GraphPosterior, factor: Between, form: Any, *, noise: Any = 0.0) -> Array:
    """Log probability that a form lies between the ends."""
    batch = factor.attach(post.problem.graph, 0, form, noise=noise).batch
    h = form_of(post.problem.graph, "form", form, blocks=True)
    mean, variance = latent(post, h, noise)
    ends, sd = batch.data["y"], np.sqrt(variance)[:, None]
    with np.errstate(all="ignore"):
        z = np.where(np.isinf(ends), ends, (ends - mean[:, None]) / sd)
        # of narrow ones the width, which z does not have to all digits
        w, middle = (ends[:, 1] - ends[:, 0]) / sd[:, 0], z.mean(axis=1)
        bend = (middle * middle - 1.0) * w * w / 24.0
        narrow = np.log(w) - 0.5 * math.log(2.0 * math.pi) - 0.5 * middle * middle + bend
        is_narrow = w * (1.0 + np.abs(middle)) < 1e-3
        certain = np.where((ends[:, 0] <= mean) & (mean <= ends[:, 1]), 0.0, -np.inf)
    wide = (z[:, 0] < z[:, 1]) & (variance > 0.0) & ~is_narrow
    whole = -Interval().values(np.zeros(h.size), np.where(wide[:, None], z, [-1.0, 1.0]))
    found = np.where(variance > 0.0, np.where(wide, whole, narrow), certain)
    return np.asarray(found.reshape(h.shape))


def between_proba(post: GraphPosterior, factor: Between, form: Any, *, noise: Any = 0.0) -> Array:
    """Probability that a form lies between the ends."""
    return np.exp(between_log(post, factor, form, noise=noise))


# ---- Noise ----


def noisy(post: GraphPosterior, factor: Noise, form: Any) -> tuple[Form, Array, Array, Array]:
    """The form, its mean and variance, and natural parameters of tau, a row for each."""
    graph = post.problem.graph
    factor.attach(graph, 0, form)
    h = form_of(graph, "form", form, blocks=True)
    h = h.broadcast(np.broadcast_shapes(h.shape, factor.tau.shape))
    numbers = np.broadcast_to(factor.tau.numbers, h.shape).ravel()
    mean, variance = latent(post, h, 0.0)
    return h, mean, variance, post.state.beliefs[post.problem.at[numbers][:, None] + np.arange(2)]


def noise_mean(post: GraphPosterior, factor: Noise, form: Any) -> Array:
    """Mean of the form."""
    h, mean, _, _ = noisy(post, factor, form)
    return mean.reshape(h.shape)


def noise_variance(post: GraphPosterior, factor: Noise, form: Any) -> Array:
    """The form's variance and E[1 / tau], infinite for a shape <= 1."""
    h, _, variance, eta = noisy(post, factor, form)
    with np.errstate(all="ignore"):
        of_noise = np.where(eta[:, 0] > 0.0, eta[:, 1] / eta[:, 0], np.inf)
    return np.asarray((variance + of_noise).reshape(h.shape))


def noise_log(post: GraphPosterior, factor: Noise, form: Any) -> Array:
    """Log density of form = 0 with the noise, integrated over tau."""
    h, mean, variance, eta = noisy(post, factor, form)
    shape, rate = eta[:, 0] + 1.0, eta[:, 1]
    found = np.full(h.size, -np.inf)
    proper = np.isfinite(variance) & (shape > 0.0) & (rate > 0.0)
    # rows at once: each takes some thousand points
    rows = np.flatnonzero(proper)
    for first in range(0, len(rows), 256):
        k = rows[first : first + 256]
        found[k] = log_noise_density(mean[k], variance[k], shape[k], rate[k])
    return found.reshape(h.shape)


# ---- Product, LogisticLink, Transition ----


def product_moments(post: GraphPosterior, factor: Product, x: Any, y: Any) -> tuple[Array, ...]:
    """Means and variances of x and of y, variances of the noise, all of one shape."""
    graph = post.problem.graph
    a = variables_of(graph, "x", x, "gaussian")
    b = variables_of(graph, "y", y, "gaussian")
    shape, numbers = rows_of(a, b, names=("x", "y"))
    if (numbers[:, 0] == numbers[:, 1]).any():
        raise ValueError("a product has a variable twice; allowed: different ones")
    noise = numbers_of("variance", factor.variance, shape, least=0.0).reshape(shape)
    known = [np.broadcast_to(n, shape) for v in (post[a], post[b]) for n in (v.mean, v.variance)]
    return (*known, noise)


def product_mean(post: GraphPosterior, factor: Product, x: Any, y: Any) -> Array:
    """Mean of x y."""
    mean_x, _, mean_y, _, _ = product_moments(post, factor, x, y)
    return np.asarray(mean_x * mean_y)


def product_variance(post: GraphPosterior, factor: Product, x: Any, y: Any) -> Array:
    """Variance of x y with the noise."""
    mean_x, v_x, mean_y, v_y, noise = product_moments(post, factor, x, y)
    flat = np.isinf(v_x) | np.isinf(v_y)
    with np.errstate(all="ignore"):
        found = noise + mean_x**2 * v_y + mean_y**2 * v_x + v_x * v_y
    return np.where(flat, np.inf, found)


def link_mean(post: GraphPosterior, factor: LogisticLink, z: Any) -> Array:
    """Mean of the probability."""
    variables_of(post.problem.graph, "z", z, "gaussian")
    return by_loss("predict_proba")(post, "logistic", z)


def step(
    post: GraphPosterior, factor: Transition, before: Any
) -> tuple[Array, Array, Array, Array]:
    """Mean and variance of the variable before, factor and variance of the step."""
    x = variables_of(post.problem.graph, "before", before, "gaussian")
    a = numbers_of("factor", factor.factor, x.shape).reshape(x.shape)
    variance = numbers_of("variance", factor.variance, x.shape, least=0.0).reshape(x.shape)
    if not a.all():
        raise ValueError("factor holds 0; allowed: numbers other than 0")
    return post[x].mean, post[x].variance, a, variance


def step_mean(post: GraphPosterior, factor: Transition, before: Any) -> Array:
    """Mean of the variable after."""
    mean, _, a, _ = step(post, factor, before)
    return np.asarray(a * mean)


def step_variance(post: GraphPosterior, factor: Transition, before: Any) -> Array:
    """Variance of the variable after."""
    _, v, a, variance = step(post, factor, before)
    return np.asarray(a * a * v + variance)


# ---- Table ----


def table_proba(post: GraphPosterior, factor: Table, *h: Any) -> Array:
    """Probabilities of the categories of the variable in whose place None is."""
    places = [j for j, value in enumerate(h) if value is None]
    if len(places) != 1:
        raise ValueError(
            f"h has None in {len(places)} places; allowed: one, that of the variable to predict"
        )
    p, m = factor.p, len(h)
    graph = post.problem.graph
    known = {
        j: variables_of(graph, f"h_{j + 1}", value, "categorical")
        for j, value in enumerate(h)
        if value is not None
    }
    sizes = tuple(known[j].width if j in known else "K" for j in range(m))
    fits = p.ndim >= m and all(p.shape[p.ndim - m + j] == v.width for j, v in known.items())
    if not fits or not p.shape[p.ndim - m + places[0]]:
        raise ValueError(
            f"p has shape {p.shape}; allowed: (..., {', '.join(map(str, sizes))}), the categories "
            "of the variables along the last axes"
        )
    if not (np.isfinite(p).all() and (p >= 0.0).all()):
        raise ValueError("p holds a number below 0, NaN or infinity; allowed: finite numbers >= 0")
    letters = "abcdefghijklmnopqrstuvwxyz"[:m]
    operands = [p / (p.max(initial=0.0) or 1.0)]
    for variables in known.values():
        logits = post[variables].logits
        operands.append(np.exp(logits - logits.max(axis=-1, keepdims=True)))
    taken = ",".join(f"...{letters[j]}" for j in known)
    sums = f"...{letters}" + ("," if taken else "") + f"{taken}->...{letters[places[0]]}"
    try:
        found = np.einsum(sums, *operands)
    except ValueError:
        raise ValueError(
            f"h has shapes {[v.shape for v in known.values()]}, and p leading axes "
            f"{p.shape[: p.ndim - m]}; allowed: shapes that NumPy broadcasts"
        ) from None
    total = found.sum(axis=-1, keepdims=True)
    if not (total > 0.0).all():
        raise ValueError("p excludes all categories of the variable; allowed: one that is possible")
    return np.asarray(found / total)


def table_mode(post: GraphPosterior, factor: Table, *h: Any) -> Array:
    """The most probable category of the variable in whose place None is."""
    return np.asarray(table_proba(post, factor, *h).argmax(axis=-1))


# ---- Mixture ----


def mixed(
    post: GraphPosterior, factor: Mixture, forms: Any, y: Any, noise: Any
) -> tuple[tuple[int, ...], Array, list[Loss], list[tuple[Array, Array]]]:
    """Shape of all forms, log weights of that shape and K, losses, and moments of the forms."""
    graph = post.problem.graph
    h = variables_of(graph, "h", factor.h, "categorical")
    factor, noise = factor.with_noise(noise)
    each = factor.losses(h.width)
    parts = forms_of(graph, forms, h.width)
    shape, rows = factor.shapes(h.shape, parts, y, noise, each)
    extra = numbers_of("noise", noise, shape, least=0.0)
    moments = []
    for form in parts:
        wide = form.broadcast(shape)
        mean, variance = (
            post.predict_latent(wide) if wide.graph else (wide.offset, np.zeros(wide.size))
        )
        moments.append((mean.ravel(), variance.ravel() + extra))
    weights = np.broadcast_to(post[h].logits, (*rows, h.width))
    return shape, weights, each, moments


def mixture_of(
    method: str, factor: Mixture, weights: Array, each: list[Loss], moments: list[Any], shape: Any
) -> tuple[Array, Array]:
    """What the losses predict, by category along the first axis, and weights alike."""
    found = np.stack([getattr(loss, method)(*at) for loss, at in zip(each, moments, strict=True)])
    found = found.reshape(len(each), *shape, *found.shape[2:])
    share = np.moveaxis(np.exp(weights), -1, 0)
    return found, share.reshape(share.shape + (1,) * (found.ndim - share.ndim))


def refuse_labels(each: list[Loss]) -> None:
    """Refuse losses whose y are classes, where a mean is asked for."""
    for loss in each:
        if loss.by_margin or isinstance(loss, Ordinal):
            raise ValueError(
                f"loss is {loss!r}, whose y are classes: a mixture of them has no mean; allowed "
                "for it: predict_proba, log_predictive"
            )


def mixture_mean(post: GraphPosterior, factor: Mixture, forms: Any, *, noise: Any = None) -> Array:
    """Mean of y."""
    shape, weights, each, moments = mixed(post, factor, forms, None, noise)
    refuse_labels(each)
    means, share = mixture_of("predict", factor, weights, each, moments, shape)
    return np.asarray((share * means).sum(axis=0))


def mixture_variance(
    post: GraphPosterior, factor: Mixture, forms: Any, *, noise: Any = None
) -> Array:
    """Variance of y."""
    shape, weights, each, moments = mixed(post, factor, forms, None, noise)
    refuse_labels(each)
    means, share = mixture_of("predict", factor, weights, each, moments, shape)
    within, _ = mixture_of("predict_variance", factor, weights, each, moments, shape)
    between = (means - (share * means).sum(axis=0)) ** 2
    return np.asarray((share * (within + between)).sum(axis=0))


def mixture_proba(post: GraphPosterior, factor: Mixture, forms: Any, *, noise: Any = None) -> Array:
    """Probabilities of labels or classes."""
    shape, weights, each, moments = mixed(post, factor, forms, None, noise)
    found, share = mixture_of("predict_proba", factor, weights, each, moments, shape)
    return np.asarray((share * found).sum(axis=0))


def mixture_log(
    post: GraphPosterior, factor: Mixture, forms: Any, y: Any, *, noise: Any = None
) -> Array:
    """Log density of y, of a whole vector with ``vectors``."""
    shape, weights, each, moments = mixed(post, factor, forms, y, noise)
    logs = np.stack(
        [
            loss.log_predictive(responses_of(loss, y, shape), *at).reshape(shape)
            for loss, at in zip(each, moments, strict=True)
        ],
        axis=-1,
    )
    if factor.vectors:
        logs = logs.sum(axis=-2)
    return np.asarray(special.logsumexp(logs + weights, axis=-1))


#: what there is, by kind
DOORS: dict[type, dict[str, Callable[..., Array]]] = {
    Loss: {method: by_loss(method) for method in METHODS[:3]} | {"log_predictive": loss_log},
    Between: {"predict_proba": between_proba, "log_predictive": between_log},
    Noise: {
        "predict": noise_mean,
        "predict_variance": noise_variance,
        "log_predictive": noise_log,
    },
    Product: {"predict": product_mean, "predict_variance": product_variance},
    LogisticLink: {"predict": link_mean},
    Transition: {"predict": step_mean, "predict_variance": step_variance},
    Table: {"predict": table_mode, "predict_proba": table_proba},
    Mixture: {
        "predict": mixture_mean,
        "predict_variance": mixture_variance,
        "predict_proba": mixture_proba,
        "log_predictive": mixture_log,
    },
}
#: of kinds that have none: what to do
HINTS: dict[type, str] = {
    Walk: "the steps of a walk one by one, Transition(rate * (t' - t)) from its variables",
    CompoundGamma: "post[tau], as the factor is the prior of tau alone",
    ScalePrior: "post[s], as the factor is the prior of a scale alone",
    Factor: "post[...] of its neighbours: draw from their beliefs and call your log_t",
}
