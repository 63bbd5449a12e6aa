"""The entry point. It handles signals and the standard streams before it imports the rest, so neither prints a traceback."""

import signal
import sys
from typing import NoReturn

from mqbridge.cli.process import early_signals, streams

INTERRUPTED = 130
"""The same as `exit_codes.INTERRUPTED`, which is not imported yet when the first interrupt may come."""
UNDELIVERED = 4
"""The same as `exit_codes.STOPPED`."""


def _quit(*_: object) -> NoReturn:
    """Handle an interrupt during the imports."""
    sys.exit(INTERRUPTED)


def main() -> None:
    """Run the program. An interrupt during the imports ends it with exit code 130 and without a traceback."""
    signal.signal(signal.SIGINT, _quit)
    early_signals.keep()
    streams.prepare()
    from mqbridge.cli.app import app

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except streams.OutputFailed as failure:
        from mqbridge.cli.output.console import print_failure

        print_failure(f"standard output cannot be written: {failure}")
        sys.exit(UNDELIVERED)
