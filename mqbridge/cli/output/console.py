"""Output for people and programs: tables and JSON on standard output, notes and errors on standard error.

Rich draws colours only on a terminal and honours NO_COLOR. Markup is off everywhere: names and payloads come from outside and
may contain brackets. Rich is imported with the first output, so that completion does not wait for it.
"""

import functools
import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import orjson
import typer

from mqbridge.cli.output import escape
from mqbridge.cli.process import early_signals, logs
from mqbridge.cli.process.event_loop import Interrupted
from mqbridge.cli.process.exit_codes import INTERRUPTED, exit_code
from mqbridge.config.problems import ConfigErrors
from mqbridge.errors import ConfigError, MqbridgeError

if TYPE_CHECKING:
    from rich.console import Console

P = ParamSpec("P")
R = TypeVar("R")

PIPED_WIDTH = 1000
"""Width of a table on a stream that is not a terminal: no line of the table should wrap there."""

BYTES_PARAMETERS = frozenset(
    {"attributes", "delimiter", "fmt", "index_key", "key", "key_delimiter", "message_property", "msg_type", "ordering_key"}
)
"""Parameters of commands whose bytes are those of messages or of the output, UTF-8 or not."""

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
    """Print one JSON value on standard output, indented; with `pretty=False` in one line. JSON is UTF-8 in every locale."""
    options = orjson.OPT_APPEND_NEWLINE | (orjson.OPT_INDENT_2 if pretty else 0)
    sys.stdout.flush()
    sys.stdout.buffer.write(escape.json_bytes(value, options))
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
    print_failure(*(str(problem) for problem in error.errors) if isinstance(error, ConfigErrors) else [str(error)])


def print_failure(*lines: str) -> None:
    """Print problems on standard error, one per line; as log lines if the log is JSON."""
    if logs.is_json():
        for line in lines:
            logs.write(logging.ERROR, line)
        return
    console = stderr_console()
    for line in lines:
        console.print("error: ", style="bold red", end="")
        console.print(escape.escape_raw(line), soft_wrap=True)
    if len(lines) > 1:
        console.print(f"{len(lines)} problems", soft_wrap=True)


def _decode_arguments(parameters: dict[str, Any]) -> None:
    """Decode texts that Python could not decode in the locale of the process, but that are UTF-8.

    Raises ConfigError for an argument that is not UTF-8, if it names something: names of topics, groups and clusters are UTF-8.
    """
    for parameter, value in parameters.items():
        if isinstance(value, list):
            parameters[parameter] = [_decode_argument(parameter, item) for item in value]
        else:
            parameters[parameter] = _decode_argument(parameter, value)


def _decode_argument(parameter: str, value: Any) -> Any:
    if not isinstance(value, str) or value.isascii():
        return value
    text = escape.text_bytes(value).decode("utf-8", "surrogateescape")
    if parameter not in BYTES_PARAMETERS and (shown := escape.escape_raw(text)) != text:
        raise ConfigError(f"the argument '{shown}' is not UTF-8", hint="Write names in UTF-8")
    return text


def command(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a command: expected errors and interrupts become a message and an exit code; other exceptions are raised."""
    handled = service(function)

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        early_signals.deliver()
        return handled(*args, **kwargs)

    return run


def service(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a command like `command`; it handles SIGTERM and SIGHUP, so they wait until `event_loop.run` has its handlers."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            _decode_arguments(kwargs)
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

    return run
