"""Ctrl-C at a chosen call of a Python function, in place of a random time."""

import sys

import numpy as np

FINALISERS = {"_remove", "__del__"}  # of weak sets and objects: Python drops what they raise


def finalises(frame):
    """Whether the frame, or one that called it, is of a finaliser."""
    while frame is not None and frame.f_code.co_name not in FINALISERS:
        frame = frame.f_back
    return frame is not None


class Calls:
    """Counts calls of Python functions; raises KeyboardInterrupt at one of them that may raise."""

    def __init__(self, at=None):
        self.at, self.count, self.first, self.raised = at, 0, {}, False

    def __call__(self, frame, event, arg):
        if event != "call" or frame.f_code.co_name in ("<genexpr>", "<lambda>"):
            return
        self.first.setdefault(frame.f_code.co_name, self.count)
        self.count += 1
        if self.at is None or self.raised or self.count <= self.at:
            return
        if not finalises(frame):  # else in the next call that is not of one
            self.raised = True
            raise KeyboardInterrupt

    def watch(self, fit):
        """Call it; not a context manager, whose exit would be counted."""
        sys.setprofile(self)
        try:
            fit()
        finally:
            sys.setprofile(None)


def calls_of(fit):
    """How often functions are called in a fit, and the first call of each."""
    calls = Calls()
    calls.watch(fit)
    return calls


def interrupted(fit, at):
    """What the fit raises if Ctrl-C falls in the call of that number; None with fewer calls."""
    calls, said = Calls(at), np.geterr()
    try:
        calls.watch(fit)
    except KeyboardInterrupt as pressed:
        return pressed
    finally:
        np.seterr(**said)  # it may fall in the entry of a np.errstate, which then stays
    assert not calls.raised, "Ctrl-C was lost"
    return None
