"""The losses of losses.h, a user's own function, and the choice of vector kernels."""

import os

import numpy as np

from libc.math cimport NAN

from cpython.pycapsule cimport PyCapsule_GetContext, PyCapsule_GetName, PyCapsule_GetPointer


cdef extern from "build_config.h" nogil:
    const char *EPF_VERSION
    const char *EPF_COMPILER
    const char *EPF_CYTHON
    const char *EPF_LAPACK
    const char *EPF_LAPACK_VERSION
    const char *EPF_SANITIZE
    const char *EPF_BUILDTYPE
    bint EPF_BOUNDS_CHECKS


# ---- the instruction set ----

SIMD_AVAILABLE = tuple(epf_kernels_get(i).name.decode() for i in range(epf_kernels_count()))


cdef int select_kernels() except -1:
    global kernels
    wanted = os.environ.get("EPFAST_SIMD") or SIMD_AVAILABLE[len(SIMD_AVAILABLE) - 1]
    if wanted not in SIMD_AVAILABLE:
        raise ImportError(
            f"the environment variable EPFAST_SIMD is {wanted!r}; this build on this CPU allows "
            f"{', '.join(SIMD_AVAILABLE)}"
        )
    kernels = epf_kernels_get(SIMD_AVAILABLE.index(wanted))
    return 0


select_kernels()


def build_facts():
    """What this build is and what it uses: the raw material of ``backend.build_config``."""
    return {
        "version": EPF_VERSION.decode(),
        "lapack": EPF_LAPACK.decode(),
        "lapack_version": EPF_LAPACK_VERSION.decode(),
        "simd": kernels.name.decode(),
        "simd_available": list(SIMD_AVAILABLE),
        "simd_width": kernels.width,
        "compiler": EPF_COMPILER.decode(),
        "cython": EPF_CYTHON.decode(),
        "buildtype": EPF_BUILDTYPE.decode(),
        "bounds_checks": bool(EPF_BOUNDS_CHECKS),
        "sanitizer": EPF_SANITIZE.decode(),
    }


def elementwise(str name, const double[::1] x, double[::1] out):
    """out = f(x) by the vector kernels; name is exp, expm1, log, log1p, erfcx or log_ndtr."""
    cdef epf_elementwise f
    cdef ptrdiff_t n = x.shape[0]
    if name == "exp":
        f = kernels.exp
    elif name == "expm1":
        f = kernels.expm1
    elif name == "log":
        f = kernels.log
    elif name == "log1p":
        f = kernels.log1p
    elif name == "erfcx":
        f = kernels.erfcx
    elif name == "log_ndtr":
        f = kernels.log_ndtr
    else:
        raise ValueError(f"no vector kernel is named {name!r}")
    if n == 0:
        return
    with nogil:
        f(n, &x[0], &out[0])


# ---- losses ----

LOSS_PARAMETERS = {
    epf_loss_name(kind).decode(): epf_loss_parameters(kind) for kind in range(epf_loss_count())
}
_KINDS = {name: kind for kind, name in enumerate(LOSS_PARAMETERS)}

# The C signatures of a user's loss, as scipy.LowLevelCallable spells them (without const).
VALUE_SIGNATURES = ("double (double)", "double (double, void *)")
BATCH_SIGNATURE = "int (int, double *, double *, void *)"

ctypedef double (*value_of_margin)(double m) noexcept nogil
ctypedef double (*value_of_margin_and_data)(double m, void *user) noexcept nogil
ctypedef int (*batch_of_margins)(int n, double *m, double *out, void *user) noexcept nogil

ctypedef struct LowLevel:
    void *function
    void *user


cdef int call_value(
    ptrdiff_t n, const double *m, double *value, double *slope, double *curvature, void *user
) noexcept nogil:
    cdef LowLevel *c = <LowLevel *> user
    cdef ptrdiff_t i
    if slope != NULL or curvature != NULL:
        return 1
    for i in range(n):
        value[i] = (<value_of_margin> c.function)(m[i])
    return 0


cdef int call_value_with_data(
    ptrdiff_t n, const double *m, double *value, double *slope, double *curvature, void *user
) noexcept nogil:
    cdef LowLevel *c = <LowLevel *> user
    cdef ptrdiff_t i
    if slope != NULL or curvature != NULL:
        return 1
    for i in range(n):
        value[i] = (<value_of_margin_and_data> c.function)(m[i], c.user)
    return 0


