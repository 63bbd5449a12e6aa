"""A consumer of a client: its permits, and the units that it has.

OPENING   its subscription is being opened; it is not counted yet
OPEN      it gets units as long as it has permits
CLOSED    it gets nothing any more, and what it has is delivered to others

opened            OPENING -> OPEN
close             OPENING, OPEN -> CLOSED
(connection lost) OPENING, OPEN -> CLOSED
"""

import logging
import time
from collections.abc import Iterable
from enum import Enum
from typing import Protocol

from mqbridge.listener.delivered import Delivered
from mqbridge.listener.delivered import State as UnitState
from mqbridge.pulsar.server.entries import Chunk, permits_of
from mqbridge.pulsar.server.message_frames import FrameEncoder
from mqbridge.pulsar.server.message_ids import MessageIds

log = logging.getLogger(__name__)

MAX_CHUNKED = 100
"""Maximum number of incomplete chunked messages that are remembered; by default, clients keep 10."""
MAX_PERMITS = (1 << 31) - 1
"""Maximum number of permits: more do not count."""


class ServedConsumerState(Enum):
    """The state of a consumer, see the module."""

    OPENING = "opening"
    OPEN = "open"
    CLOSED = "closed"


class ClientLink(Protocol):
    """What consumers and producers need of their connection."""

    peer: str
    """The client's address."""
    client_version: str
    """What the client says about itself, such as `Pulsar-Java-v4.2.4`."""
    pending_sends: int
    """Number of sends that are not answered; producers count them."""

    @property
    def is_writable(self) -> bool:
        """False while the client does not read what was sent, or if the connection has ended."""

    def send(self, *pieces: bytes) -> None:
        """Send frames; does nothing if the connection has ended."""

    def on_answered(self) -> None:
        """Take note that fewer sends are waiting for their answers."""

    async def is_alive(self) -> bool:
        """Find out if the client still answers; if it does not, the connection is closed."""


class ServedConsumer:
    """See the module. A subscription gives it units."""

    def __init__(
        self,
        link: ClientLink,
        consumer_id: int,
        name: str,
        message_ids: MessageIds,
        *,
        partition: int,
        priority: int,
        epoch: int | None,
        ranges: tuple[tuple[int, int], ...] = (),
    ) -> None:
        """`partition` is -1 if the topic is not partitioned. `ranges` are the sticky hash ranges, both ends included."""
        self.state = ServedConsumerState.OPENING
        self.link, self.id, self.name, self.priority, self.epoch = link, consumer_id, name, priority, epoch
        self.ranges = ranges
        self.permits = 0
        self.out: dict[int, Delivered] = {}
        """The units that it has and has not acknowledged, by number, in the order in which they were sent."""
        self.chunked: dict[str, tuple[int, list[int]]] = {}
        """The chunked messages of which it has got a part, by uuid: their size, and the numbers of the parts that it has got. It
        cannot acknowledge them before the rest."""
        self.largest_chunked: tuple[int, list[int]] = 0, []
        """The same of the largest chunked message that it has got as a whole."""
        self.is_ready = False
        """True once its client asks for messages, so that it surely handles what is sent to this consumer."""
        self.opened_at = time.time()
        self.delivered_messages = self.delivered_bytes = self.redelivered_messages = 0
        self._encoder = FrameEncoder(consumer_id, partition, message_ids)

    @property
    def can_take(self) -> bool:
        """True if it may get a unit now."""
        return self.permits > 0 and self.state is ServedConsumerState.OPEN and self.link.is_writable

    def grant(self, permits: int) -> None:
        """Add permits."""
        self.permits = min(MAX_PERMITS, self.permits + permits)

    def deliver(self, units: Iterable[Delivered], *, counts_deliveries: bool) -> list[tuple[Delivered, str]]:
        """Send units, in one write; `counts_deliveries` tells the client how often each was delivered before.

        Returns those that cannot become entries, with the reasons: they are not sent, and the consumer does not have them.
        """
        units = list(units)
        if not units:
            return []
        frames = self._encoder.encode(units, self.epoch, counts_deliveries=counts_deliveries)
        if frames.failed:
            failed = {id(each) for each, _ in frames.failed}
            units = [each for each in units if id(each) not in failed]
        for number, chunk in frames.chunks:
            self._note_chunk(number, chunk)
        out, sent, redelivered = self.out, 0, 0
        for each in units:
            messages = permits_of(each)
            sent += messages
            if each.deliveries:
                redelivered += messages
            each.taker = self
            out[each.number] = each
        self.permits -= sent
        self.delivered_messages += sent
        self.redelivered_messages += redelivered
        self.delivered_bytes += frames.entry_bytes
        if units:
            self.link.send(*frames.pieces)
        return frames.failed

    def _note_chunk(self, number: int, chunk: Chunk) -> None:
        if chunk.uuid in self.chunked:
            self.chunked[chunk.uuid][1].append(number)
        elif len(self.chunked) < MAX_CHUNKED and not chunk.is_last:
            self.chunked[chunk.uuid] = chunk.total_bytes, [number]
        if chunk.is_last:
            complete = self.chunked.pop(chunk.uuid, (0, []))
            if complete[0] > self.largest_chunked[0] or not self._has(self.largest_chunked[1]):
                self.largest_chunked = complete

    def _has(self, numbers: Iterable[int]) -> bool:
        """Return True if it has one of these units, and has not acknowledged it."""
        return any(number in self.out and self.out[number].state is not UnitState.DONE for number in numbers)

    def chunked_bytes(self) -> int:
        """Return the bytes of chunked messages that may be held beyond the limit.

        These are the messages of which it has parts, which it cannot acknowledge yet; and the largest one that it has and has not
        acknowledged, which would stop everything behind it if it is larger than the limit.
        """
        self.chunked = {uuid: (size, numbers) for uuid, (size, numbers) in self.chunked.items() if self._has(numbers)}
        if not self._has(self.largest_chunked[1]):
            self.largest_chunked = 0, []
        return self.largest_chunked[0] + sum(size for size, _ in self.chunked.values())

    def forget_done(self) -> None:
        """Forget the units at the beginning that are acknowledged."""
        done: list[int] = []
        for number, each in self.out.items():
            if each.state is not UnitState.DONE:
                break
            done.append(number)
        for number in done:
            del self.out[number]

    def take_back(self) -> list[Delivered]:
        """Return the units that it has, and forget them."""
        units = [each for each in self.out.values() if each.state is not UnitState.DONE]
        self.out.clear()
        self.chunked.clear()
        self.largest_chunked = 0, []
        for each in units:
            each.taker = None
        return units

    @property
    def unacknowledged_messages(self) -> int:
        """Number of messages that it has and has not acknowledged."""
        return sum(each.remaining.bit_count() for each in self.out.values())
