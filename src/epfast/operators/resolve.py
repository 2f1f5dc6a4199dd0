"""The oracle that is meant by what a user gives: an oracle, a scheme, a loss or a function."""

from __future__ import annotations

from functools import partial
from typing import TypeAlias

from scipy import LowLevelCallable

from epfast import _checks, schemes
from epfast._arrays import Array, UserFunction
from epfast.losses import CustomSite, Loss
from epfast.losses.custom import compiled
from epfast.operators.oracles import CallableOracle, Oracle, SiteOracle, responses_of
from epfast.operators.sampled import SampledFactor
from epfast.schemes import ImportanceSampling, Scheme

#: what is taken for an oracle
OracleGiven: TypeAlias = Oracle | Loss | LowLevelCallable | UserFunction | Scheme | str


def as_oracle(
    given: OracleGiven,
    inputs: tuple[str, ...],
    outputs: tuple[int, ...],
    loss: Loss | None = None,
) -> Oracle:
    """The oracle that is meant.

    Parameters
    ----------
    given : Oracle, Scheme, str, Loss, scipy.LowLevelCallable, numba.cfunc or callable
        A scheme, or its name, is asked about ``loss``. A Loss is asked by scheme "exact". A
        compiled function has the signature of :class:`epfast.losses.CustomSite`. Another callable
        is a :class:`CallableOracle`.
    inputs, outputs : tuple
        As in :class:`DensityOracle`. What an oracle has is not changed.
    loss : Loss, optional
        That of the fit.

    Raises
    ------
    TypeError, ValueError
        For anything else, with what is allowed. For a scheme without a loss.
    """
    if isinstance(given, Oracle):
        oracle = given
    elif isinstance(given, str | Scheme):
        if loss is None:
            raise ValueError(
                f"the oracle is {given!r}, a scheme without a loss; allowed for messages: "
                f"epfast.operators.SiteOracle(loss, {given!r}), or another Oracle"
            )
        oracle = oracle_of_scheme(schemes.resolve(given), loss)
    elif isinstance(given, Loss) or compiled("oracle", given) is not None:
        oracle = SiteOracle(given if isinstance(given, Loss) else CustomSite(given))
    elif callable(given) and not isinstance(given, type):
        return CallableOracle(given, inputs, outputs)
    else:
        raise TypeError(
            f"oracle is {_checks.describe(given)}; allowed: an Oracle, a scheme, a Loss, a "
            "SampledFactor, a callable (messages) -> (targets, errors), a compiled function"
        )
    for name, own, wanted in (
        ("inputs", oracle.inputs, inputs),
        ("outputs", oracle.outputs, outputs),
    ):
        if own != wanted:
            raise ValueError(f"{name} is {wanted}; allowed with the oracle {oracle!r}: {own}")
    return oracle


def oracle_of_scheme(scheme: Scheme, loss: Loss) -> Oracle:
    """Importance sampling draws as a SampledFactor does, whose answers have standard errors."""
    if not isinstance(scheme, ImportanceSampling):
        return SiteOracle(loss, scheme)
    reason = scheme.refuses(loss, "row")
    if reason is not None:
        raise ValueError(reason)
    density = partial(log_factor, loss)
    return SampledFactor(log_density=density, draws=max(10, scheme.samples), seed=scheme.seed)


def log_factor(loss: Loss, h: Array, data: Array | None = None) -> Array:
    """Log of the factor of a loss, as :class:`SampledFactor` takes it."""
    return -loss.values(h, responses_of(loss, data, len(h)))
