"""One TCP connection: its pending requests, and the rules by which the server is considered lost.

The request timeout limits silence, not elapsed time. A request has timed out in one of two cases:
    For the whole timeout, no byte arrived, and no byte was delivered that had to queue here first. Then the connection is aborted
        and undelivered bytes are discarded, so that no request arrives after its retry was sent.
    A request sent a whole timeout later already has its response: a server handles the requests of a connection in order.
So on a slow link a request may wait for minutes behind others, and so may its response; a retry would only make the queue longer.
Bytes that are delivered without queuing prove nothing: the peer's kernel accepts them even if the server process is stopped, and
a client that keeps sending would never notice that.
"""

import asyncio
from collections.abc import Callable

from mqbridge.errors import ClusterError, ConnectionLost, Failure, PeerSilent, RequestTimeout, ServerRefused
from mqbridge.net.endpoint import Endpoint
from mqbridge.tubemq.client.counters import CallCounters
from mqbridge.tubemq.wire.frame import measure, split_frame
from mqbridge.tubemq.wire.rpc import METHOD_NAMES, decode_response

SWEEP_S = 0.25
"""Interval between checks for timeouts; each connection has one timer."""
QUEUE_BYTES = 1 << 20
"""High watermark of the send buffer; the low watermark is a quarter of it. A single larger request is sent nevertheless."""
UNSENT_BYTES = 1 << 20
"""Bytes that the kernel may buffer in addition to those on the wire; a smaller buffer would wake this process more often."""

Response = bytes | Exception
OnResponse = Callable[[Response], None]


class TcpConnection(Endpoint):
    """A TCP connection; `waiting` has its pending requests by serial number: (callback, time of posting, method)."""

    def __init__(
        self, address: str, timeout_s: float, counters: CallCounters, on_lost: Callable[["TcpConnection"], None]
    ) -> None:
        super().__init__(measure, self._on_frames, self._on_end)
        self.local_host = ""
        """The local address, which clients report to servers."""
        self.waiting: dict[int, tuple[OnResponse, float, int]] = {}
        self._address, self._timeout_s, self._counters, self._lost = address, timeout_s, counters, on_lost
        self._loop = asyncio.get_running_loop()
        self.used_at = self._loop.time()
        """Time of the last posted request."""
        self._moved_at = 0.0
        self._answered_posted_at = 0.0
        """Time of posting of the request whose response arrived last."""
        self._delivered = 0
        self._written_before = self._written_last = 0
        """Total bytes written at the check before the last one, and at the last one."""
        self._writable_callbacks: dict[Callable[[], None], None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the local address, and limit the send buffer."""
        super().connection_made(transport)
        self.local_host = (transport.get_extra_info("sockname") or ("",))[0]
        self.limit_queue(QUEUE_BYTES, UNSENT_BYTES)

    def post(self, serial: int, frame: bytes, on_response: OnResponse, method: int) -> None:
        """Send a request. Raises ConnectionLost if the connection is closed."""
        self.send(frame)
        self.used_at = now = self._loop.time()
        self.waiting[serial] = (on_response, now, method)
        if self._timer is None:
            self._timer = self._loop.call_later(SWEEP_S, self._sweep)

    # --- backpressure -----------------------------------------------------------------------------------------------

    def when_writable(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when the buffer has room or the connection is closed; callbacks run in order of registration."""
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
            entry = self.waiting.pop(serial, None)
            if entry is None:  # the request has timed out already
                continue
            on_response, self._answered_posted_at, _ = entry
            self._counters.answers += 1
            try:
                response: Response = decode_response(payload)[1]
            except ServerRefused as error:
                response = error
            except Exception as error:
                on_response(error)
                raise
            on_response(response)

    def _on_end(self, error: Exception) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._lost(self)
        self._counters.lost += len(self.waiting)
        waiting, self.waiting = list(self.waiting.values()), {}
        failure = error.failure if isinstance(error, ClusterError) else Failure.RETRY
        for on_response, _, method in waiting:
            on_response(ConnectionLost(f"{METHOD_NAMES[method]} at {self._address} got no response: {error}", failure))
        self._run_writable_callbacks()

    # --- deadlines --------------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        """Fail requests that have timed out; `waiting` is in the order of posting."""
        self._timer = None
        limit = self._loop.time() - self._timeout_s
        is_silent = self._last_moved() <= limit
        if not is_silent:
            limit = self._answered_posted_at - self._timeout_s
        late = []
        for serial, (_, posted_at, _) in self.waiting.items():
            if posted_at > limit:
                break
            late.append(serial)
        for serial in late:
            on_response, _, method = self.waiting.pop(serial)
            self._counters.late += 1
            on_response(RequestTimeout(f"{self._address} did not answer {METHOD_NAMES[method]} within {self._timeout_s:g} s"))
        if late and is_silent:
            self.abort(PeerSilent(f"{self._address} has been silent for {self._timeout_s:g} s"), discard=True)
        elif self.waiting and self._timer is None:
            self._timer = self._loop.call_later(SWEEP_S, self._sweep)

    def _last_moved(self) -> float:
        """Return the time when bytes last arrived, or were delivered after they had queued here.

        Bytes have queued if they were still undelivered at the check after they were written.
        """
        delivered = self.delivered
        if delivered != self._delivered:
            if self._delivered < self._written_before:
                self._moved_at = self._loop.time()
            self._delivered = delivered
        self._written_before, self._written_last = self._written_last, self._written
        return max(self._moved_at, self.received_at)
