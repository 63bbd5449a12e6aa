"""Output for people and programs: tables and JSON on standard output, notes and errors on standard error.

Rich draws colours only on a terminal and honours NO_COLOR. Markup is off everywhere: names and payloads come from outside and
may contain brackets. Rich is imported with the first output, so that completion does not wait for it.
"""

import functools
import logging
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import orjson
import typer

from mqbridge.cli.process import logs
from mqbridge.cli.process.event_loop import Interrupted
from mqbridge.cli.process.exit_codes import INTERRUPTED, OK, exit_code
from mqbridge.config.problems import ConfigErrors
from mqbridge.errors import MqbridgeError

if TYPE_CHECKING:
    from rich.console import Console

P = ParamSpec("P")
R = TypeVar("R")

PIPED_WIDTH = 1000
"""Width of a table on a stream that is not a terminal: no line of the table should wrap there."""

debug: ContextVar[bool] = ContextVar("debug", default=False)
"""True with the option `--debug`: tracebacks of expected errors are shown too."""


def stdout_console() -> "Console":
    """Return a console for standard output."""
    return _console(stderr=False)


def stderr_console() -> "Console":
    """Return a console for standard error."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> "Console":
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else PIPED_WIDTH
    return Console(stderr=stderr, markup=False, highlight=False, emoji=False, soft_wrap=False, width=width)


def print_json(value: Any, *, pretty: bool = True) -> None:
    """Print one JSON value on standard output, indented; with `pretty=False` in one line."""
    options = orjson.OPT_APPEND_NEWLINE | (orjson.OPT_INDENT_2 if pretty else 0)
    sys.stdout.write(orjson.dumps(value, default=str, option=options).decode())
    sys.stdout.flush()


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Iterable[str] = (), title: str | None = None
) -> None:
    """Print a table; columns in `right` are aligned right, None is an empty cell, integers get thousands separators."""
    from rich import box
    from rich.table import Table

    console = stdout_console()
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, title=title, title_justify="left", pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in set(right) else "left", overflow="fold")
    for row in rows:
        table.add_row(*("" if cell is None else f"{cell:,}" if type(cell) is int else str(cell) for cell in row))
    console.print(table)


def print_note(text: str) -> None:
    """Print a note for people on standard error; as a log line if the log is JSON."""
    if logs.is_json():
        logs.write(logging.INFO, text)
    else:
        stderr_console().print(text, soft_wrap=True)


def print_error(error: MqbridgeError) -> None:
    """Print an expected error, without a traceback; the problems of ConfigErrors one per line."""
    lines = [str(problem) for problem in error.errors] if isinstance(error, ConfigErrors) else [str(error)]
    if logs.is_json():
        for line in lines:
            logs.write(logging.ERROR, line)
        return
    console = stderr_console()
    for line in lines:
        console.print("error: ", style="bold red", end="")
        console.print(line, soft_wrap=True)
    if len(lines) > 1:
        console.print(f"{len(lines)} problems", soft_wrap=True)


def command(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a command: expected errors and interrupts become a message and an exit code; other exceptions are raised."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except MqbridgeError as error:
            if debug.get() and logs.is_json():
                logging.getLogger(__name__).debug("traceback of the error", exc_info=error)
            elif debug.get():
                stderr_console().print_exception()
            print_error(error)
            raise typer.Exit(exit_code(error)) from None
        except (Interrupted, KeyboardInterrupt):
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # `mqbridge consume | head` ends when its reader ends; the flush at exit must not fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(OK) from None

    return run
