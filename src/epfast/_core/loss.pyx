"""The losses of losses.h, and a user's own function."""

import numpy as np

from libc.math cimport NAN

from cpython.exc cimport PyErr_CheckSignals
from cpython.pycapsule cimport PyCapsule_GetContext, PyCapsule_GetName, PyCapsule_GetPointer

from epfast._core.status cimport CALLBACK_FAILED, OK, Status
from epfast._core.vector cimport (
    EPF_CALLBACK, epf_loss_count, epf_loss_name, epf_loss_parameters, epf_loss_width, kernels,
)

cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int TIME_UTC
    int timespec_get(timespec *now, int base)

cdef double BETWEEN_SIGNALS = 0.1       # seconds

LOSS_PARAMETERS = {
    epf_loss_name(kind).decode(): epf_loss_parameters(kind) for kind in range(epf_loss_count())
}
LOSS_WIDTHS = {name: epf_loss_width(kind) for kind, name in enumerate(LOSS_PARAMETERS)}
_KINDS = {name: kind for kind, name in enumerate(LOSS_PARAMETERS)}

# C signatures of a loss of the margin, as scipy.LowLevelCallable spells them (without const).
VALUE_SIGNATURES = ("double (double)", "double (double, void *)")
BATCH_SIGNATURE = "int (int, double *, double *, void *)"

ctypedef double (*value_of_margin)(double m) noexcept nogil
ctypedef double (*value_of_margin_and_data)(double m, void *user) noexcept nogil
ctypedef int (*batch_of_margins)(int n, double *m, double *out, void *user) noexcept nogil

ctypedef struct LowLevel:
    void *function
    void *user


cdef int call_value(
    ptrdiff_t n, const double *h, const double *y, ptrdiff_t stride, double *value, double *slope,
    double *curvature, void *user
) noexcept nogil:
    cdef LowLevel *c = <LowLevel *> user
    cdef ptrdiff_t i
    if slope != NULL or curvature != NULL:
        return 1
    for i in range(n):
        value[i] = (<value_of_margin> c.function)(h[i])
    return 0


cdef int call_value_with_data(
    ptrdiff_t n, const double *h, const double *y, ptrdiff_t stride, double *value, double *slope,
    double *curvature, void *user
) noexcept nogil:
    cdef LowLevel *c = <LowLevel *> user
    cdef ptrdiff_t i
    if slope != NULL or curvature != NULL:
        return 1
    for i in range(n):
        value[i] = (<value_of_margin_and_data> c.function)(h[i], c.user)
    return 0


cdef enum:
    BATCH = 128


cdef int call_batch(
    ptrdiff_t n, const double *h, const double *y, ptrdiff_t stride, double *value, double *slope,
    double *curvature, void *user
) noexcept nogil:
    """A user's batched triple, a block at a time through the stack."""
    cdef LowLevel *c = <LowLevel *> user
    cdef double margins[BATCH]
    cdef double out[3 * BATCH]
    cdef ptrdiff_t first = 0, i
    cdef int count
    while first < n:
        count = <int> min(n - first, <ptrdiff_t> BATCH)
        for i in range(count):
            margins[i] = h[first + i]
        for i in range(3 * count):
            out[i] = NAN                    # what the function leaves out is not a number
        if (<batch_of_margins> c.function)(count, margins, out, c.user) != 0:
            return 1
        for i in range(count):
            if value != NULL:
                value[first + i] = out[3 * i]
            if slope != NULL:
                slope[first + i] = out[3 * i + 1]
            if curvature != NULL:
                curvature[first + i] = out[3 * i + 2]
        first += count
    return 0


cdef int call_contaminated(
    ptrdiff_t n, const double *h, const double *y, ptrdiff_t stride, double *value, double *slope,
    double *curvature, void *user
) noexcept nogil:
    """Of points h, or margins where the width is 0, by way of the base's."""
    cdef const Mixture *mixture = <const Mixture *> user
    cdef const double *row = NULL
    cdef const double *rows = NULL      # of the base, unless that is a loss of margins
    cdef double[BATCH] points
    cdef double[BATCH] f
    cdef double[BATCH] first
    cdef double[BATCH] second
    cdef bint derivatives = slope != NULL or curvature != NULL
    cdef bint of_residual = mixture.width > 0 and mixture.base.width == 0   # rows: -1, y, log c
    cdef double sign = 1.0 if of_residual else -1.0
    cdef ptrdiff_t done = 0, count, i
    while done < n:
        count = min(n - done, <ptrdiff_t> BATCH)
        for i in range(count):
            points[i], first[i], second[i] = h[done + i], 0.0, 0.0
            if of_residual:
                points[i] = y[(done + i) * stride + 1] - points[i]
        if mixture.base.width > 0:
            rows = y + done * stride
        if kernels.loss(
            mixture.base, count, points, rows, stride, f, first if derivatives else NULL,
            second if derivatives else NULL
        ) != 0:
            return 1
        for i in range(count):
            if mixture.width > 0:
                row = y + (done + i) * stride
            f[i], first[i], second[i] = -f[i], -first[i], -second[i]
            mix(mixture, row, &f[i], &first[i], &second[i])
            if value != NULL:
                value[done + i] = -f[i]
            if slope != NULL:
                slope[done + i] = sign * first[i]
            if curvature != NULL:
                curvature[done + i] = -second[i]
        done += count
    return 0


