"""The entry point. It imports nothing large itself, so that Ctrl-C ends it quietly from the start."""

import signal
import sys
from typing import NoReturn

INTERRUPTED = 130


def _quit(*_: object) -> NoReturn:
    sys.exit(INTERRUPTED)


def main() -> None:
    """Run the program. An interrupt before the command starts ends with the exit code and without a traceback."""
    signal.signal(signal.SIGINT, _quit)
    from mqbridge.cli.app import app

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
