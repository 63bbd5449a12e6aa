"""The exit codes of every command, and the code of each error.

    0    done
    1    an unexpected error: a bug, with its traceback
    2    the command line or the configuration is wrong
    3    a cluster cannot be reached, or rejected a request
    4    a route or a partition stopped, or something was not delivered, or standard output could not be written
    130  interrupted before the command was done

`mqbridge run` drains after SIGTERM or Ctrl-C, which is a normal end: its code is 0, or 4 if a route or a partition had stopped.
With `--until-idle` it is 3 if a source could not be asked at the end whether it has more messages.
"""

from mqbridge.errors import ClusterError, ConfigError, DeliveryError, GapError, LocalProtocolError, MappingError, ProtocolError

OK = 0
UNEXPECTED = 1
USAGE = 2
CLUSTER = 3
STOPPED = 4
INTERRUPTED = 130

_CODES: tuple[tuple[type[Exception], int], ...] = (  # the first class of which the error is an instance counts
    (ConfigError, USAGE),
    (ClusterError, CLUSTER),
    (LocalProtocolError, UNEXPECTED),
    (ProtocolError, CLUSTER),
    (GapError, STOPPED),
    (DeliveryError, STOPPED),
    (MappingError, STOPPED),
)


def exit_code(error: BaseException) -> int:
    """Return the exit code for this error; UNEXPECTED for an error that is not declared in `mqbridge.errors`."""
    return next((code for error_class, code in _CODES if isinstance(error, error_class)), UNEXPECTED)


HELP = (
    "Exit codes: 0 done, 1 bug, 2 usage or configuration, 3 cluster unreachable or request rejected, "
    "4 stopped or undelivered (also output), 130 interrupted."
)
