"""Runs the coroutines of the command line: on uvloop if it is installed, with the same signal handling for all commands.

The first SIGINT or SIGTERM stops the command: `mqbridge run` drains its routes, other commands are cancelled. The second signal
ends the process at once.
"""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from mqbridge.cli.process import early_signals

T = TypeVar("T")

QUIT_CODE = 130
"""Exit code after the second signal: the same as for an interrupted command."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

GC_THRESHOLDS = (50_000, 10, 10)
"""Thresholds of the garbage collector. Messages arrive by the thousand and form no reference cycles; with the default, a
collection after every 700 new objects, a gateway at full speed spent a fifth of its time on collections."""


class Interrupted(Exception):
    """A signal cancelled the command; the text is the name of the signal."""


def run(
    main: Coroutine[Any, Any, T],
    *,
    stop: Callable[[], bool] | None = None,
    on_quit: Callable[[], None] | None = None,
    on_hangup: Callable[[], None] | None = None,
) -> T:
    """Run `main` to its end and return its result.

    The first signal calls `stop`. If `stop` returns True, it has told `main` to end; otherwise, or without `stop`, `main` is
    cancelled. The second signal calls `on_quit`, right before the process ends. SIGHUP calls `on_hangup`; without it, it ends the
    process, which is its default action. Raises Interrupted if a signal cancelled `main`.
    """
    gc.set_threshold(*GC_THRESHOLDS)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_run_until_signal(main, stop, on_quit, on_hangup))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the function that makes a uvloop; None, for asyncio's own loop, if uvloop is not installed."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _run_until_signal(
    main: Coroutine[Any, Any, T],
    stop: Callable[[], bool] | None,
    on_quit: Callable[[], None] | None,
    on_hangup: Callable[[], None] | None,
) -> T:
    """Run `main` with signal handlers; see `run`."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine always runs in a task here
    received: list[int] = []
    """Numbers of the received signals."""

    def on_signal(number: int) -> None:
        received.append(number)
        if len(received) > 1:
            try:
                if on_quit is not None:
                    on_quit()
                sys.stderr.flush()
            finally:
                os._exit(QUIT_CODE)
        if stop is None or not stop():
            task.cancel()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    if on_hangup is not None and (hangup := getattr(signal, "SIGHUP", None)) is not None:
        loop.add_signal_handler(hangup, on_hangup)
    early_signals.deliver()
    try:
        return await main
    except asyncio.CancelledError:
        if received:
            raise Interrupted(signal.Signals(received[0]).name) from None
        raise
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
