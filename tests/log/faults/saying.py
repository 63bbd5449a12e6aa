"""What a process says about its faults: errors of mqbridge, log records from WARNING on, and exceptions that are bugs."""

from __future__ import annotations

import logging
from collections.abc import Callable

from mqbridge.errors import MqbridgeError


class RecordHandler(logging.Handler):
    """Passes the log records of a process on, as something said, or as an exception outside of mqbridge's error tree."""

    def __init__(self, say: Callable[[str], object], problem: Callable[[str], object]) -> None:
        super().__init__(logging.WARNING)
        self._say, self._problem = say, problem

    @classmethod
    def install(cls, say: Callable[[str], object], problem: Callable[[str], object]) -> None:
        """Handle all log records of this process."""
        logging.getLogger().handlers[:] = [cls(say, problem)]

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a record on."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, MqbridgeError):
            self._problem(stray(error))
        else:
            self._say(f"{record.levelname}: {record.getMessage()}")


def stray(error: BaseException) -> str:
    """Describe an exception that no caller of mqbridge expects."""
    return f"exception outside the error tree: {type(error).__name__}: {error}"
