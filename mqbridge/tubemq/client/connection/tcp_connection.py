"""One TCP connection: its pending requests, and the rules by which the server is considered lost.

The request timeout limits how long the server is silent, not how long a request takes. A request has timed out in two cases:

    1. The server has been silent for the whole timeout: no byte arrived from it, and it accepted no byte that had to wait in our
       send queue. The connection is then aborted, and bytes that are not delivered are discarded, so that no request arrives
       after its retry was sent.
    2. Another request, sent at least a whole timeout after this one, already has its response. A server handles the requests of
       a connection in order, so the response to this request will not come.

So on a slow link a request may wait for minutes behind other requests, and its response behind other responses. A retry would
only make the queues longer. Bytes are delivered when the peer's kernel has acknowledged them. Bytes that are delivered without
waiting in our queue do not count as a sign of life: the kernel accepts them even if the server process is stopped, and a client
that keeps sending would never notice that the process is stopped.
"""

import asyncio
from collections.abc import Callable

from mqbridge.errors import ClusterError, ConnectionLost, Failure, PeerSilent, RequestTimeout, ServerRefused
from mqbridge.net.endpoint import Endpoint
from mqbridge.tubemq.client.connection.counters import CallCounters
from mqbridge.tubemq.wire.frame import FrameMeter, split_frame
from mqbridge.tubemq.wire.rpc import METHOD_NAMES, decode_response

TIMEOUT_CHECK_S = 0.25
"""Interval between checks for timeouts, while requests are pending; one timer serves all requests of a connection."""
QUEUE_BYTES = 1 << 20
"""High watermark of the send buffer; the low watermark is a quarter of it. A request may be larger than this: it is accepted
while the buffer is not above the mark."""
UNSENT_BYTES = 1 << 20
"""Bytes that the kernel may hold without having sent them; a smaller limit would wake this process more often."""

Response = bytes | Exception
"""The serialized response to a request, or the error in its place."""
OnResponse = Callable[[Response], None]


class TcpConnection(Endpoint):
    """A TCP connection to a server."""

    def __init__(self, address: str, timeout_s: float, counters: CallCounters) -> None:
        super().__init__(FrameMeter().measure, self._on_frames, self._on_end)
        self.local_host = ""
        """The local address, which clients report to servers."""
        self.pending: dict[int, tuple[OnResponse, float, int]] = {}
        """Requests without a response, by serial number in the order of posting: (callback, loop time of posting, method)."""
        self._address, self._timeout_s = address, timeout_s
        self._counters = counters
        self._loop = asyncio.get_running_loop()
        self.used_at = self._loop.time()
        """Event loop time of the last posted request."""
        self._queue_moved_at = 0.0
        """Event loop time of the last check that found that queued bytes were delivered; 0 before the first."""
        self._answered_request_posted_at = 0.0
        """Event loop time of posting of the request whose response arrived last."""
        self._delivered_at_check = 0
        """Total bytes delivered at the last check."""
        self._written_two_checks_ago = self._written_at_check = 0
        """Total bytes written at the check before the last one, and at the last one."""
        self._writable_callbacks: dict[Callable[[], None], None] = {}
        """An ordered set: the callbacks are its keys."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the local address, and limit the send buffer."""
        super().connection_made(transport)
        self.local_host = (transport.get_extra_info("sockname") or ("",))[0]
        self.limit_queued_bytes(QUEUE_BYTES, UNSENT_BYTES)

    def post(self, serial: int, frame: bytes, on_response: OnResponse, method: int) -> None:
        """Send a request; `on_response` is called later with the response or an error. Raises ConnectionLost if closed."""
        self.send(frame)
        self.used_at = now = self._loop.time()
        self.pending[serial] = (on_response, now, method)
        if self._timer is None:
            self._timer = self._loop.call_later(TIMEOUT_CHECK_S, self._check_timeouts)

    # --- backpressure -----------------------------------------------------------------------------------------------

    def when_writable(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when the full send buffer has room again or the connection has ended. Callbacks run in order.

        To be called only while the connection is not `is_writable`.
        """
        self._writable_callbacks[callback] = None

    def resume_writing(self) -> None:
        """Run the callbacks of `when_writable`; called by the transport at the low watermark."""
        super().resume_writing()
        self._run_writable_callbacks()

    def _run_writable_callbacks(self) -> None:
        callbacks, self._writable_callbacks = self._writable_callbacks, {}
        for callback in callbacks:
            callback()

    # --- responses --------------------------------------------------------------------------------------------------

    def _on_frames(self, frames: list[bytes]) -> None:
        for frame in frames:
            serial, payload = split_frame(frame)
            entry = self.pending.pop(serial, None)
            if entry is None:  # the request has timed out already
                continue
            on_response, self._answered_request_posted_at, _ = entry
            self._counters.answers += 1
            try:
                response: Response = decode_response(payload)[1]
            except ServerRefused as error:
                response = error
            except Exception as error:  # malformed bytes: raised again, so that the connection ends
                on_response(error)
                raise
            on_response(response)

    def _on_end(self, error: Exception) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._counters.lost += len(self.pending)
        pending, self.pending = list(self.pending.values()), {}
        failure = error.failure if isinstance(error, ClusterError) else Failure.RETRY
        for on_response, _, method in pending:
            on_response(ConnectionLost(f"{METHOD_NAMES[method]} at {self._address} got no response: {error}", failure))
        self._run_writable_callbacks()

    # --- deadlines --------------------------------------------------------------------------------------------------

    def _check_timeouts(self) -> None:
        """Fail the requests that have timed out, with RequestTimeout; if the server is silent, abort the connection.

        Requests that were posted at or before `limit` have timed out. `pending` is in the order of posting, so the search ends at
        the first request that has not timed out.
        """
        self._timer = None
        limit = self._loop.time() - self._timeout_s
        is_silent = self._last_progress_at() <= limit
        if not is_silent:
            limit = self._answered_request_posted_at - self._timeout_s
        late = []
        for serial, (_, posted_at, _) in self.pending.items():
            if posted_at > limit:
                break
            late.append(serial)
        for serial in late:
            on_response, _, method = self.pending.pop(serial)
            self._counters.late += 1
            on_response(RequestTimeout(f"{self._address} did not answer {METHOD_NAMES[method]} within {self._timeout_s:g} s"))
        if late and is_silent:
            self.abort(PeerSilent(f"{self._address} has been silent for {self._timeout_s:g} s"), discard=True)
        elif self.pending and self._timer is None:  # a callback may have posted a request, which starts the timer
            self._timer = self._loop.call_later(TIMEOUT_CHECK_S, self._check_timeouts)

    def _last_progress_at(self) -> float:
        """Return the loop time of the server's last sign of life: bytes arrived, or bytes left our queue.

        To be called once per check. Bytes have waited in our queue if they were written by the check before the last one, and
        were not delivered at the last check, a whole interval later.
        """
        delivered = self.delivered_bytes
        if delivered != self._delivered_at_check:
            if self._delivered_at_check < self._written_two_checks_ago:
                self._queue_moved_at = self._loop.time()
            self._delivered_at_check = delivered
        self._written_two_checks_ago, self._written_at_check = self._written_at_check, self._written_bytes
        return max(self._queue_moved_at, self.received_at)
