"""Operators just in time: a model answers where it is certain, an oracle elsewhere. Their sites."""

import numpy as np

from libc.math cimport NAN, asinh, exp, expm1, fmax, isfinite, log, sqrt
from libc.stdint cimport uint64_t

from epfast._core.loss cimport CoreLoss
from epfast._core.operator cimport Model
from epfast._core.site cimport POINT
from epfast._core.status cimport CALLBACK_FAILED, NO_FIT, OK, Status
from epfast._core.tilted cimport SiteScheme

cdef enum:
    MOST_COORDINATES = 32
    MOST_OUTPUTS = 16

    JUST_IN_TIME = 0                        # modes
    ORACLE_ALONE = 1

    SURE = -1                               # how a visit ends
    UNSURE = 0
    AUDIT = 1
    POINT_MASS = 2                          # a row of zeros: not to be learned


cdef double lot(uint64_t seed, uint64_t number) noexcept nogil:
    """A number of [0, 1) for each visit, whatever the order of the others (splitmix64)."""
    cdef uint64_t z = seed + (number + 1) * <uint64_t> 0x9e3779b97f4a7c15ULL
    z = (z ^ (z >> 30)) * <uint64_t> 0xbf58476d1ce4e5b9ULL
    z = (z ^ (z >> 27)) * <uint64_t> 0x94d049bb133111ebULL
    return <double> ((z ^ (z >> 31)) >> 11) * 1.1102230246251565e-16


def made_again(outputs, settings, units, counts, model):
    """Decisions with these units, counts and model."""
    found = JustInTime(outputs, **settings)
    found.calibrate(*units, 1.0)
    found.visits, found.calls, found.audits = counts
    found.model = model
    return found


