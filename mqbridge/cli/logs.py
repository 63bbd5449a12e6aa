"""Where log lines go: standard error, as text for people or as one JSON object per line.

As JSON everything that the process says there is one: warnings, exceptions that nobody caught, and remarks for people too.
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
"""Libraries that log every request, or every step of one."""


class JsonLines(logging.Formatter):
    """A record as a JSON object: time, level, logger, message and, where there is one, the exception."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
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
    """Send every logger of the process to standard error; called again, it replaces what it set before."""
    handler = logging.StreamHandler(sys.stderr)
    handler.name = HANDLER
    handler.setFormatter(JsonLines() if style == "json" else logging.Formatter(TEXT))
    root = logging.getLogger()
    for old in [one for one in root.handlers if one.name == HANDLER]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.WARNING)
    _everything_as_json(wanted=style == "json")


def is_json() -> bool:
    """Whether standard error is for programs."""
    return any(one.name == HANDLER and isinstance(one.formatter, JsonLines) for one in logging.getLogger().handlers)


def write(level: int, message: str) -> None:
    """A line for standard error, whatever the level that is logged from."""
    logger = logging.getLogger("mqbridge.cli")
    for handler in logging.getLogger().handlers:
        if handler.name == HANDLER:
            handler.handle(logger.makeRecord(logger.name, level, "", 0, message, (), None))


def _everything_as_json(*, wanted: bool) -> None:
    logging.captureWarnings(wanted)
    sys.excepthook = _uncaught if wanted else sys.__excepthook__
    threading.excepthook = _uncaught_in_thread if wanted else threading.__excepthook__


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger("mqbridge").critical("ended by %s: %s", kind.__name__, error, exc_info=(kind, error, trace))


def _uncaught_in_thread(hook: threading.ExceptHookArgs) -> None:
    if hook.exc_value is not None:
        _uncaught(hook.exc_type, hook.exc_value, hook.exc_traceback)
