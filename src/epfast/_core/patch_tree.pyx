"""Patches: a tree of boxes in (m, log v) with 9 x 9 Chebyshev interpolation of three targets.

For functions of two numbers that are exact and smooth. A box is fitted when it is first visited,
and cut in two, along the axis that needs it, until its last coefficients are below the tolerance.
"""

import numpy as np

from libc.math cimport INFINITY, NAN, fabs, fmax, isfinite
from libc.stdlib cimport free, realloc

from epfast._core.operator cimport Model
from epfast._core.status cimport CALLBACK_FAILED, NO_FIT, OK, Status
from epfast._core.vector cimport EPF_PATCH, kernels

cdef enum:
    ORDER = 9
    NODES = 81
    TARGETS = 3
    LAST = 2                                # coefficients that tell the error
    MOST_DOUBLINGS = 64                     # of a side of the outer box

    # what a box is
    NEW = -1
    EMPTY = -2                              # too small to be cut, and the function not finite


ctypedef struct Box:
    double[2] lo
    double[2] hi
    int[2] level                            # halvings of each side of the first box
    int axis                                # that it is cut along; -1: it is not
    double cut
    ptrdiff_t[2] child
    ptrdiff_t leaf                          # number of its coefficients, NEW or EMPTY
    double error                            # by the last coefficients of d and rho


