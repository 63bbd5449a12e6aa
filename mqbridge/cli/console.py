"""What people and programs read: tables and text on standard output, errors on standard error.

Rich draws colours only on a terminal and honours NO_COLOR. Markup is off everywhere: names and payloads come from elsewhere and
may hold brackets.
"""

import functools
import logging
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

import orjson
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from mqbridge.cli import logs
from mqbridge.cli.exits import INTERRUPTED, OK, exit_code
from mqbridge.cli.loop import Interrupted
from mqbridge.config.problems import ConfigErrors
from mqbridge.errors import MqbridgeError

P = ParamSpec("P")
R = TypeVar("R")

PIPED_WIDTH = 1000
"""Columns of a table that goes into a pipe, where nothing should be wrapped."""

debug: ContextVar[bool] = ContextVar("debug", default=False)
"""`--debug`: expected errors are shown with their traceback too."""


def out() -> Console:
    """Standard output."""
    return _console(stderr=False)


def err() -> Console:
    """Standard error."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPED_WIDTH
    return Console(stderr=stderr, markup=False, highlight=False, emoji=False, soft_wrap=False, width=width)


def print_json(value: Any, *, pretty: bool = True) -> None:
    """One JSON value on standard output."""
    options = orjson.OPT_APPEND_NEWLINE | (orjson.OPT_INDENT_2 if pretty else 0)
    sys.stdout.write(orjson.dumps(value, default=str, option=options).decode())
    sys.stdout.flush()


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Iterable[str] = (), title: str | None = None
) -> None:
    """A table; columns named in `right` hold numbers."""
    console = out()
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, title=title, title_justify="left", pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in set(right) else "left", overflow="fold")
    for row in rows:
        table.add_row(*("" if cell is None else f"{cell:,}" if type(cell) is int else str(cell) for cell in row))
    console.print(table)


def say(text: str) -> None:
    """A remark for the person in front, on standard error; a line of the log where that is for programs."""
    if logs.is_json():
        logs.write(logging.INFO, text)
    else:
        err().print(text, soft_wrap=True)


def tell(error: MqbridgeError) -> None:
    """An expected error: what was wrong and what to do, without a traceback."""
    lines = [str(one) for one in error.errors] if isinstance(error, ConfigErrors) else [str(error)]
    if logs.is_json():
        for line in lines:
            logs.write(logging.ERROR, line)
        return
    console = err()
    for line in lines:
        console.print("error: ", style="bold red", end="")
        console.print(line, soft_wrap=True)
    if len(lines) > 1:
        console.print(f"{len(lines)} problems", soft_wrap=True)


def command(function: Callable[P, R]) -> Callable[P, R]:
    """Turn what is expected to go wrong into a message and an exit code; what is not stays an exception."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except MqbridgeError as error:
            if debug.get() and logs.is_json():
                logging.getLogger(__name__).debug("this is where it comes from", exc_info=error)
            elif debug.get():
                err().print_exception()
            tell(error)
            raise typer.Exit(exit_code(error)) from None
        except (Interrupted, KeyboardInterrupt):
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # `mqbridge consume | head` is done when its reader is; the flush at exit must not fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(OK) from None

    return run
