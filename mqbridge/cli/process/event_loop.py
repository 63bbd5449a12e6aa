"""Runs the coroutines of the command line: on uvloop if it is installed, with the same signal handling for all commands.

The first SIGINT or SIGTERM stops the command (`run` drains, the others are cancelled), the second quits at once.
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

GC_THRESHOLDS = (50_000, 10, 10)
"""Thresholds of the garbage collector. Messages arrive by the thousand and form no reference cycles; with the default, a
collection after every 700 objects, a bridge at full speed spent a fifth of its time on collections."""


class Interrupted(Exception):
    """A signal cancelled the command."""


def run(main: Coroutine[Any, Any, T], *, stop: Callable[[], bool] | None = None, quitting: Callable[[], None] | None = None) -> T:
    """Run to the end. The first signal calls `stop`, which returns True if `main` now ends by itself; otherwise it is cancelled.

    The second signal calls `quitting`, right before the process ends. Raises Interrupted if a signal cancelled `main`.
    """
    gc.set_threshold(*GC_THRESHOLDS)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_run_until_signal(main, stop, quitting))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _run_until_signal(
    main: Coroutine[Any, Any, T], stop: Callable[[], bool] | None, quitting: Callable[[], None] | None
) -> T:
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
