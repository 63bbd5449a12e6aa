"""Messages to whichever partition takes them: the partitions in turn, without those of Brokers that are in trouble.

There is no order, so a message that fails goes to another Broker at once. A message whose answer was lost may then be stored
twice, on different partitions. What waits is bounded: by requests and by bytes.
"""

import asyncio
import random

from mqbridge.errors import ClusterError, ConnectionLost, Failure, MqbridgeError
from mqbridge.net.backoff import Backoff
from mqbridge.tubemq.client.line_connection import FIRST_RETRY_S, MOST_RETRY_S
from mqbridge.tubemq.client.producer import Producer, Sender, settle
from mqbridge.tubemq.client.send_result import Done, SendResult
from mqbridge.tubemq.client.shielding import Shield
from mqbridge.tubemq.wire.text import PartitionRef

MAX_UNDECIDED = 500_000
"""Where the Java SDK refuses more, too."""
MAX_UNDECIDED_BYTES = 256 << 20
MAX_PER_PARTITION = 50_000
"""A partition that is this far behind is passed over."""


class _Attempt:
    """A message: which Broker has it now, and until when it may be tried."""

    __slots__ = ("backoff", "data", "done", "flag", "give_up_at", "msg_time", "msg_type", "ref", "spread")

    def __init__(
        self, spread: "Spread", data: bytes, flag: int, types: tuple[str | None, str | None], give_up_at: float | None, done: Done
    ) -> None:
        self.spread, self.data, self.flag, self.done, self.give_up_at = spread, data, flag, done, give_up_at
        self.msg_type, self.msg_time = types
        self.ref: PartitionRef | None = None
        self.backoff: Backoff | None = None

    def decided(self, result: SendResult | MqbridgeError) -> None:
        """The sender's callback."""
        self.spread.decided(self, result)


class Spread:
    """A way into one topic; made by `open_spread`. `shield` says which Brokers are avoided."""

    def __init__(self, sender: Sender, *, max_elapsed_s: float | None = None) -> None:
        self.sender = sender
        self.shield = Shield()
        self.undecided = self.undecided_bytes = 0
        self.closing = False
        self._max_elapsed_s = max_elapsed_s
        self._turn = random.randrange(1 << 16)  # noqa: S311 - so that producers do not all begin with the first partition
        self._behind: dict[str, int] = {}
        self._loop = asyncio.get_running_loop()
        self._emptied = asyncio.Event()
        self._emptied.set()

    def submit(self, data: bytes, flag: int, msg_type: str | None, msg_time: str | None, *, done: Done) -> None:
        """Send without waiting; `done` is called when it is decided. Raises ClusterError (RETRY) when too much is undecided."""
        if self.undecided >= MAX_UNDECIDED or self.undecided_bytes >= MAX_UNDECIDED_BYTES:
            raise ClusterError(
                f"{self.undecided} messages of {self.undecided_bytes} bytes for {self.sender.topic} wait for answers: "
                "send on when some have come",
                Failure.RETRY,
            )
        limit = self._max_elapsed_s
        give_up_at = None if limit is None else self._loop.time() + limit
        self.undecided += 1
        self.undecided_bytes += len(data)
        self._emptied.clear()
        self._try(_Attempt(self, data, flag, (msg_type, msg_time), give_up_at, done))

    def send(
        self, data: bytes, flag: int = 0, msg_type: str | None = None, msg_time: str | None = None
    ) -> "asyncio.Future[SendResult]":
        """Like `submit`, with a future."""
        future: asyncio.Future[SendResult] = self._loop.create_future()
        self.submit(data, flag, msg_type, msg_time, done=lambda result: settle(future, result))
        return future

    async def flush(self) -> None:
        """Wait until everything is decided."""
        await self._emptied.wait()

    async def close(self, timeout: float) -> None:
        """Wait for what is undecided, at most `timeout` seconds; the rest fails."""
        try:
            async with asyncio.timeout(timeout):
                await self.flush()
        except TimeoutError:
            self.closing = True
        await self.sender.close(0)

    def decided(self, attempt: _Attempt, result: SendResult | MqbridgeError) -> None:
        """An attempt is over: that was it, or another Broker."""
        ref = attempt.ref
        assert ref is not None  # noqa: S101 - it was sent somewhere
        self._behind[ref.name] -= 1
        if isinstance(result, SendResult):
            self.shield.stored(ref.broker)
            self._finish(attempt, result)
            return
        now = self._loop.time()
        self.shield.failed(ref.broker, result, now)
        helpless = isinstance(result, ClusterError) and result.failure in (Failure.REFUSED, Failure.FATAL)
        if helpless or self.closing or (attempt.give_up_at is not None and now >= attempt.give_up_at):
            self._finish(attempt, result)
            return
        attempt.backoff = attempt.backoff or Backoff(FIRST_RETRY_S, MOST_RETRY_S)
        self._loop.call_later(attempt.backoff.delay(), self._try, attempt)

    def _finish(self, attempt: _Attempt, result: SendResult | MqbridgeError) -> None:
        self.undecided -= 1
        self.undecided_bytes -= len(attempt.data)
        attempt.done(result)
        if not self.undecided:
            self._emptied.set()

    def _try(self, attempt: _Attempt) -> None:
        if self.closing:
            self._finish(attempt, ConnectionLost(f"the way into {self.sender.topic} was closed before this message was stored"))
            return
        ref = attempt.ref = self._choose()
        self._behind[ref.name] = self._behind.get(ref.name, 0) + 1
        self.shield.sent(ref.broker, self._loop.time())
        self.sender.submit(ref.name, attempt.data, attempt.flag, attempt.msg_type, attempt.msg_time, done=attempt.decided)

    def _choose(self) -> PartitionRef:
        """The next partition in turn; one that is avoided only when all are."""
        refs = self.sender.route.listed
        now, behind, avoids = self._loop.time(), self._behind, self.shield.avoids
        self._turn += 1
        for place in range(self._turn, self._turn + len(refs)):
            ref = refs[place % len(refs)]
            if behind.get(ref.name, 0) < MAX_PER_PARTITION and not avoids(ref.broker, now):
                self._turn = place
                return ref
        return refs[self._turn % len(refs)]


async def open_spread(producer: Producer, topic: str, *, max_elapsed_s: float | None = None) -> Spread:
    """A way into any partition of a topic. Raises ServerRefused (FATAL), which names it, when the Master knows no such topic.

    A line tries once; trying again, elsewhere, is the spread's.
    """
    return Spread(await producer.sender(topic, ordered=False, max_elapsed_s=0.0), max_elapsed_s=max_elapsed_s)
