"""Log lines on standard error: text for people, or one JSON object per line.

With JSON, everything that the process writes there is a JSON object: also warnings, uncaught exceptions and notes for people.
"""

import logging
import sys
import threading
from datetime import UTC, datetime
from types import TracebackType

import orjson

HANDLER = "mqbridge"
TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
NOISY = ("httpx", "httpcore", "hpack")
"""Libraries that log every request, or every step of a request."""


class JsonLines(logging.Formatter):
    """Formats a record as a JSON object: time, level, logger, message and, if present, the exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return orjson.dumps(line).decode()


def configure(level: str = "warning", style: str = "text") -> None:
    """Send every logger of the process to standard error; a second call replaces the handler of the first."""
    handler = logging.StreamHandler(sys.stderr)
    handler.name = HANDLER
    handler.setFormatter(JsonLines() if style == "json" else logging.Formatter(TEXT))
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if handler.name == HANDLER]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
    _redirect_warnings_and_exceptions(wanted=style == "json")


def is_json() -> bool:
    """Return True if standard error is JSON, for programs."""
    return any(handler.name == HANDLER and isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers)


def write(level: int, message: str) -> None:
    """Write a line to standard error, whatever the log level."""
    logger = logging.getLogger("mqbridge.cli")
    for handler in logging.getLogger().handlers:
        if handler.name == HANDLER:
            handler.handle(logger.makeRecord(logger.name, level, "", 0, message, (), None))


def _redirect_warnings_and_exceptions(*, wanted: bool) -> None:
    logging.captureWarnings(wanted)
    sys.excepthook = _uncaught if wanted else sys.__excepthook__
    threading.excepthook = _uncaught_in_thread if wanted else threading.__excepthook__


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger("mqbridge").critical("ended by %s: %s", kind.__name__, error, exc_info=(kind, error, trace))


def _uncaught_in_thread(hook: threading.ExceptHookArgs) -> None:
    if hook.exc_value is not None:
        _uncaught(hook.exc_type, hook.exc_value, hook.exc_traceback)
