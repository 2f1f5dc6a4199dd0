"""What an oracle is: something that can be asked for true messages, and what it answers."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epfast import _checks
from epfast._arrays import Array
from epfast.operators.messages import KINDS, check_data, check_messages

#: the last reason of every oracle
NOT_REPRESENTABLE = "the projection is not representable: no proper message with finite targets"


class Answer(NamedTuple):
    """True messages of n factors. NaN in rows that are refused."""

    #: (n, 2 outputs), usual parameters of the projected beliefs (1)
    belief: Array
    #: (n,), log of the integral of t^power times the normalised cavities. NaN where the oracle has
    #: none, see :attr:`Oracle.has_log_z`
    log_z: Array
    #: (n, 2 outputs + 1), standard errors of the site targets of each output, then of log_z. 0
    #: where exact
    sd: Array
    #: (n,), 0: fine. Else the place of a reason in those of the oracle
    reason: NDArray[np.intp]


class Oracle:
    """Base of the oracles. One of your own overrides ``solve``, or ``answer`` as a whole.

    Oracles hold no state: an answer depends on the message, the datum and the power alone, not on
    the others in the call.
    """

    #: families of the incoming messages: "gaussian", "gamma" or "beta"
    inputs: tuple[str, ...]
    #: places in inputs of the variables whose beliefs are given
    outputs: tuple[int, ...]
    #: whether answers are without noise
    exact: bool
    #: why messages are refused. The first is ""
    reasons: tuple[str, ...]
    #: whether log_z is known
    has_log_z: bool = True

    def answer(
        self, messages: ArrayLike, data: ArrayLike | None = None, power: float = 1.0
    ) -> Answer:
        """Projected beliefs of the outputs.

        Parameters
        ----------
        messages : array_like of shape (n, 2 c)
            Usual parameters of the c incoming messages of n factors: mean and variance of a
            Gaussian, shape and rate of a gamma, alpha and beta of a beta message.
        data : array_like of shape (n,) or (n, q), optional
            What is observed by each factor.
        power : float, default=1.0
            Factors enter as t^power.

        Returns
        -------
        Answer

        Raises
        ------
        TypeError, ValueError
            For messages that are not proper, data of another length, and functions of the user's
            that return what they should not.
        """
        rows = check_messages("messages", messages, self.inputs)
        n = len(rows[0])
        given = check_data("data", data, n)
        exponent = _checks.number("power", power, above=0.0)
        if n == 0:
            return self.finished(rows, [np.empty((0, 2))] * len(self.outputs), np.empty(0))
        with np.errstate(all="ignore"):  # what overflows is refused
            return self.solve(rows, given, exponent)

    def solve(self, messages: tuple[Array, ...], data: Array | None, power: float) -> Answer:
        """As :meth:`answer`, with checked arguments.

        Parameters
        ----------
        messages : tuple of ndarray of shape (n, 2)
            Those of each input.
        data : ndarray of shape (n, q), optional
        power : float

        Returns
        -------
        Answer
            By :meth:`finished`.
        """
        raise NotImplementedError

    def finished(
        self,
        messages: tuple[Array, ...],
        beliefs: list[Array],
        log_z: Array,
        sd: Array | None = None,
        reason: NDArray[np.intp] | None = None,
    ) -> Answer:
        """An answer of beliefs (n, 2) for each output. What is not representable is refused."""
        n = len(log_z)
        if sd is None:
            sd = np.zeros((n, 2 * len(self.outputs) + 1))
        found = np.zeros(n, dtype=np.intp) if reason is None else reason.astype(np.intp)
        fine = np.isfinite(sd).all(axis=1)
        if self.has_log_z:
            fine &= np.isfinite(log_z)
        with np.errstate(all="ignore"):
            for output, belief in zip(self.outputs, beliefs, strict=True):
                kind = KINDS[self.inputs[output]]
                fine &= kind.is_proper(belief)
                fine &= np.isfinite(kind.targets(messages[output], belief)).all(axis=1)
        found[(found == 0) & ~fine] = len(self.reasons) - 1
        good = found == 0
        return Answer(
            np.where(good[:, None], np.concatenate(beliefs, axis=1), np.nan),
            np.where(good, log_z, np.nan),
            np.where(good[:, None], sd, np.nan),
            found,
        )


def fingerprints(messages: tuple[Array, ...], data: Array | None, *settings: Any) -> list[bytes]:
    """16 bytes for each row, by its messages, its datum and the settings. Equal for equal ones."""
    parts = messages if data is None else (*messages, data)
    rows = np.concatenate(parts, axis=1) + 0.0  # -0.0 is 0.0
    start, found = hashlib.blake2b(repr(settings).encode(), digest_size=16), []
    for row in rows:
        mine = start.copy()
        mine.update(row.tobytes())
        found.append(mine.digest())
    return found