cdef class PatchTree(Model):
    """A model of three targets at x = (m, log v); its spread is the square of the error of d, rho.

    function(m (81,), v (81,)) -> (d, rho, lZ), (3, 81). box: m from, to, log v from, to; it
    is doubled where a point lies outside. depth: halvings of a side of the first box. The spread
    is infinite where the function is not finite, and beyond `most` leaves.
    """

    cdef object function
    cdef readonly double tolerance
    cdef readonly ptrdiff_t leaves          # boxes with coefficients
    cdef int depth
    cdef ptrdiff_t most
    cdef Box *boxes
    cdef ptrdiff_t count, room, root
    cdef double *coefficients
    cdef ptrdiff_t leaf_room
    cdef double[:, ::1] basis               # T_i at the nodes, over what makes them orthonormal
    cdef double[::1] nodes

    def __init__(self, function, double tolerance, box, int depth, ptrdiff_t most):
        cdef ptrdiff_t i
        self.k, self.outputs, self.used = 2, TARGETS, 1
        self.function, self.tolerance, self.depth, self.most = function, tolerance, depth, most
        angles = np.pi * (np.arange(ORDER) + 0.5) / ORDER
        self.nodes = np.cos(angles)
        basis = np.cos(np.outer(np.arange(ORDER), angles)) * (2.0 / ORDER)
        basis[0] *= 0.5
        self.basis = basis
        self.root = self.new_box()
        first = &self.boxes[0]
        for i in range(2):
            first.lo[i], first.hi[i], first.level[i] = box[2 * i], box[2 * i + 1], 0

    def __dealloc__(self):
        free(self.boxes)
        free(self.coefficients)

    cdef ptrdiff_t new_box(self) except -1:
        """The number of another box, of no sides yet."""
        cdef Box *grown
        if self.count == self.room:
            grown = <Box *> realloc(self.boxes, (2 * self.room + 16) * sizeof(Box))
            if grown == NULL:
                raise MemoryError()
            self.boxes, self.room = grown, 2 * self.room + 16
        self.boxes[self.count].axis, self.boxes[self.count].leaf = -1, NEW
        self.count += 1
        return self.count - 1

    cdef int cut(self, ptrdiff_t number, int axis, double at) except -1:
        """Two new boxes, of the two sides of a point along an axis."""
        cdef ptrdiff_t low = self.new_box(), high = self.new_box()
        cdef Box *box = &self.boxes[number]
        cdef Box *child
        cdef int side, i
        for side in range(2):
            child = &self.boxes[high if side else low]
            for i in range(2):
                child.lo[i], child.hi[i], child.level[i] = box.lo[i], box.hi[i], box.level[i]
            child.level[axis] += 1
            if side:
                child.lo[axis] = at
            else:
                child.hi[axis] = at
        box.axis, box.cut = axis, at
        box.child[0], box.child[1] = low, high
        return 0

    cdef int widen(self, int axis, bint up) except -1:
        """Double the outer box along an axis, to one side; the old one is half of it."""
        cdef ptrdiff_t whole = self.new_box(), other = self.new_box()
        cdef Box *old = &self.boxes[self.root]
        cdef Box *box = &self.boxes[whole]
        cdef Box *rest = &self.boxes[other]
        cdef double size = old.hi[axis] - old.lo[axis]
        cdef int i
        for i in range(2):
            box.lo[i], box.hi[i], box.level[i] = old.lo[i], old.hi[i], old.level[i]
            rest.lo[i], rest.hi[i], rest.level[i] = old.lo[i], old.hi[i], old.level[i]
        box.level[axis] -= 1
        box.axis = axis
        if up:
            box.hi[axis] = rest.hi[axis] = old.hi[axis] + size
            box.cut = rest.lo[axis] = old.hi[axis]
            box.child[0], box.child[1] = self.root, other
        else:
            box.lo[axis] = rest.lo[axis] = old.lo[axis] - size
            box.cut = rest.hi[axis] = old.lo[axis]
            box.child[0], box.child[1] = other, self.root
        self.root = whole
        return 0

    cdef Status enclose(self, const double *x) noexcept with gil:
        """Let the outer box grow until x is in it. NO_FIT: it is too far away."""
        cdef int axis
        cdef Box *root
        try:
            for axis in range(2):
                while True:
                    root = &self.boxes[self.root]
                    if root.lo[axis] <= x[axis] <= root.hi[axis]:
                        break
                    if root.level[axis] <= -MOST_DOUBLINGS:
                        return NO_FIT
                    self.widen(axis, x[axis] > root.hi[axis])
            return OK
        except BaseException as error:
            self.error = error
            return CALLBACK_FAILED

    cdef Status visit(self, ptrdiff_t number) noexcept with gil:
        """Fit a new box, or cut it in two. NO_FIT: there are as many leaves as may be."""
        try:
            if self.leaves >= self.most:
                return NO_FIT
            self.fit(number)
            return OK
        except BaseException as error:
            self.error = error
            return CALLBACK_FAILED

    cdef int fit(self, ptrdiff_t number) except -1:
        cdef Box *box = &self.boxes[number]
        cdef int axis, t, i, j
        cdef double[2] tail
        cdef double[2] error
        cdef double size, last
        cdef double[:, :, ::1] c
        half = [0.5 * (box.hi[i] - box.lo[i]) for i in range(2)]
        middle = [0.5 * (box.hi[i] + box.lo[i]) for i in range(2)]
        m = np.repeat(middle[0] + half[0] * np.asarray(self.nodes), ORDER)
        with np.errstate(over="ignore", under="ignore"):
            v = np.exp(np.tile(middle[1] + half[1] * np.asarray(self.nodes), ORDER))
        values = np.array(self.function(m, v), dtype=np.float64)
        if values.shape != (TARGETS, NODES):
            raise ValueError(
                f"the function of patches returned shape {values.shape}; allowed: "
                f"{(TARGETS, NODES)}"
            )
        box = &self.boxes[number]               # where the function has come back to this tree
        finite = bool(np.isfinite(values).all())
        if finite:
            values = values.reshape(TARGETS, ORDER, ORDER)
            c = np.ascontiguousarray(self.basis @ values @ np.asarray(self.basis).T)
            tail[0] = tail[1] = error[0] = error[1] = 0.0
            for t in range(TARGETS):
                # of lZ, relative to its size
                size = 1.0 if t < 2 else fmax(1.0, np.abs(values[t]).max())
                for i in range(ORDER):
                    for j in range(ORDER - LAST, ORDER):
                        for axis in range(2):
                            last = fabs(c[t, j, i] if axis == 0 else c[t, i, j]) / size
                            tail[axis] = fmax(tail[axis], last)
                            if t < 2:
                                error[axis] = fmax(error[axis], last)
        else:
            # halves of which one may be good: those of the longer side
            tail[0], tail[1] = -box.level[0], -box.level[1]
        if not finite or fmax(tail[0], tail[1]) > self.tolerance:
            axis = tail[1] > tail[0]
            # the other where that one is as short as may be
            for i in (axis, 1 - axis):
                if box.level[i] < self.depth and (not finite or tail[i] > self.tolerance):
                    return self.cut(number, i, middle[i])
        if not finite:
            box.leaf = EMPTY
            return 0
        box.error = fmax(error[0], error[1])
        return self.keep(number, c)

    cdef int keep(self, ptrdiff_t number, const double[:, :, ::1] c) except -1:
        """Coefficients of a box, in the order in which ``patch`` of operator.h reads them."""
        cdef ptrdiff_t room = 2 * self.leaf_room + 16, i, j, t
        cdef double *to
        if self.leaves == self.leaf_room:
            to = <double *> realloc(self.coefficients, room * EPF_PATCH * sizeof(double))
            if to == NULL:
                raise MemoryError()
            self.coefficients, self.leaf_room = to, room
        to = self.coefficients + self.leaves * EPF_PATCH
        for i in range(ORDER):
            for t in range(8):
                to[32 * i + 24 + t] = c[t, i, 8] if t < TARGETS else 0.0
            for t in range(TARGETS):
                for j in range(8):
                    to[32 * i + 8 * t + j] = c[t, i, j]
        self.boxes[number].leaf = self.leaves
        self.leaves += 1
        return 0

    cdef Status look(self, const double *x, double *targets, double *spread) noexcept nogil:
        """O(depth); a box that is new costs evaluations of the function, with the GIL."""
        cdef Box *box = &self.boxes[self.root]
        cdef ptrdiff_t number
        cdef double m = x[0], u = x[1]
        cdef Status status
        targets[0] = targets[1] = targets[2] = NAN
        spread[0] = INFINITY
        if not (box.lo[0] <= m <= box.hi[0] and box.lo[1] <= u <= box.hi[1]):
            if not (isfinite(m) and isfinite(u)):
                return OK
            status = self.enclose(x)
            if status != OK:
                return CALLBACK_FAILED if status == CALLBACK_FAILED else OK
        number = self.root
        while True:
            box = &self.boxes[number]
            if box.axis >= 0:
                number = box.child[(m if box.axis == 0 else u) >= box.cut]
                continue
            if box.leaf >= 0:
                break
            if box.leaf == EMPTY:
                return OK
            status = self.visit(number)
            if status != OK:
                return CALLBACK_FAILED if status == CALLBACK_FAILED else OK
        kernels.patch(
            self.coefficients + box.leaf * EPF_PATCH,
            (2.0 * m - box.lo[0] - box.hi[0]) / (box.hi[0] - box.lo[0]),
            (2.0 * u - box.lo[1] - box.hi[1]) / (box.hi[1] - box.lo[1]), targets
        )
        spread[0] = box.error * box.error
        return OK

    def arrays(self):
        """All boxes: sides, halvings, how each is cut, its error; and the coefficients."""
        cdef ptrdiff_t i
        cdef int j
        numbers = np.empty((self.count, 6))
        links = np.empty((self.count, 6), dtype=np.int64)
        cdef double[:, ::1] real = numbers
        cdef long long[:, ::1] whole = links
        for i in range(self.count):
            box = &self.boxes[i]
            for j in range(2):
                real[i, j], real[i, 2 + j] = box.lo[j], box.hi[j]
                whole[i, j], whole[i, 2 + j] = box.level[j], -1
            real[i, 4], real[i, 5] = 0.0, 0.0
            whole[i, 4], whole[i, 5] = box.axis, box.leaf
            if box.axis >= 0:
                real[i, 4] = box.cut
                whole[i, 2], whole[i, 3] = box.child[0], box.child[1]
            elif box.leaf >= 0:
                real[i, 5] = box.error
        size = self.leaves * EPF_PATCH
        coefficients = np.empty(size)
        if size:
            coefficients[:] = <double[:size]> self.coefficients
        return {
            "boxes": numbers, "links": links, "root": np.array(self.root),
            "coefficients": coefficients.reshape(-1, EPF_PATCH),
        }

    def set(
        self, double[:, ::1] boxes not None, long long[:, ::1] links not None, ptrdiff_t root,
        double[:, ::1] coefficients not None
    ):
        """Take the boxes of :meth:`arrays`; raises where they are no tree."""
        cdef ptrdiff_t count = boxes.shape[0], leaves = coefficients.shape[0], i
        cdef int j
        if (
            boxes.shape[1] != 6 or links.shape[0] != count or links.shape[1] != 6
            or coefficients.shape[1] != EPF_PATCH or not 0 <= root < count
        ):
            raise ValueError(f"boxes has shape {np.shape(boxes)}, links {np.shape(links)}")
        self.check_tree(boxes, links, root, leaves)
        if not np.isfinite(coefficients).all():
            raise ValueError("coefficients holds NaN or infinity")
        self.count = self.leaves = self.root = 0
        for i in range(count):
            self.new_box()
            box = &self.boxes[i]
            for j in range(2):
                box.lo[j], box.hi[j] = boxes[i, j], boxes[i, 2 + j]
                box.level[j], box.child[j] = <int> links[i, j], links[i, 2 + j]
            box.cut, box.error = boxes[i, 4], boxes[i, 5]
            box.axis, box.leaf = <int> links[i, 4], links[i, 5]
        size = leaves * EPF_PATCH
        if leaves > self.leaf_room:
            grown = <double *> realloc(self.coefficients, size * sizeof(double))
            if grown == NULL:
                self.count = 0
                self.root = self.new_box()
                raise MemoryError()
            self.coefficients, self.leaf_room = grown, leaves
        if size:
            np.asarray(<double[:size]> self.coefficients)[:] = np.ravel(coefficients)
        self.leaves, self.root = leaves, root

    @staticmethod
    def check_tree(boxes, links, ptrdiff_t root, ptrdiff_t leaves):
        """Whether every box but the root is half of one other, and every leaf that of one box."""
        boxes, links = np.asarray(boxes), np.asarray(links)
        count = len(boxes)
        lo, hi, cut = boxes[:, :2], boxes[:, 2:4], boxes[:, 4]
        axis, leaf = links[:, 4], links[:, 5]
        inner = np.flatnonzero(axis >= 0)
        known = leaf[(axis < 0) & (leaf >= 0)]
        children = links[inner, 2:4]
        others = np.delete(np.arange(count), root)
        good = (
            np.isfinite(boxes).all() and (lo < hi).all() and (boxes[:, 5] >= 0.0).all()
            and ((axis >= -1) & (axis <= 1) & (leaf >= EMPTY)).all()
            and (np.abs(links[:, :2]) <= 4 * MOST_DOUBLINGS).all()
            and np.array_equal(np.sort(children, axis=None), others)
            and np.array_equal(np.sort(known), np.arange(leaves))
        )
        if good and len(inner):
            along = axis[inner], cut[inner]
            for side, child in enumerate(children.T):
                low, high = lo[inner].copy(), hi[inner].copy()
                (high if side == 0 else low)[np.arange(len(inner)), along[0]] = along[1]
                good = good and np.array_equal(lo[child], low) and np.array_equal(hi[child], high)
        if not good:
            raise ValueError("boxes and links are no tree of boxes")