cdef int call_python(
    ptrdiff_t n, const double *h, const double *y, ptrdiff_t stride, double *value, double *slope,
    double *curvature, void *user
) noexcept nogil:
    with gil:
        loss = <CoreLoss> user
        try:
            if value != NULL:
                fill(loss, loss.value, "value", n, h, y, stride, value)
            if slope != NULL:
                fill(loss, loss.slope, "slope", n, h, y, stride, slope)
            if curvature != NULL:
                fill(loss, loss.curvature, "curvature", n, h, y, stride, curvature)
            return 0
        except BaseException as error:      # C cannot carry it: kept for reraise()
            loss.error = error
            return 1


cdef int fill(
    CoreLoss loss, function, str name, ptrdiff_t n, const double *h, const double *y,
    ptrdiff_t stride, double *out
) except -1:
    """out = function(h), or function(h, y), checked: n real numbers, none of them NaN."""
    cdef ptrdiff_t width = loss.c.width, step = max(stride, width), i, count = 0
    if function is None:
        raise ValueError(f"this scheme needs the {name} of the loss, and the loss has none")
    # fresh copies: the function may keep them, or write to them
    points = np.array(<double[:n]> (<double *> h))
    if width == 0:
        what, result = "margins", np.asarray(function(points))
    else:
        what = "rows"
        responses = np.array(<double[:n if stride else 1, :step]> (<double *> y))[:, :width]
        result = np.asarray(function(points, responses if stride else responses.repeat(n, 0)))
    if result.dtype.kind not in "fiub":
        raise TypeError(
            f"the loss's {name} function returned dtype {result.dtype}; allowed: real numbers"
        )
    if result.shape != (n,):
        raise ValueError(
            f"the loss's {name} function returned shape {result.shape} for {n} {what}; "
            f"allowed: ({n},)"
        )
    cdef const double[:] source = result.astype(np.float64)
    for i in range(n):
        out[i] = source[i]
        count += source[i] != source[i]
    if count:
        raise ValueError(
            f"the loss's {name} function returned NaN for {count} of {n} {what}; allowed: numbers"
        )
    return 0