cdef class JustInTime:
    """Which messages a model answers: it counts visits, and draws audits by lot.

    A target is offset + scale * raw; its variance amplitude * inflate * spread, in its own units.
    All decide, but those of amplitude 0: sure is what has deviations of at most ``tolerance``
    (mode 0). Mode 1 asks always.
    """

    cdef readonly ptrdiff_t outputs
    cdef public int mode
    cdef public double tolerance, audit
    cdef public ptrdiff_t visits, calls, audits
    cdef Model known
    cdef readonly uint64_t seed
    cdef double[MOST_OUTPUTS] scale
    cdef double[MOST_OUTPUTS] offset
    cdef double[MOST_OUTPUTS] size          # amplitude * inflate

    def __init__(
        self, ptrdiff_t outputs, *, double tolerance, double audit=0.0, uint64_t seed=0,
        int mode=0,
    ):
        if not 1 <= outputs <= MOST_OUTPUTS:
            raise ValueError(f"outputs is {outputs}; allowed: 1 to {MOST_OUTPUTS}")
        self.outputs, self.tolerance, self.audit, self.seed = outputs, tolerance, audit, seed
        self.mode = mode
        self.calibrate(1.0, 0.0, 1.0, 1.0)

    def __reduce__(self):
        cdef ptrdiff_t n = self.outputs
        settings = {
            "tolerance": self.tolerance, "audit": self.audit, "seed": self.seed, "mode": self.mode
        }
        units = tuple(zip(*[(self.scale[t], self.offset[t], self.size[t]) for t in range(n)]))
        counts = self.visits, self.calls, self.audits
        return made_again, (n, settings, units, counts, self.known)

    @property
    def model(self):
        """None while nothing is known."""
        return self.known

    @model.setter
    def model(self, Model model):
        k = -1 if model is None else model.k if self.known is None else self.known.k
        if model is not None and (model.outputs != self.outputs or model.k != k):
            raise ValueError(
                f"model takes {model.k} coordinates to {model.outputs} targets; allowed: {k} to "
                f"{self.outputs}"
            )
        self.known = model

    def calibrate(self, scale, offset, amplitude, inflate):
        """Units of the targets and of their variances, one number for all or one each."""
        cdef ptrdiff_t t
        given = {"scale": scale, "offset": offset, "amplitude": amplitude, "inflate": inflate}
        found = []
        for name, value in given.items():
            numbers = np.asarray(value, dtype=np.float64)
            if numbers.shape not in ((), (self.outputs,)) or not np.isfinite(numbers).all():
                raise ValueError(
                    f"{name} is {value}; allowed: a finite number, or {self.outputs} of them"
                )
            found.append(np.broadcast_to(numbers, (self.outputs,)))
        for t in range(self.outputs):
            self.scale[t], self.offset[t] = found[0][t], found[1][t]
            self.size[t] = found[2][t] * found[3][t]

    cdef bint is_sure(self, const double *targets, double spread) noexcept nogil:
        """Whether all targets are known well enough."""
        cdef double largest = 0.0
        cdef ptrdiff_t t
        for t in range(self.outputs):
            if not isfinite(targets[t]):
                return False
            largest = fmax(largest, self.size[t])
        return sqrt(largest * spread) <= self.tolerance

    cdef int visit(
        self, const double *x, double *targets, bint known, bint audited
    ) noexcept nogil:
        """Targets (T,) at coordinates x (k,), and how the visit ends; counts it.

        known: False asks the oracle whatever the model says; audited: False draws no audit.
        targets[0] is NaN without a model.
        """
        cdef double spread
        cdef ptrdiff_t t
        self.visits += 1
        targets[0] = NAN
        if not known or self.mode == ORACLE_ALONE or self.known is None or self.known.used == 0:
            self.calls += 1
            return UNSURE
        self.known.look(x, targets, &spread)
        for t in range(self.outputs):
            targets[t] = self.offset[t] + self.scale[t] * targets[t]
        if not self.is_sure(targets, spread):
            self.calls += 1
            return UNSURE
        if audited and self.audit > 0.0 and lot(self.seed, self.visits) < self.audit:
            self.calls += 1
            self.audits += 1
            return AUDIT
        return SURE

    def run(self, const double[:, ::1] x not None, ptrdiff_t first, double[:, ::1] out not None):
        """Answer rows of x (n, k) from the first, into out (n, T): (n, -1) at the end.

        Or (i, kind) at the first row i about which the oracle is to be asked: the model is unsure
        (0), or audited (1). out[i] is what it says; NaN if nothing.
        """
        cdef ptrdiff_t n = x.shape[0], i = first, t
        cdef int kind = SURE
        if out.shape[0] != n or out.shape[1] != self.outputs or not 0 <= first <= n:
            raise ValueError(f"out has shape {out.shape}; allowed: ({n}, {self.outputs})")
        if self.known is not None and x.shape[1] != self.known.k:
            raise ValueError(f"x has {x.shape[1]} columns; allowed: {self.known.k}")
        with nogil:
            while i < n:
                kind = self.visit(&x[i, 0], &out[i, 0], True, True)
                if out[i, 0] != out[i, 0]:
                    for t in range(self.outputs):
                        out[i, t] = NAN
                if kind != SURE:
                    break
                i += 1
        return i, kind


cdef enum:
    SITE = 0
    MOMENTS = 2

#: what an operator learns, by the numbers above; "belief" is between them
TARGETS = "site", "belief", "moments"


