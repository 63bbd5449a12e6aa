"""An asyncio protocol that splits received bytes into frames, and collects sent bytes per iteration of the event loop.

The frame handler gets all frames of one read in one call. Sent bytes are collected and written once per iteration of the event
loop, or as soon as FLUSH_BYTES are queued: a write per frame was measured 13 to 50 times slower for small frames.

No transport collects them for us: uvloop's TCP transport calls `write` for each write since 0.23 (12 us each; a listener for
RocketMQ clients spent 38% of its time there), as asyncio's does, and over TLS each write becomes a TLS record of its own.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import cast

from mqbridge.errors import ConnectionLost, Failure, PeerSilent, ProtocolError
from mqbridge.net.connectivity import Link
from mqbridge.net.kernel_queue import discard_when_closed, limit_unsent_bytes, undelivered_bytes
from mqbridge.net.tls.explain import explain_tls, is_permanent
from mqbridge.net.tls.tls import Tls
from mqbridge.wire.cutter import FrameCutter, Measure

FLUSH_BYTES = 256 << 10
"""Flush as soon as this many bytes are queued within an iteration of the event loop."""
WRITE_HIGH_BYTES = 4 << 20
WRITE_LOW_BYTES = 1 << 20
"""`wait_for_room` waits while the transport's write buffer exceeds WRITE_HIGH_BYTES, until it is down to WRITE_LOW_BYTES."""
MAX_UNREAD_REPLY_BYTES = 1 << 20
"""Limit of the responses that are sent while the write buffer is above WRITE_LOW_BYTES. A peer that sends more requests, and
reads none of the responses, loses its connection."""
JOIN_BELOW_BYTES = 4096
"""Queued buffers that are smaller than this on average are joined; larger ones are passed to the kernel as a list (writev)."""
DELIVERY_CHECK_S = 0.02
DELIVERY_CHECKS = 2
"""A closing TLS connection has delivered its bytes when DELIVERY_CHECKS checks in a row, DELIVERY_CHECK_S apart, find none
undelivered; a single check may run while bytes are between the transport's buffers and the kernel."""