cdef enum:
    BATCH = 128


cdef int call_batch(
    ptrdiff_t n, const double *m, double *value, double *slope, double *curvature, void *user
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
            margins[i] = m[first + i]
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


cdef int call_python(
    ptrdiff_t n, const double *m, double *value, double *slope, double *curvature, void *user
) noexcept nogil:
    with gil:
        loss = <CoreLoss> user
        try:
            if value != NULL:
                fill(loss.value, "value", m, n, value)
            if slope != NULL:
                fill(loss.slope, "slope", m, n, slope)
            if curvature != NULL:
                fill(loss.curvature, "curvature", m, n, curvature)
            return 0
        except BaseException as error:      # C cannot carry it: kept for reraise()
            loss.error = error
            return 1


cdef int fill(function, str name, const double *m, ptrdiff_t n, double *out) except -1:
    """out = function(m), checked: an array of n real numbers, none of them NaN."""
    if function is None:
        raise ValueError(f"this scheme needs the {name} of the loss, and the loss has none")
    # a fresh copy: the function may keep it, or write to it
    result = np.asarray(function(np.array(<double[:n]> (<double *> m))))
    if result.dtype.kind not in "fiub":
        raise TypeError(
            f"the loss's {name} function returned dtype {result.dtype}; allowed: real numbers"
        )
    if result.shape != (n,):
        raise ValueError(
            f"the loss's {name} function returned shape {result.shape} for {n} margins; "
            f"allowed: ({n},)"
        )
    cdef const double[:] source = result.astype(np.float64)
    cdef ptrdiff_t i, count = 0
    for i in range(n):
        out[i] = source[i]
        count += source[i] != source[i]
    if count:
        raise ValueError(
            f"the loss's {name} function returned NaN for {count} of {n} margins; allowed: numbers"
        )
    return 0


cdef class CoreLoss:
    """A loss for the C core: a row of losses.h with its parameters, or a user's function.

    Validation is the business of losses.py; here only what would break C is checked.
    """

    @staticmethod
    def table(str name, parameters=()):
        """The loss of that name in losses.h."""
        cdef CoreLoss loss = CoreLoss.__new__(CoreLoss)
        count = LOSS_PARAMETERS[name]
        if count == -1:                     # piecewise linear: the first number counts the knots
            count = 2 + 4 * int(parameters[0])
        if len(parameters) != count or count < 0:
            raise ValueError(f"the loss {name!r} takes {count} parameters")
        loss.c.kind = _KINDS[name]
        loss.parameters = np.array(tuple(parameters) or (0.0,), dtype=np.float64)
        loss.c.parameters = &loss.parameters[0]
        return loss

    @staticmethod
    def python(value, slope=None, curvature=None):
        """A user's vectorised Python functions of an array of margins."""
        cdef CoreLoss loss = CoreLoss.__new__(CoreLoss)
        loss.value, loss.slope, loss.curvature = value, slope, curvature
        loss.c.kind = EPF_CALLBACK
        loss.c.callback = call_python
        loss.c.user = <void *> loss
        return loss

    @staticmethod
    def low_level(callable):
        """A ``scipy.LowLevelCallable``; returns the loss and whether it has derivatives."""
        cdef CoreLoss loss = CoreLoss.__new__(CoreLoss)
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

    cdef int reraise(self) except -1:
        """After a callback failed."""
        error, self.error = self.error, None
        if error is not None:
            raise error
        raise RuntimeError("the loss's C function reported an error")

    def at(self, const double[::1] m, double[::1] value, slope=None, curvature=None):
        """Fill value, and slope and curvature where arrays are given, at the margins m."""
        cdef double[::1] s, c
        cdef double *slope_out = NULL
        cdef double *curvature_out = NULL
        cdef ptrdiff_t n = m.shape[0]
        cdef int failed
        if n == 0:
            return
        if slope is not None:
            s = slope
            slope_out = &s[0]
        if curvature is not None:
            c = curvature
            curvature_out = &c[0]
        with nogil:
            failed = kernels.loss(&self.c, n, &m[0], &value[0], slope_out, curvature_out)
        if failed:
            self.reraise()