cdef class CoreLoss:
    """A loss for the C core: a row of losses.h with its parameters, or a user's function.

    The factor of a row is exp(-beta l). width: numbers in a response; 0: l is a function of the
    margin, and a row of y holds its label. Of a shifted loss a row of y holds one number b more,
    and l is taken at h + b, or at the margin y h + b. Validation is the business of losses.py; here
    only what would break C is checked.
    """

    def __cinit__(self):
        self.c.beta, self.base, self.stride = 1.0, 1, 1

    @property
    def width(self):
        return self.c.width

    @property
    def interpreted(self):
        """Whether values come from functions of Python."""
        cdef CoreLoss inner = self.inner
        return self.c.callback == call_python or (inner is not None and inner.interpreted)

    @property
    def beta(self):
        return self.c.beta

    cdef void set_width(self, int width):
        self.c.width, self.base, self.stride = width, max(1, width), max(1, width)

    def shift(self):
        """Make it a shifted loss; returns itself."""
        self.shifted, self.stride = True, self.base + 1
        return self

    @staticmethod
    def table(str name, parameters=(), double beta=1.0):
        """The loss of that name in losses.h."""
        cdef CoreLoss loss = CoreLoss()
        count = LOSS_PARAMETERS[name]
        if count == -1:                     # the first number counts the knots, or the classes
            count = int(parameters[0])
            count = 2 + 4 * count if name == "piecewise_linear" else 2 + count
        if len(parameters) != count or count < 0:
            raise ValueError(f"the loss {name!r} takes {count} parameters")
        loss.c.kind = _KINDS[name]
        loss.set_width(LOSS_WIDTHS[name])
        loss.c.beta = beta
        loss.parameters = np.array(tuple(parameters) or (0.0,), dtype=np.float64)
        loss.c.parameters = &loss.parameters[0]
        return loss

    @staticmethod
    def python(value, slope=None, curvature=None, double beta=1.0, int width=0):
        """A user's vectorised Python functions of n margins, or of h (n,) and y (n, width)."""
        cdef CoreLoss loss = CoreLoss()
        loss.value, loss.slope, loss.curvature = value, slope, curvature
        loss.c.kind = EPF_CALLBACK
        loss.set_width(width)
        loss.c.beta = beta
        loss.c.callback = call_python
        loss.c.user = <void *> loss
        return loss

    @staticmethod
    def low_level(callable, double beta=1.0):
        """A ``scipy.LowLevelCallable`` of margins; returns the loss, whether it has derivatives."""
        cdef CoreLoss loss = CoreLoss()
        loss.c.beta = beta
        capsule = tuple.__getitem__(callable, 0)
        cdef const char *name = PyCapsule_GetName(capsule)
        signature = name.decode() if name != NULL else ""
        signature = signature.replace("const ", "").replace(" const", "")
        cdef LowLevel target
        target.function = PyCapsule_GetPointer(capsule, name)
        target.user = PyCapsule_GetContext(capsule)
        if signature == VALUE_SIGNATURES[0]:
            loss.c.callback = call_value
        elif signature == VALUE_SIGNATURES[1]:
            loss.c.callback = call_value_with_data
        elif signature == BATCH_SIGNATURE:
            loss.c.callback = call_batch
        else:
            raise ValueError(
                f"loss is a LowLevelCallable of signature {signature!r}; allowed: "
                + ", ".join(map(repr, (*VALUE_SIGNATURES, BATCH_SIGNATURE)))
            )
        loss.c.kind = EPF_CALLBACK
        holder = bytearray((<char *> &target)[:sizeof(LowLevel)])
        loss.alive = (callable, holder)
        loss.c.user = <void *> <char *> holder
        return loss, signature == BATCH_SIGNATURE

    @staticmethod
    def contaminated(CoreLoss base not None, double keep, double lose, double beta=1.0):
        """The loss -log((1 - share) exp(-l) + share c), l the base, which is used for nothing else.

        keep is log(1 - share). Of a base of the margin it is a loss of the margin, and lose is
        log(share c). Else lose is log share, and a row is that of the base and log c.
        """
        cdef CoreLoss loss = CoreLoss()
        cdef Mixture mixture
        if base.c.width > 0 or base.shifted:
            loss.set_width(<int> base.stride + 1)
            base.stride = loss.stride           # it reads the same rows
        mixture.base, mixture.keep, mixture.lose = &base.c, keep, lose
        mixture.width = loss.c.width
        holder = bytearray((<char *> &mixture)[:sizeof(Mixture)])
        loss.alive, loss.inner = holder, base
        loss.c.kind, loss.c.beta = EPF_CALLBACK, beta
        loss.c.callback = call_contaminated
        loss.c.user = <void *> <char *> holder
        return loss

    cdef Status heed(self) noexcept nogil:
        """Handle signals, every tenth of a second: an exception of theirs counts as a callback's.

        For loops that stay in C for long. Cheap: it reads the clock.
        """
        cdef timespec now
        cdef double seconds
        timespec_get(&now, TIME_UTC)
        seconds = now.tv_sec + 1e-9 * now.tv_nsec
        if 0.0 <= seconds - self.looked < BETWEEN_SIGNALS:
            return OK
        self.looked = seconds
        with gil:
            try:
                PyErr_CheckSignals()
                return OK
            except BaseException as error:      # C cannot carry it: kept for reraise()
                self.error = error
                return CALLBACK_FAILED

    cdef int reraise(self) except -1:
        """After a callback failed, or a signal came."""
        error, self.error = self.error, None
        if error is not None:
            raise error
        if self.inner is not None:
            (<CoreLoss> self.inner).reraise()
        raise RuntimeError("the loss's C function reported an error")

    cdef int check_responses(self, const double[:, ::1] y, ptrdiff_t n) except -1:
        """Raise unless y has a row of responses, or a label, for each of n rows."""
        shape = None if y is None else (y.shape[0], y.shape[1])
        if shape != (n, self.stride):
            raise ValueError(f"y has shape {shape}; allowed: {(n, self.stride)}")
        return 0

    cdef void to_points(self, ptrdiff_t n, const double *y, double *h) noexcept nogil:
        """h <- what l is taken at: h + b, or y h + b, for n rows of a shifted loss."""
        cdef ptrdiff_t i
        for i in range(n):
            if self.c.width == 0:
                h[i] *= y[i * self.stride]
            h[i] += y[i * self.stride + self.base]

    def at(
        self, const double[::1] h, double[::1] value, slope=None, curvature=None,
        const double[:, ::1] y=None,
    ):
        """Fill value, and slope and curvature where arrays are given, at h.

        h are margins where the width is 0, and y is not looked at. Else, and for a shifted loss, y
        holds the responses, and h are latent values.
        """
        cdef double[::1] s, c
        cdef double *slope_out = NULL
        cdef double *curvature_out = NULL
        cdef const double *responses = NULL
        cdef double[::1] points
        cdef ptrdiff_t n = h.shape[0], i
        cdef int failed
        if n == 0:
            return
        if slope is not None:
            s = slope
            slope_out = &s[0]
        if curvature is not None:
            c = curvature
            curvature_out = &c[0]
        if self.shifted:
            self.check_responses(y, n)
            shifted = np.array(h)
            h = points = shifted
            with nogil:
                self.to_points(n, &y[0, 0], &points[0])
        if self.c.width > 0:
            self.check_responses(y, n)
            responses = &y[0, 0]
        with nogil:
            failed = kernels.loss(
                &self.c, n, &h[0], responses, self.stride, &value[0], slope_out, curvature_out
            )
        if slope is not None and self.shifted and self.c.width == 0:
            for i in range(n):
                s[i] *= y[i, 0]
        if failed:
            self.reraise()
