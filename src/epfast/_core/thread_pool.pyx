"""Threads of one fit, which share the parts of a piece of work without the GIL.

BLAS has one thread meanwhile (:mod:`epfast.inference.runtime`). Its own threads spin while they
wait, so that on a busy machine two of them take many times as long for a factorisation as one.
The threads here sleep. Any thread that is awake takes the next part, and the caller takes all parts
if no other thread does. A thread that the system delays holds up only the part that it has.
"""

import threading

from cpython.exc cimport PyErr_CheckSignals

cdef extern from "pythread.h" nogil:
    int PyThread_acquire_lock_timed(PyThread_type_lock, long long, int)
    PyThread_type_lock PyThread_allocate_lock()
    void PyThread_free_lock(PyThread_type_lock)
    int PyThread_acquire_lock(PyThread_type_lock, int)
    void PyThread_release_lock(PyThread_type_lock)

cdef enum:
    SHARES = 2                  # parts per thread, so that all end at about the same time
    LOOK = 100_000              # microseconds after which one who waits for Python looks for Ctrl-C


cdef class PythonWork:
    """Work in Python, for :meth:`ThreadPool.each`."""

    cdef object call, lock      # the lock is for Python without its own
    cdef list errors
    cdef dict numbers           # of the threads that do it, by their identifiers


cdef void in_python(void *what, ptrdiff_t part) noexcept nogil:
    """A part of Python's work, unless one has failed; the part -1 is a look for Ctrl-C."""
    with gil:
        work = <PythonWork> what
        try:
            if part < 0:
                PyErr_CheckSignals()
            elif not work.errors:
                with work.lock:
                    number = work.numbers.setdefault(threading.get_ident(), len(work.numbers))
                work.call(number, part)
        except BaseException as error:  # raised by the caller
            work.errors.append(error)


cdef class ThreadPool:
    """The thread that calls, and ``threads`` - 1 more inside a with block; outside it is alone."""

    def __cinit__(self, int threads):
        cdef int k
        if threads < 1:
            raise ValueError(f"threads is {threads}; allowed: an integer > 0")
        self.threads, self.members, self.errors = min(threads, <int> MOST), [], []
        self.mutex, self.done = PyThread_allocate_lock(), PyThread_allocate_lock()
        if self.mutex == NULL or self.done == NULL:
            raise MemoryError
        PyThread_acquire_lock(self.done, 1)
        for k in range(self.threads - 1):
            self.wake[k] = PyThread_allocate_lock()
            if self.wake[k] == NULL:
                raise MemoryError
            PyThread_acquire_lock(self.wake[k], 1)

    def __dealloc__(self):
        cdef int k
        for k in range(MOST):
            if self.wake[k] != NULL:
                PyThread_free_lock(self.wake[k])
        if self.done != NULL:
            PyThread_free_lock(self.done)
        if self.mutex != NULL:
            PyThread_free_lock(self.mutex)

    def __enter__(self):
        cdef int k
        self.depth += 1
        if self.depth > 1:
            return self
        self.ends, self.parts, self.next = False, 0, 0
        try:
            for k in range(self.threads - 1):
                self.asleep[k] = False
                given = {"args": (k,), "name": f"epfast-{k + 1}", "daemon": True}
                member = threading.Thread(target=self._serve, **given)
                self.members.append(member)
                member.start()
                self.workers = k + 1
        except RuntimeError as refused:
            # Ctrl-C in its wait for the thread leaves a lock that threading cannot release
            if isinstance(refused.__context__, KeyboardInterrupt):
                self.__exit__()
                raise refused.__context__ from None
            self.members.pop()  # the system gives no more: those that are there do the work
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        cdef int k
        self.depth -= 1
        if self.depth > 0:
            return
        self.workers = 0
        PyThread_acquire_lock(self.mutex, 1)
        self.ends = True
        for k in range(self.threads - 1):
            if self.asleep[k]:
                self.asleep[k] = False
                PyThread_release_lock(self.wake[k])
        PyThread_release_lock(self.mutex)
        raised = None
        while self.members:
            member = self.members.pop()
            try:
                if member.ident is not None:
                    member.join()
            except KeyboardInterrupt as pressed:  # raised once all are back
                raised = pressed
                self.members.append(member)
        if raised is not None:
            raise raised

    def each(self, work, ptrdiff_t parts):
        """``work(k, part)`` on thread k for each part from 0; the caller, number 0, has the first.

        An error of one, or Ctrl-C, is raised once all that have begun are back; nobody begins more.
        """
        cdef PythonWork shared = PythonWork()
        shared.call, shared.errors, shared.lock = work, [], threading.Lock()
        self.errors = shared.errors
        shared.numbers = {threading.get_ident(): 0}
        with nogil:
            self.run(in_python, <void *> shared, parts)
        if shared.errors:
            raise shared.errors[0]

    def _serve(self, int number):
        with nogil:
            self.serve(number)

    cdef void serve(self, int number) noexcept nogil:
        """The life of a worker: share what there is, sleep."""
        PyThread_acquire_lock(self.mutex, 1)
        while True:
            self.share()
            if self.ends:
                break
            self.asleep[number] = True
            PyThread_release_lock(self.mutex)
            PyThread_acquire_lock(self.wake[number], 1)
            PyThread_acquire_lock(self.mutex, 1)
        PyThread_release_lock(self.mutex)

    cdef void share(self) noexcept nogil:
        """Do parts until none is left to take; the mutex is held before and after."""
        cdef ptrdiff_t part
        cdef Task task
        cdef void *what
        while self.next < self.parts:
            part, task, what = self.next, self.task, self.what
            self.next += 1
            PyThread_release_lock(self.mutex)
            task(what, part)
            PyThread_acquire_lock(self.mutex, 1)
            self.left -= 1
            if self.left == 0 and self.waits:
                self.waits = False
                PyThread_release_lock(self.done)

    cdef void run(self, Task task, void *what, ptrdiff_t parts) noexcept nogil:
        """``task(what, part)`` for part = 0, 1, ..., parts - 1, begun in this order."""
        cdef ptrdiff_t part, more
        cdef int k
        if self.workers == 0 or parts <= 1:
            for part in range(parts):
                task(what, part)
            return
        PyThread_acquire_lock(self.mutex, 1)
        self.task, self.what = task, what
        self.next, self.parts, self.left = 0, parts, parts
        more = parts - 1
        for k in range(self.workers):
            if more > 0 and self.asleep[k]:
                self.asleep[k] = False
                PyThread_release_lock(self.wake[k])
            more -= 1
        self.share()
        self.waits = self.left > 0
        if self.waits:
            PyThread_release_lock(self.mutex)
            if task is in_python:
                while PyThread_acquire_lock_timed(self.done, LOOK, 0) != 1:
                    task(what, -1)
            else:
                PyThread_acquire_lock(self.done, 1)
        else:
            PyThread_release_lock(self.mutex)


cdef bint is_at_work(ThreadPool pool) noexcept nogil:
    """Whether there are threads beside the one that asks."""
    return pool is not None and pool.workers > 0


cdef ptrdiff_t part_size(ThreadPool pool, ptrdiff_t n, ptrdiff_t least) noexcept nogil:
    """Of n things that are shared, how many go together."""
    cdef ptrdiff_t parts = SHARES * (pool.workers + 1)
    return max(least, (n + parts - 1) // parts)
