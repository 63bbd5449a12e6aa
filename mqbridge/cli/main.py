"""The entry point. It imports nothing of size itself, so that a Ctrl-C is quiet from the first moment on."""

import signal
import sys
from typing import NoReturn

INTERRUPTED = 130


def _quit(*_: object) -> NoReturn:
    sys.exit(INTERRUPTED)


def main() -> None:
    """Run the program; whoever interrupts it before a command begins gets the exit code, and no traceback."""
    signal.signal(signal.SIGINT, _quit)
    from mqbridge.cli.app import app

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