class Endpoint(asyncio.Protocol):
    """One connection. `on_frames` gets the frames of each read; `on_lost` is called once, with the error that ended it.

    `measure` tells the length of a frame from its first bytes, see `mqbridge.wire.cutter.Measure`.
    """

    def __init__(self, measure: Measure, on_frames: Callable[[list[bytes]], None], on_lost: Callable[[Exception], None]) -> None:
        self._cutter = FrameCutter(measure)
        self._on_frames = on_frames
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._loop: asyncio.AbstractEventLoop
        """The running loop, stored when the connection is made: `get_running_loop` costs a system call, `getpid`."""
        self._outbox: list[bytes | memoryview] = []
        self._outbox_bytes = 0
        """Bytes that wait for the next flush, and their number."""
        self._flush_scheduled = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._error: Exception | None = None
        """The first error, by which the connection ended or will end."""
        self._closed = asyncio.Event()
        """Set when the connection has ended."""
        self._closing = False
        """True if we have begun to end the connection because we do not need it any more."""
        self.has_received = False
        """True if the peer has sent any bytes."""
        self.link: Link | None = None
        """The object to which the state of this connection is reported; set by `dial`."""
        self.tls: Tls | None = None
        """TLS of the cluster, None without TLS; set by `dial`."""
        self.peer = "?"
        """The peer's address, `host:port`."""
        self.alive = False
        """True from the start of the connection until it is lost or aborted."""
        self.received_at = 0.0
        """Loop time at which bytes last arrived, for keep-alive."""
        self.is_writable = True
        """False from when the transport's write buffer exceeds its high mark until it is down to its low mark."""
        self._unread_reply_bytes = 0
        """Bytes of responses sent by `reply` while not `is_writable`."""
        self._written_bytes = 0
        """Number of bytes that were passed to the transport."""
        self._reading_paused_by: set[str] = set()
        """Why nothing is read from the peer now; empty while it is read."""

    # --- asyncio.Protocol -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport and the peer's address, and set the write limits; the connection is alive unless it was aborted."""
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        self.alive = self._error is None  # it is set if `abort` was called before the connection was made
        self._transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES, low=WRITE_LOW_BYTES)
        host, port, *_ = transport.get_extra_info("peername") or ("?", 0)
        self.peer = f"{host}:{port}"
        self.received_at = self._loop.time()

    def data_received(self, data: bytes) -> None:
        """Split the bytes into frames and pass them on; a protocol violation ends the connection."""
        self.received_at = self._loop.time()
        if not self.has_received:
            self.has_received = True
            if self.link is not None:
                self.link.record_received()
        try:
            self._process(data)
        except ProtocolError as error:
            self.abort(error)

    def _process(self, data: bytes) -> None:
        """Pass complete frames to the handler. Subclasses override this if they need frames without a copy of their own."""
        if frames := self._cutter.feed(data):
            self._on_frames(frames)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report that the connection ended, with the first error."""
        error = self._error or self._connection_lost_error(exc)
        if error.__cause__ is None and error is not exc:
            error.__cause__ = exc
        self._error = error
        self._transport = None
        self.alive = False
        self._outbox.clear()
        self._writable.set()
        self._closed.set()
        if self.link is not None:
            self.link.record_end(error, intended=self._closing, silent=isinstance(error, PeerSilent))
        self._on_lost(error)

    def _connection_lost_error(self, error: Exception | None) -> ConnectionLost:
        """Make the error for a connection that asyncio reports as lost.

        With TLS 1.3 a server rejects our certificate only after the handshake. That is FATAL if the server has sent nothing and
        the cluster has never accepted our credentials.
        """
        if error is None:
            return ConnectionLost(f"the connection to {self.peer} ended")
        if not isinstance(error, ssl.SSLError):
            return ConnectionLost(f"the connection to {self.peer} ended: {error}")
        is_transient = self.has_received or (self.link is not None and self.link.credentials_accepted) or not is_permanent(error)
        why = error if self.tls is None else explain_tls(error, self.tls.settings, self.peer)
        return ConnectionLost(f"the connection to {self.peer} ended: {why}", Failure.RETRY if is_transient else Failure.FATAL)

    def limit_queued_bytes(self, size: int, unsent: int) -> None:
        """Pause writing above `size` queued bytes, until a quarter of that is left.

        The kernel buffers at most `unsent` further bytes that it has not sent yet.
        """
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=size, low=size // 4)
            limit_unsent_bytes(self._transport, unsent)

    @property
    def delivered_bytes(self) -> int:
        """Number of bytes that the peer's kernel has acknowledged; after the connection has ended, the number of written bytes.

        If the platform does not report unacknowledged bytes, those that have left our own buffers count as acknowledged.
        """
        transport = self._transport
        if transport is None:
            return self._written_bytes
        return self._written_bytes - transport.get_write_buffer_size() - undelivered_bytes(transport)

    def pause_writing(self) -> None:
        """Mark the connection as not writable; asyncio calls this when the write buffer exceeds its high mark."""
        self.is_writable = False
        self._writable.clear()

    def resume_writing(self) -> None:
        """Mark the connection as writable; asyncio calls this when the write buffer is down to its low mark."""
        self.is_writable = True
        self._unread_reply_bytes = 0
        self._writable.set()

    def pause_reading(self, reason: str) -> None:
        """Read nothing more from the peer until `resume_reading` with the same reason; there may be several reasons at a time.

        Frames that were received with the last read are still passed on. While a server reads nothing, TCP slows the peer, and
        neither what it sends is noticed nor that it has gone: keep-alive does not count this time, and the caller limits it.
        """
        if not self._reading_paused_by and self._transport is not None:
            self._transport.pause_reading()
        self._reading_paused_by.add(reason)

    def resume_reading(self, reason: str) -> None:
        """End one reason of `pause_reading`; the peer is read again when there is no other."""
        if reason in self._reading_paused_by:
            self._reading_paused_by.remove(reason)
            if not self._reading_paused_by and self._transport is not None and self.alive:
                self._transport.resume_reading()

    @property
    def is_reading_paused(self) -> bool:
        """True while nothing is read from the peer, for whatever reason."""
        return bool(self._reading_paused_by)

    @property
    def local_address(self) -> str:
        """Our own address of the connection, `host:port`, in brackets if it is an IPv6 address; `?` once it has ended."""
        if self._transport is None:
            return "?"
        host, port, *_ = self._transport.get_extra_info("sockname") or ("?", 0)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    # --- sending ----------------------------------------------------------------------------------------------------

    def send(self, *pieces: bytes | memoryview) -> None:
        """Send the bytes of all pieces; they are written at the end of this loop iteration, or earlier.

        Raises ConnectionLost if the connection has ended.
        """
        if not self.alive:
            raise self._closed_error()
        self._outbox.extend(pieces)
        self._outbox_bytes += sum(map(len, pieces))
        if self._outbox_bytes >= FLUSH_BYTES:
            self._flush()
        elif not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def try_send(self, *pieces: bytes | memoryview) -> bool:
        """Send as `send` does; return False if the connection has ended: one of many peers may be gone at any time."""
        if not self.alive:
            return False
        self.send(*pieces)
        return True

    def _closed_error(self) -> ConnectionLost:
        """Make the error for a send after the end: the error by which the connection ended, with its `failure`."""
        if isinstance(self._error, ConnectionLost):
            return ConnectionLost(str(self._error), self._error.failure)
        return ConnectionLost(f"the connection to {self.peer} is closed")

    def _flush(self) -> None:
        """Pass the collected bytes to the transport."""
        self._flush_scheduled = False
        outbox, size = self._outbox, self._outbox_bytes
        if not outbox or self._transport is None:
            return
        self._outbox, self._outbox_bytes = [], 0
        self._written_bytes += size
        if size < len(outbox) * JOIN_BELOW_BYTES:
            self._transport.write(b"".join(outbox))
        else:
            self._transport.writelines(outbox)

    def reply(self, *pieces: bytes) -> None:
        """Send a response to a request of the peer, which decides how many there are; see MAX_UNREAD_REPLY_BYTES.

        Raises ConnectionLost if the connection has ended.
        """
        self.send(*pieces)
        if not self.is_writable:
            self._unread_reply_bytes += sum(map(len, pieces))
            if self._unread_reply_bytes > MAX_UNREAD_REPLY_BYTES:
                self.abort(PeerSilent(f"{self.peer} sends requests and reads no response: {self._unread_reply_bytes} bytes wait"))

    @property
    def queued_bytes(self) -> int:
        """Bytes that are sent and that the kernel has not taken yet."""
        return self._outbox_bytes + (0 if self._transport is None else self._transport.get_write_buffer_size())

    @property
    def has_room(self) -> bool:
        """True if at most WRITE_HIGH_BYTES are queued now."""
        return self.is_writable and self.queued_bytes <= WRITE_HIGH_BYTES

    async def wait_for_room(self) -> None:
        """Wait until at most WRITE_HIGH_BYTES are queued, or the connection has ended, however long: the caller limits the time.

        Any number of tasks may wait and then send: each checks the size again.
        """
        while self.alive and not self.has_room:
            if self.is_writable:  # the transport notices only at the end of the iteration that its buffer is above the high mark
                await asyncio.sleep(0)
            else:
                await self._writable.wait()

    # --- ending -----------------------------------------------------------------------------------------------------

    def abort(self, error: Exception, *, intended: bool = False, discard: bool = False) -> None:
        """End the connection at once with this error; `intended` means that we do not need it any more, so its end is no failure.

        With `discard`, the kernel drops the bytes that it has not delivered yet; otherwise it delivers them in the background.
        """
        self._closing |= intended
        self.alive = False
        if self._error is None:
            self._error = error
        if self._transport is not None:
            if discard:
                discard_when_closed(self._transport)
            self._transport.abort()

    async def close(self, timeout: float = 2.0) -> None:
        """Write the queued bytes and close. Bytes that are still in our own buffers after `timeout` seconds are dropped."""
        self._closing = True
        self._flush()
        if self._transport is None:
            return
        self._transport.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await (self._closed.wait() if self.tls is None else self._wait_delivered())
        if self._transport is not None:
            self._transport.abort()
            await self._closed.wait()

    async def _wait_delivered(self) -> None:
        """Wait until the peer has closed the connection too, or has received all bytes.

        The transport would wait for the peer's TLS close message, which servers written in Java never send.
        """
        clean_checks = 0  # checks in a row that found no undelivered byte
        while not self._closed.is_set() and clean_checks < DELIVERY_CHECKS:
            await asyncio.sleep(DELIVERY_CHECK_S)
            clean_checks = clean_checks + 1 if self.delivered_bytes == self._written_bytes else 0
