"""The kernel's send buffer: bytes that left our own buffers, but that the kernel has not delivered yet.

On a slow link the kernel may buffer megabytes, and takes minutes to send them. A silence timeout must see that sending makes
progress, and a resend over a new connection must be sure that the kernel does not deliver the first copy after all. If the
platform does not report the kernel's bytes, only our own buffers count.
"""

import contextlib
import socket
import struct
import sys
from asyncio import BaseTransport

if sys.platform != "win32":
    import fcntl
    import termios


def limit_unsent_bytes(transport: BaseTransport, size: int) -> None:
    """Limit the bytes that the kernel buffers and has not sent yet to `size`, if the platform can do so."""
    sock = transport.get_extra_info("socket")
    if sock is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, size)


def undelivered_bytes(transport: BaseTransport) -> int:
    """Return the number of bytes that the peer's kernel has not acknowledged; 0 if the platform does not report it."""
    sock = transport.get_extra_info("socket")
    if sock is None or sys.platform == "win32":
        return 0
    try:
        (size,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0\0\0\0"))
    except OSError:
        return 0
    return int(size)


def discard_when_closed(transport: BaseTransport) -> None:
    """Let the kernel drop undelivered bytes when the socket is closed; by default it delivers them in the background."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # linger for 0 s
