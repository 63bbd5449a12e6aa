"""Log lines on standard error: text for people, or one JSON object per line.

With JSON, everything that the process writes there is a JSON object: also warnings, uncaught exceptions and notes for people.
"""

import logging
import sys
import threading
from datetime import UTC, datetime
from types import TracebackType
from typing import TextIO

from mqbridge.cli.output.escape import json_bytes
from mqbridge.cli.process import streams
from mqbridge.cli.process.repeat_limit import RepeatLimit

HANDLER_NAME = "mqbridge"
"""The name of our handler, by which `configure` finds and replaces it."""
TEXT_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
NOISY_LOGGERS = ("httpx", "httpcore", "hpack")
"""Loggers of libraries that log every request, or every step of a request: only their warnings are logged."""


class JsonLines(logging.Formatter):
    """Formats a record as a JSON object: time, level, logger, message and, if present, the exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the JSON text of the record."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json_bytes(line, 0).decode()


class StderrHandler(logging.StreamHandler[TextIO]):
    """Writes records to standard error. After a time in which that failed, it says first how many lines were lost."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record; if it cannot be written, it is lost."""
        lost, reason = streams.lost_error_lines()
        super().emit(record)
        if lost and not streams.lost_error_lines()[0]:
            note = f"{lost} lines before the last one are lost: standard error could not be written: {reason}"
            super().emit(logging.LogRecord(__name__, logging.WARNING, "", 0, note, (), None))


def configure(level: str = "warning", style: str = "text") -> None:
    """Write the log records of the whole process to standard error, as `text` or `json`; a second call replaces the first."""
    handler = StderrHandler(sys.stderr)
    handler.name = HANDLER_NAME
    handler.addFilter(RepeatLimit())
    handler.setFormatter(JsonLines() if style == "json" else logging.Formatter(TEXT_FORMAT))
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if handler.name == HANDLER_NAME]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    _redirect_warnings_and_exceptions(as_json=style == "json")


def is_json() -> bool:
    """Return True if `configure` chose JSON lines for standard error."""
    return any(
        handler.name == HANDLER_NAME and isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers
    )


def write(level: int, message: str) -> None:
    """Write a note or an error for people as a log record, even if its level is below that of the log."""
    logger = logging.getLogger("mqbridge.cli")
    for handler in logging.getLogger().handlers:
        if handler.name == HANDLER_NAME:
            handler.emit(logger.makeRecord(logger.name, level, "", 0, message, (), None))  # without the limit of repeats


def _redirect_warnings_and_exceptions(*, as_json: bool) -> None:
    """Write warnings and uncaught exceptions as log records, or with `as_json=False` as Python does by default."""
    logging.captureWarnings(as_json)
    sys.excepthook = _log_uncaught if as_json else sys.__excepthook__
    threading.excepthook = _log_uncaught_in_thread if as_json else threading.__excepthook__


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger("mqbridge").critical("uncaught %s: %s", kind.__name__, error, exc_info=(kind, error, trace))


def _log_uncaught_in_thread(hook: threading.ExceptHookArgs) -> None:
    if hook.exc_value is not None:
        _log_uncaught(hook.exc_type, hook.exc_value, hook.exc_traceback)
