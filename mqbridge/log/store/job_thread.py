"""A thread that runs jobs one after another, in the order of the calls, and gives their results to the event loop.

A `ThreadPoolExecutor` with one thread does the same, but each of its futures has a lock and a condition of its own: a job costs
120 us of CPU there and 60 us here, of some 300 us for storing a message.
"""

import asyncio
import atexit
import threading
import time
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

EXIT_S = 30.0
"""Maximum time for which the end of the process waits for the running and queued jobs of all threads."""

T = TypeVar("T")


class _Item(NamedTuple):
    """A job, and the future of its result in an event loop."""

    job: Callable[[], Any]
    future: "asyncio.Future[Any]"
    loop: asyncio.AbstractEventLoop


_Queue = SimpleQueue[_Item | None]
"""Jobs of a thread; None ends it."""
_running: dict[threading.Thread, _Queue] = {}
"""The threads that have not ended, for the end of the process."""
_process_ends = threading.Event()
"""Set when the threads are ended because the process ends."""


class JobThread:
    """One thread. Ends after the queued jobs when `end` is called, when nothing refers to it any more, or with the process."""

    def __init__(self, name: str) -> None:
        """Raises RuntimeError if the system allows no more threads."""
        self._queue: _Queue = SimpleQueue()
        self._thread = threading.Thread(target=_run, args=(self._queue,), name=name, daemon=True)
        self._has_ended = False
        self._thread.start()
        _running[self._thread] = self._queue
        weakref.finalize(self, self._queue.put, None).atexit = False

    def submit(self, job: Callable[[], T]) -> "asyncio.Future[T]":
        """Run the job; the future of the running event loop gives its result. One that is cancelled in time does not run.

        Raises RuntimeError after `end`, and while the process ends.
        """
        if self._has_ended or _process_ends.is_set():
            raise RuntimeError(f"the thread {self._thread.name} has been ended")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._queue.put(_Item(job, future, loop))
        return future

    def end(self) -> None:
        """End the thread after its queued jobs."""
        self._has_ended = True
        self._queue.put(None)

    def join(self) -> None:
        """Wait until the thread has ended; never called in an event loop's thread."""
        self._thread.join()


def _run(queue: _Queue) -> None:
    """Run the jobs of a queue. Refers to no JobThread, so that one that is forgotten can end."""
    while (item := queue.get()) is not None:
        _run_item(item)
        del item  # the next one may come much later
    _running.pop(threading.current_thread(), None)


def _run_item(item: _Item) -> None:
    job, future, loop = item
    if future.cancelled():
        return
    result: object = None
    error: BaseException | None = None
    try:
        result = job()
    except StopIteration as raised:  # no future can have it
        error = RuntimeError(f"a job raised {raised!r}")
    except BaseException as raised:  # noqa: BLE001 - the caller gets it
        error = raised
    try:
        loop.call_soon_threadsafe(_resolve, future, result, error)
    except RuntimeError:  # the loop was closed: nobody waits any more
        if not loop.is_closed():
            raise
    finally:
        del error, future, item  # the error refers to this frame: a cycle


def _resolve(future: "asyncio.Future[Any]", result: object, error: BaseException | None) -> None:
    if future.done():  # cancelled
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


@atexit.register
def _end_all() -> None:
    """Let the jobs of all threads end with the process: a daemon thread would be stopped in the middle of one."""
    _process_ends.set()
    deadline = time.monotonic() + EXIT_S
    for queue in list(_running.values()):
        queue.put(None)
    for thread in list(_running):
        thread.join(max(0.0, deadline - time.monotonic()))
