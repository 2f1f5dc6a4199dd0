"""Ctrl-C in the fit of an estimator."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from epfast.inference import Interrupted

F = TypeVar("F", bound=Callable[..., Any])

#: attribute of an estimator during its fit, once its arguments are checked: a function that gives a
#: posterior before there is another
LEFT = "_left"


def all_or_nothing(fit: F) -> F:
    """Let Ctrl-C leave the estimator as it was before ``fit``, fitted or not.

    It comes out as :class:`epfast.Interrupted`, whose ``posterior`` is that of the binary problem
    last at hand: at the hyper-parameters where the search was. Before the arguments are checked a
    plain KeyboardInterrupt comes out.
    """

    @wraps(fit)
    def fit_or_leave(self: Any, *arguments: Any, **named: Any) -> Any:
        before = self.__dict__.copy()
        try:
            return fit(self, *arguments, **named)
        except KeyboardInterrupt as pressed:
            now = self.__dict__.copy()
            self.__dict__.clear()
            self.__dict__.update(before)
            if isinstance(pressed, Interrupted):
                raise
            found = now.get("posteriors_")
            if found and found is not before.get("posteriors_"):
                raise Interrupted(found[-1]) from None
            if LEFT not in now:
                raise
            raise Interrupted(now[LEFT]()) from None
        finally:
            self.__dict__.pop(LEFT, None)

    return fit_or_leave  # type: ignore[return-value]
