"""Ctrl-C at a chosen call of a Python function, in place of a random time."""

import contextlib
import sys

import numpy as np


class Calls:
    """Counts calls of Python functions; raises KeyboardInterrupt at one of them."""

    def __init__(self, at=None):
        self.at, self.count, self.first, self.raised = at, 0, {}, False

    def __call__(self, frame, event, arg):
        if event != "call" or frame.f_code.co_name in ("<genexpr>", "<lambda>"):
            return
        self.first.setdefault(frame.f_code.co_name, self.count)
        self.count += 1
        if self.count - 1 == self.at:
            self.raised = True
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def watching(self):
        sys.setprofile(self)
        try:
            yield self
        finally:
            sys.setprofile(None)


def calls_of(fit):
    """How often functions are called in a fit, and the first call of each."""
    with Calls().watching() as calls:
        fit()
    return calls


def interrupted(fit, at):
    """What the fit raises if Ctrl-C falls in the call of that number; None with fewer calls."""
    calls, said = Calls(at), np.geterr()
    try:
        with calls.watching():
            fit()
    except KeyboardInterrupt as pressed:
        return pressed
    finally:
        np.seterr(**said)  # it may fall in the entry of a np.errstate, which then stays
    assert not calls.raised, "Ctrl-C was lost"
    return None
