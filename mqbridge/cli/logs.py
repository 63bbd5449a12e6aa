"""Where log lines go: standard error, as text for people or as one JSON object per line."""

import logging
import sys
from datetime import UTC, datetime

import orjson

HANDLER = "mqbridge"
TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


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
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request as info
