"""Executors that misbehave as told."""

import threading
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor


class AtOnce(Executor):
    """Does each task as it is submitted; loses those whose numbers are told.

    It counts tasks, and says whether somebody shut it down.
    """

    def __init__(self, loses=lambda number: False, workers=2):
        self.loses, self.count, self.closed = loses, 0, False
        self._max_workers = workers

    def submit(self, function, /, *args, **more):
        number, self.count = self.count, self.count + 1
        future = Future()
        if self.loses(number):
            future.set_exception(BrokenExecutor(f"task {number} is lost"))
        else:
            future.set_result(function(*args, **more))
        return future

    def shutdown(self, wait=True, *, cancel_futures=False):
        self.closed = True


class Stuck(AtOnce):
    """Never ends the tasks whose numbers are told."""

    def __init__(self, stuck, workers=2):
        super().__init__(workers=workers)
        self.stuck, self.futures = stuck, {}

    def submit(self, function, /, *args, **more):
        if self.count in self.stuck:
            self.futures[self.count], self.count = Future(), self.count + 1
            return self.futures[self.count - 1]
        return super().submit(function, *args, **more)


class Straggling(Executor):
    """Threads, of which one task waits until the fit is over, or for long."""

    def __init__(self, slow, seconds):
        self.pool, self._max_workers = ThreadPoolExecutor(3), 3
        self.slow, self.seconds, self.count = slow, seconds, 0
        self.over, self.slept = threading.Event(), False

    def submit(self, function, /, *args, **more):
        self.count += 1
        waits = self.count == self.slow

        def called():
            if waits:
                self.slept = not self.over.wait(self.seconds)
            return function(*args, **more)

        return self.pool.submit(called)

    def shutdown(self, wait=True, *, cancel_futures=False):
        """Not by the library: the task that waits may end."""
