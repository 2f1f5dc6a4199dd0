"""What a fit of a linear model takes where nothing is named."""

from __future__ import annotations

from epfast import losses, schemes
from epfast.schemes import Scheme


def default_scheme(loss: losses.Loss, factor: str, full: bool) -> Scheme:
    """The scheme where none is named: one that holds on columns of unit variance."""
    if factor == "row":
        return schemes.Exact()
    scheme, reason = schemes.Laplace(), schemes.Laplace().refuses(loss, factor)
    if reason is not None and "values" not in loss.gives:
        return scheme  # it says what is wrong
    if reason is None and loss.kinks:
        slopes = list(getattr(loss, "slopes", ()))
        if slopes and slopes == sorted(slopes) and not full:
            return schemes.Laplace(curvature="slope")
        reason = f"the curvature of {loss!r} is 0, so that its sites would carry no precision"
    if reason is None:
        return scheme
    raise ValueError(
        f"scheme is None, for {loss!r} with a batch_size: {reason.split('; allowed')[0]}; allowed: "
        "batch_size=None, a site per row, whose moments are exact, or a scheme that is named, as "
        "schemes.Laplace(curvature='slope') or, with posterior='factorized', 'variational'; they "
        "may fail on columns of unit variance"
    )
