"""Factorised EP over minibatch factors."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

import numpy as np

from bench.lib.numpy_reference.factors import FITS, Task
from bench.lib.numpy_reference.losses import Array, Loss, loss_of


@dataclass(frozen=True)
class EPFit:
    """What ``fit_linear`` returns.

    Attributes
    ----------
    precision, shift, mean, variance : (d,) arrays
        The posterior.
    site_precision, site_shift : (n_factors, d) arrays or None
    site_log_scale : (n_factors,) array or None
        None when ``store_sites`` was False.
    log_evidence : float
        log of the integral of prior x product of sites, every constant kept.
    n_refused : int
        Sites that kept their value in some coordinate.
    trace : (n_updates, d) array or None
        Posterior mean after every minibatch update.
    """

    precision: Array
    shift: Array
    log_evidence: float
    n_refused: int
    site_precision: Array | None
    site_shift: Array | None
    site_log_scale: Array | None
    trace: Array | None

    @property
    def mean(self) -> Array:
        """Posterior mean."""
        return self.shift / self.precision

    @property
    def variance(self) -> Array:
        """Posterior variance."""
        return 1.0 / self.precision


class _Site(NamedTuple):
    precision: Array
    shift: Array
    log_scale: float


def _apply_rule(
    fit: _Site,
    old: _Site,
    centre: Array,
    cavity: Array,
    trusted: Array | None,
    rest: Array,
    rule: str,
    damping: float,
) -> tuple[_Site, int]:
    """Site rule, damping, and the guard that keeps the posterior proper, per coordinate.

    ``cavity`` is the cavity precision, ``trusted`` where it was positive (None: everywhere),
    ``centre`` the cavity mean, ``rest`` the precision of the posterior without this site.  A
    changed coordinate leaves log g(centre) as it was.  Returns the new site, and whether some
    coordinate kept its value.
    """
    if not isfinite(fit.log_scale + fit.precision.sum() + fit.shift.sum()):
        return old, 1
    precision, shift = fit.precision, fit.shift
    if damping == 1.0 and trusted is None and precision.min() >= 0.0 and rest.min() > 0.0:
        return fit, 0  # nothing for any rule to do
    least = None
    if rule == "nonnegative":
        least = np.zeros_like(precision)
    elif rule == "floor":
        least = -0.9 * cavity
    if least is not None and (acted := precision < least).any():
        lifted = np.where(acted, least, precision)
        shift = shift + (lifted - precision) * centre  # keeps b = shift - precision * centre
        precision = lifted
    damped = (1.0 - damping) * old.precision + damping * precision if damping != 1 else precision
    kept = ~(rest + damped > 0.0)
    if trusted is not None:
        kept |= ~trusted
    if kept.any():
        precision = np.where(kept, old.precision, precision)
        shift = np.where(kept, old.shift, shift)
    log_scale = fit.log_scale + (fit.shift - shift) @ centre
    log_scale -= 0.5 * ((fit.precision - precision) @ centre**2)
    site = _Site(precision, shift, float(log_scale))
    if damping != 1.0:
        site = _Site(*((1.0 - damping) * a + damping * b for a, b in zip(old, site, strict=True)))
    return site, int(kept.any())


def fit_linear(
    X: Array,
    y: Array,
    loss: str | Loss = "logistic",
    scheme: str = "variational",
    *,
    batch_size: int = 10,
    prior_variance: float | Array = 25.0,
    sweeps: int = 5,
    site_rule: str = "nonnegative",
    damping: float = 1.0,
    power: float = 1.0,
    order: str = "sequential",
    curvature: str = "exact",
    strength: str = "best",
    store_sites: bool = True,
    beta: float = 1.0,
    gamma: float | None = None,
    tol: float = 1e-5,
    trace: bool = False,
) -> EPFit:
    """Factorised EP over minibatches in file order, from flat sites.

    Cavity = posterior / site^power; fit of t^power (beta times ``power``); site = fit^(1/power);
    rule; damping (natural parameters and log scale mixed geometrically).  A coordinate whose
    cavity precision is not positive keeps its old site, and the posterior's mean and variance
    stand in for the cavity's when the other coordinates are fitted.

    Parameters
    ----------
    site_rule : {"nonnegative", "keep", "floor"}
        Negative site precision -> 0; old site kept where the posterior would become improper;
        site precision >= -0.9 cavity precision.  The first and last keep the shift about the
        cavity mean.  "keep" backs up the other two.
    order : {"sequential", "parallel"}
        Parallel: every cavity of a sweep comes from the same posterior.
    store_sites
        False: one pass without sites (``sweeps`` must be 1).
    tol
        Newton's, as in ``fit_minibatch``; sweeps are never cut short.

    The other parameters are those of ``fit_minibatch``.
    """
    n, d = X.shape
    yX = X * y[:, None]
    batches = [yX[lo : lo + batch_size] for lo in range(0, n, batch_size)]
    prior = np.broadcast_to(1.0 / np.asarray(prior_variance, dtype=np.float64), d)
    stored = len(batches) if store_sites else 0
    tau_i, nu_i, scale_i = np.zeros((stored, d)), np.zeros((stored, d)), np.zeros(stored)
    flat = _Site(np.zeros(d), np.zeros(d), 0.0)
    tau, nu, total_scale = prior.copy(), np.zeros(d), 0.0
    n_refused, means = 0, []

    task = Task(
        loss_of(loss),
        yX,
        flat.precision,
        flat.precision,
        beta * power,
        float(np.sqrt(d + 0.5)) if gamma is None else gamma,
        curvature,
        tol,
        None if strength == "faithful" else np.empty((3, batch_size, d)),
    )
    run = FITS[strength][scheme]

    # Quadrature can collapse a variance to nothing, factor by factor; such fits are refused below.
    with np.errstate(all="ignore"):
        for _ in range(sweeps):
            if store_sites:  # no drift from adding and subtracting
                tau, nu = prior + tau_i.sum(axis=0), nu_i.sum(axis=0)
            now_tau, now_nu = tau, nu
            for i, rows in enumerate(batches):
                if order == "sequential":
                    now_tau, now_nu = tau, nu
                if store_sites:
                    old = _Site(tau_i[i], nu_i[i], scale_i[i])
                    cavity = now_tau - power * old.precision
                    cavity_shift = now_nu - power * old.shift
                    rest = now_tau - old.precision
                    trusted = None if cavity.min() > 0.0 else cavity > 0.0
                    if trusted is not None:
                        cavity = np.where(trusted, cavity, now_tau)
                        cavity_shift = np.where(trusted, cavity_shift, now_nu)
                else:
                    old, cavity, cavity_shift, rest, trusted = flat, tau, nu, tau, None
                variance = 1.0 / cavity
                mean = cavity_shift * variance
                fit = run(task._replace(rows=rows, mean=mean, variance=variance))
                if power != 1.0:
                    fit = _Site(fit.precision / power, fit.shift / power, fit.log_scale / power)
                site, refused = _apply_rule(
                    fit, old, mean, cavity, trusted, rest, site_rule, damping
                )
                n_refused += refused
                tau = tau + (site.precision - old.precision)
                nu = nu + (site.shift - old.shift)
                if store_sites:
                    tau_i[i], nu_i[i], scale_i[i] = site
                else:
                    total_scale += site.log_scale
                if trace:
                    means.append(nu / tau)

    if store_sites:
        tau, nu = prior + tau_i.sum(axis=0), nu_i.sum(axis=0)
        total_scale = scale_i.sum()
    log_evidence = total_scale + 0.5 * (np.log(prior / tau) + nu * (nu / tau)).sum()
    return EPFit(
        tau,
        nu,
        float(log_evidence),
        n_refused,
        *((tau_i, nu_i, scale_i) if store_sites else (None, None, None)),
        np.array(means) if trace else None,
    )