cdef class LearnedSite(SiteScheme):
    """Sites by an operator, and by an oracle where that is unsure.

    ask(y, m, v, x, predicted, kind) -> (lZ, dlZ, d2lZ), or None where the oracle refuses. y is
    (width,), None for a margin; x (k,) the coordinates; predicted (3,) the targets, None where
    there are none; kind 0 unsure, 1 an audit, 2 a row of zeros, from which nothing is to be
    learned. It may update the model of the operator, and calibrate it.

    Targets are d, rho, lZ ("site"), mean, log variance, lZ ("belief") or E x, E x^2, lZ
    ("moments"). Coordinates are m, log v and arcsinh of the first ``data`` numbers of the
    responses, without which a label is folded into m; by_moments: means and then variances, those
    of responses 0.
    Sites are answered strictly in order.
    """

    cdef public object ask
    cdef JustInTime operator
    cdef readonly double power
    cdef bint by_moments
    cdef int targets
    cdef ptrdiff_t k
    cdef ptrdiff_t data

    def __init__(
        self, CoreLoss loss not None, JustInTime operator not None, ask, *, double power=1.0,
        ptrdiff_t data=0, str targets="site", bint by_moments=False,
    ):
        self.loss, self.ask, self.folds, self.separate = loss, ask, data == 0, False
        self.operator, self.power, self.by_moments = operator, power, by_moments
        if targets not in TARGETS:
            raise ValueError(f"targets is {targets!r}; allowed: {', '.join(map(repr, TARGETS))}")
        self.targets = TARGETS.index(targets)
        if not 0 <= data <= min(loss.base, MOST_COORDINATES // 2 - 2):
            raise ValueError(
                f"data is {data}; allowed: 0 to {min(loss.base, MOST_COORDINATES // 2 - 2)}"
            )
        self.data = data
        self.k = 2 + data * (2 if by_moments else 1)
        if operator.outputs != 3 or (operator.known is not None and operator.known.k != self.k):
            raise ValueError(
                f"operator has {operator.outputs} targets; allowed: 3, of {self.k} coordinates"
            )

    cdef bint coordinates(self, const double *y, double m, double v, double *x) noexcept nogil:
        """Those of a site; False where one is not finite."""
        cdef ptrdiff_t j, at = 1 if self.by_moments else 2
        cdef bint good = True
        x[0] = m
        if self.by_moments:
            for j in range(self.data + 1):
                x[self.data + 1 + j] = v if j == 0 else 0.0
        else:
            x[1] = log(v)
        for j in range(self.data):
            x[at + j] = asinh(y[j])
            good = good and isfinite(x[at + j])
        return good

    cdef Status at(
        self, const double *y, double m, double v, double power, double *lZ, double *dlZ,
        double *d2lZ
    ) noexcept nogil:
        cdef double[MOST_COORDINATES] x
        cdef double[MOST_OUTPUTS] targets
        cdef double spread
        cdef int kind
        if not (v > 0.0 and isfinite(v) and isfinite(m)):
            return NO_FIT
        if power != self.power:
            return self.other_power(power)
        if not self.coordinates(y, m, v, x):
            return self.no_number()
        # no audits while copies of a row converge: from step to step the answer would jump
        kind = self.operator.visit(x, targets, v > POINT, not self.held)
        if kind != SURE:
            return self.asked(
                y, m, v, x, NULL if targets[0] != targets[0] else targets,
                kind if v > POINT else POINT_MASS, lZ, dlZ, d2lZ
            )
        if self.targets == SITE:
            dlZ[0] = targets[0] / sqrt(v)
            d2lZ[0] = expm1(targets[1]) / v
        else:
            dlZ[0] = (targets[0] - m) / v
            spread = exp(targets[1])
            if self.targets == MOMENTS:
                spread = targets[1] - targets[0] * targets[0]
            d2lZ[0] = (spread / v - 1.0) / v
        lZ[0] = targets[2]
        return OK if targets[0] == targets[0] else NO_FIT

    cdef Status asked(
        self, const double *y, double m, double v, const double *x, const double *targets,
        int kind, double *lZ, double *dlZ, double *d2lZ
    ) noexcept with gil:
        try:
            # fresh copies: the function may keep them
            responses = predicted = None
            if y != NULL:
                responses = np.array(<double[:self.loss.base]> <double *> y)
            if targets != NULL:
                predicted = np.array(<double[:3]> <double *> targets)
            found = self.ask(
                responses, m, v, np.array(<double[:self.k]> <double *> x), predicted, kind
            )
            if found is None:
                return NO_FIT
            lZ[0], dlZ[0], d2lZ[0] = found
            return OK
        except BaseException as error:          # C cannot carry it: kept for reraise()
            self.loss.error = error
            return CALLBACK_FAILED

    cdef Status other_power(self, double power) noexcept with gil:
        self.loss.error = ValueError(
            f"a site has the power {power:g}, by its weight or the schedule; allowed: "
            f"{self.power:g}, that of the operator"
        )
        return CALLBACK_FAILED

    cdef Status no_number(self) noexcept with gil:
        self.loss.error = ValueError(
            "y holds NaN or infinity, by which an operator cannot tell sites apart; allowed: "
            "finite responses"
        )
        return CALLBACK_FAILED
