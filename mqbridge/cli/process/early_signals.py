"""SIGTERM and SIGHUP that come while the program starts.

They are kept until somebody handles them: a supervisor may stop or reload a gateway in its first half second. Without this,
SIGHUP would end it, and SIGTERM would have no effect on the first process of a container, which the kernel spares if it has no
handler.
"""

import signal

_KEPT = {getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)}


def keep() -> None:
    """Keep the signals that come from now on."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _KEPT)


def deliver() -> None:
    """Deliver the kept signals, and those that come from now on. Child processes inherit the mask, so call it before any."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _KEPT)
