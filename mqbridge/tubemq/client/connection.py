"""One connection of a session: the requests that wait for answers on it, and when the peer counts as lost.

Deadlines count silence, not time. A request is late when
    no byte has come, and none left that had to queue, for as long as an answer may take; then the connection ends, and what of it
        is not delivered is thrown away, so that nothing is sent again that may still arrive
    a request that was sent so much later has its answer: a server takes the requests of a connection one after the other
On a slow link a request may so wait for minutes behind others, or its answer behind theirs; sending it again would only make the
queue longer. What leaves without queuing is no sign of life: the kernel of a process that is stopped takes it, and whoever goes
on asking would keep such a server alive for ever.
"""

import asyncio
from collections.abc import Callable

from mqbridge.errors import ClusterError, ConnectionLost, Failure, PeerSilent, RequestTimeout, ServerRefused
from mqbridge.net.endpoint import Endpoint
from mqbridge.tubemq.client.stats import CallCounters
from mqbridge.tubemq.wire.frame import measure, split_frame
from mqbridge.tubemq.wire.rpc import METHOD_NAMES, decode_response

SWEEP_S = 0.25
"""How often deadlines are looked at, by one timer per connection."""
QUEUE_BYTES = 1 << 20
"""Beyond it nothing more is to be posted until a quarter of it is left; one request that is larger goes all the same."""
UNSENT_BYTES = 1 << 20
"""What the kernel may take beyond what is on the wire; with less, it wakes us more often."""

Answer = bytes | Exception
OnAnswer = Callable[[Answer], None]


class Connection(Endpoint):
    """`waiting` is what becomes of an answer, when its request was posted and its method, by serial number."""

    def __init__(self, address: str, timeout_s: float, counters: CallCounters, on_lost: Callable[["Connection"], None]) -> None:
        super().__init__(measure, self._on_frames, self._on_end)
        self.local_host = ""
        """Our own address, which clients report."""
        self.waiting: dict[int, tuple[OnAnswer, float, int]] = {}
        self._address, self._timeout_s, self._counters, self._lost = address, timeout_s, counters, on_lost
        self._loop = asyncio.get_running_loop()
        self.used_at = self._loop.time()
        """When a request was posted last."""
        self._moved_at = 0.0
        self._answered = 0.0
        """When the request was posted that was answered last."""
        self._delivered = 0
        self._written_before = self._written_last = 0
        """What had been written at the look before the last, and at the last."""
        self._for_room: dict[Callable[[], None], None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note our own end and bound what is queued."""
        super().connection_made(transport)
        self.local_host = (transport.get_extra_info("sockname") or ("",))[0]
        self.limit_queue(QUEUE_BYTES, UNSENT_BYTES)

    def post(self, serial: int, frame: bytes, on_answer: OnAnswer, method: int) -> None:
        """Send a request. Raises ConnectionLost when the connection is over."""
        self.send(frame)
        self.used_at = now = self._loop.time()
        self.waiting[serial] = (on_answer, now, method)
        if self._timer is None:
            self._timer = self._loop.call_later(SWEEP_S, self._sweep)

    # --- room -------------------------------------------------------------------------------------------------------

    def when_writable(self, callback: Callable[[], None]) -> None:
        """Call it once, when there is room in the queue or the connection is over; those who wait come in turn."""
        self._for_room[callback] = None

    def resume_writing(self) -> None:
        """The queue is short again."""
        super().resume_writing()
        self._tell_of_room()

    def _tell_of_room(self) -> None:
        callbacks, self._for_room = self._for_room, {}
        for callback in callbacks:
            callback()

    # --- answers ----------------------------------------------------------------------------------------------------

    def _on_frames(self, frames: list[bytes]) -> None:
        for frame in frames:
            serial, payload = split_frame(frame)
            entry = self.waiting.pop(serial, None)
            if entry is None:  # it came after its deadline
                continue
            on_answer, self._answered, _ = entry
            self._counters.answers += 1
            try:
                answer: Answer = decode_response(payload)[1]
            except ServerRefused as error:
                answer = error
            except Exception as error:
                on_answer(error)
                raise
            on_answer(answer)

    def _on_end(self, error: Exception) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._lost(self)
        self._counters.lost += len(self.waiting)
        waiting, self.waiting = list(self.waiting.values()), {}
        failure = error.failure if isinstance(error, ClusterError) else Failure.RETRY
        for on_answer, _, method in waiting:
            on_answer(ConnectionLost(f"{METHOD_NAMES[method]} at {self._address} has no answer: {error}", failure))
        self._tell_of_room()

    # --- deadlines --------------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        """Fail what is late; requests lie in the order in which they were posted."""
        self._timer = None
        limit = self._loop.time() - self._timeout_s
        is_silent = self._last_moved() <= limit
        if not is_silent:
            limit = self._answered - self._timeout_s
        late = []
        for serial, (_, posted_at, _) in self.waiting.items():
            if posted_at > limit:
                break
            late.append(serial)
        for serial in late:
            on_answer, _, method = self.waiting.pop(serial)
            self._counters.late += 1
            on_answer(RequestTimeout(f"{self._address} did not answer {METHOD_NAMES[method]} within {self._timeout_s:g} s"))
        if late and is_silent:
            self.abort(PeerSilent(f"{self._address} has been silent for {self._timeout_s:g} s"), discard=True)
        elif self.waiting and self._timer is None:
            self._timer = self._loop.call_later(SWEEP_S, self._sweep)

    def _last_moved(self) -> float:
        """When bytes were last seen to come, or to leave after they were still there a look after they were written."""
        delivered = self.delivered
        if delivered != self._delivered:
            if self._delivered < self._written_before:
                self._moved_at = self._loop.time()
            self._delivered = delivered
        self._written_before, self._written_last = self._written_last, self._written
        return max(self._moved_at, self.received_at)
