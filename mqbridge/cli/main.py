"""The entry point. It handles Ctrl-C before it imports the rest, so Ctrl-C never prints a traceback, even during the imports."""

import signal
import sys
from typing import NoReturn

INTERRUPTED = 130
"""The same as `exit_codes.INTERRUPTED`, which is not imported yet when the first interrupt may come."""


def _quit(*_: object) -> NoReturn:
    """Handle an interrupt during the imports."""
    sys.exit(INTERRUPTED)


def main() -> None:
    """Run the program. An interrupt during the imports ends it with exit code 130 and without a traceback."""
    signal.signal(signal.SIGINT, _quit)
    from mqbridge.cli.app import app

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
