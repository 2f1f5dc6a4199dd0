"""Ctrl-C at a chosen call of a Python function, in place of a random time."""

import gc
import importlib.util
import sys
from pathlib import Path


def _script():
    """tools/interrupts.py, which is no module of the package."""
    path = Path(__file__).parents[2] / "tools" / "interrupts.py"
    spec = importlib.util.spec_from_file_location("interrupts", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL = _script()


class Calls:
    """Counts calls of Python functions; raises KeyboardInterrupt at a chosen one.

    Python drops what a finaliser or a callback of a weak reference raises, and says so by
    ``sys.unraisablehook``. Then it is raised again at the next call.
    """

    def __init__(self, at=None):
        self.at, self.count, self.first, self.raised = at, 0, {}, False

    def __call__(self, frame, event, arg):
        if event != "call" or frame.f_code.co_name in ("<genexpr>", "<lambda>"):
            return
        self.first.setdefault(frame.f_code.co_name, self.count)
        self.count += 1
        if self.at is not None and not self.raised and self.count > self.at:
            self.raised = True
            raise KeyboardInterrupt

    def watch(self, fit):
        """Call it; not a context manager, whose exit would be counted.

        The garbage collector rests: its callbacks (Hypothesis has one) would be counted when it
        happens to run.
        """
        collects = gc.isenabled()
        gc.disable()
        with TOOL.drops_told(self._again):
            sys.setprofile(self)
            try:
                fit()
            finally:
                sys.setprofile(None)
                if collects:
                    gc.enable()

    def _again(self):
        self.raised = False
        sys.setprofile(self)  # Python took it off as it raised


def calls_of(fit):
    """How often functions are called in a fit, and the first call of each."""
    calls = Calls()
    calls.watch(fit)
    return calls


def interrupted(fit, at):
    """What the fit raises if Ctrl-C falls in the call of that number; None with fewer calls."""
    calls = Calls(at)
    try:
        calls.watch(fit)
    except KeyboardInterrupt as pressed:
        return pressed
    assert not calls.raised, "Ctrl-C was lost"
    return None
