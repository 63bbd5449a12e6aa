"""Where coroutines of the command line run: uvloop where it is installed, and one way to be interrupted.

The first SIGINT or SIGTERM asks to stop (drain, for `run`; cancel, for the others), the second quits at once.
"""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

QUIT_CODE = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

GARBAGE = (50_000, 10, 10)
"""When garbage is looked for. Messages come by the thousand and make none, for nothing in them refers to itself; by default,
which is after every 700 objects, a fifth of the time of a bridge at full speed went into it."""


class Interrupted(Exception):
    """A signal ended the work before it was done."""


def run(main: Coroutine[Any, Any, T], *, stop: Callable[[], bool] | None = None, quitting: Callable[[], None] | None = None) -> T:
    """Run to the end. `stop` is called at the first signal and says whether `main` ends by itself now; otherwise it is cancelled.

    `quitting` is called at the second one, right before the process ends. Raises Interrupted when a signal cancelled it.
    """
    gc.set_threshold(*GARBAGE)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_watched(main, stop, quitting))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _watched(main: Coroutine[Any, Any, T], stop: Callable[[], bool] | None, quitting: Callable[[], None] | None) -> T:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine always runs in a task here
    seen: list[int] = []

    def on_signal(number: int) -> None:
        seen.append(number)
        if len(seen) > 1:
            try:
                if quitting is not None:
                    quitting()
                sys.stderr.flush()
            finally:
                os._exit(QUIT_CODE)
        if stop is None or not stop():
            task.cancel()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        return await main
    except asyncio.CancelledError:
        if seen:
            raise Interrupted(signal.Signals(seen[0]).name) from None
        raise
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
