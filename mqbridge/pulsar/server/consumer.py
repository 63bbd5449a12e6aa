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
from typing import TYPE_CHECKING, Protocol

from mqbridge.listener.delivered import Delivered
from mqbridge.listener.delivered import State as UnitState
from mqbridge.pulsar.server.entries import Chunk, chunk_of, entry_of, permits_of
from mqbridge.pulsar.server.message_ids import MessageIds
from mqbridge.pulsar.wire import ids, server_commands

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from mqbridge.pulsar.server.producer import ServedProducer

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

    def drop_producer(self, producer: "ServedProducer") -> None:
        """Close a producer, whose client opens it again."""

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
        self.chunked: dict[str, int] = {}
        """Sizes of the chunked messages of which it has got a part, by their uuid: it cannot acknowledge them before the rest."""
        self.opened_at = time.time()
        self.delivered_messages = self.delivered_bytes = self.redelivered_messages = 0
        self._ids, self._encoder = message_ids, server_commands.MessageEncoder(consumer_id, partition)

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
        pieces: list[bytes] = []
        failed: list[tuple[Delivered, str]] = []
        for each in units:
            try:
                entry = entry_of(each)
            except Exception as error:  # of whatever kind: one message must not keep the others
                log.exception("message %d cannot become an entry", each.number)
                failed.append((each, f"it cannot become an entry: {error!r}"))
                continue
            full = ids.full_mask(each.count)
            ack_set = ids.to_words(each.remaining) if each.remaining != full else ()
            count = each.deliveries if counts_deliveries else 0
            entry_id = self._ids.entry_id(each.number)
            pieces.append(self._encoder.encode(entry_id, len(entry), count, ack_set, self.epoch))
            pieces.append(entry)
            if (chunk := chunk_of(entry)) is not None:
                self._note_chunk(chunk)
            messages = permits_of(each)
            self.permits -= messages
            self.delivered_messages += messages
            self.delivered_bytes += len(entry)
            if each.deliveries:
                self.redelivered_messages += messages
            each.taker = self
            self.out[each.number] = each
        if pieces:
            self.link.send(*pieces)
        return failed

    def _note_chunk(self, chunk: Chunk) -> None:
        if chunk.is_last:
            self.chunked.pop(chunk.uuid, None)
        elif len(self.chunked) < MAX_CHUNKED:
            self.chunked[chunk.uuid] = chunk.total_bytes

    def forget_done(self) -> None:
        """Forget the units at the beginning that are acknowledged."""
        while self.out and (oldest := next(iter(self.out.values()))).state is UnitState.DONE:
            del self.out[oldest.number]

    def take_back(self) -> list[Delivered]:
        """Return the units that it has, and forget them."""
        units = [each for each in self.out.values() if each.state is not UnitState.DONE]
        self.out.clear()
        self.chunked.clear()
        for each in units:
            each.taker = None
        return units

    @property
    def unacknowledged_messages(self) -> int:
        """Number of messages that it has and has not acknowledged."""
        return sum(each.remaining.bit_count() for each in self.out.values())
