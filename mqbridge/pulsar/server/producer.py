"""A producer of a client: what it sends is stored by its publisher, and answered in order.

OPENING   it is being opened, or waits until others have gone (access mode WaitForExclusive)
OPEN      SEND is accepted
CLOSED    by the client, by us, or because the connection was lost

opened             OPENING -> OPEN
close, fail        OPENING, OPEN -> CLOSED
"""

import logging
import time
from collections.abc import Callable
from enum import Enum
from itertools import repeat

from mqbridge.errors import Failure, RemoteProtocolError
from mqbridge.listener.publisher import Publisher, Stored
from mqbridge.message import Partition, Unit
from mqbridge.pulsar.mapping.unit_format import EntryFormat
from mqbridge.pulsar.server.consumer import ClientLink
from mqbridge.pulsar.server.entries import batch_of, make_batch, receive_entry
from mqbridge.pulsar.server.message_ids import NO_ID, MessageIds
from mqbridge.pulsar.server.send_runs import RUN_BYTES, SendRun, encode_receipts
from mqbridge.pulsar.server.support import MARKERS
from mqbridge.pulsar.wire import codes, server_commands
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import CommandSend

log = logging.getLogger(__name__)

GATHERED_BYTES = RUN_BYTES
"""Maximum bytes of entries that are stored with one publication: they came together, and none of them is large."""
CPP_CLIENTS = ("Pulsar-CPP", *"0123456789")
"""How the versions of clients begin that use the library in C++: earlier ones send only its number."""


class ServedProducerState(Enum):
    """The state of a producer, see the module."""

    OPENING = "opening"
    OPEN = "open"
    CLOSED = "closed"


class ServedProducer:
    """See the module."""

    def __init__(
        self, link: ClientLink, producer_id: int, name: str, message_ids: MessageIds, *, epoch: int, is_named: bool
    ) -> None:
        """`is_named` is True if the user has given the name."""
        self.state = ServedProducerState.OPENING
        self.link, self.id, self.name, self.epoch, self.is_named = link, producer_id, name, epoch, is_named
        self.access_mode = 0
        self.topic_epoch: int | None = None
        self.schema_version = b""
        self.pending = 0
        """Number of sends that are not answered."""
        self.is_draining = False
        """True if it accepts no more sends, because the listener stops; the client sends them again elsewhere."""
        self.opened_at = time.time()
        self.received_messages = self.received_bytes = 0
        self.publisher: Publisher | None = None
        self.drop: Callable[[], None] = lambda: None
        """Closes the producer, whose client opens it again; its connection sets this."""
        self._index = 0
        self._units: list[Unit] = []
        self._sequences: list[tuple[int, int]] = []
        """Entries that wait for `flush`, and the sequence ids of their SEND."""
        self._gathered_bytes = 0
        self._may_gather = False
        self._source: Partition | None = None
        self._ids, self._receipts = message_ids, server_commands.ReceiptEncoder(producer_id)

    def opened(self, publisher: Publisher, index: int, source: Partition | None) -> None:
        """Accept sends. `index` is the outbound's index of the partition; with a `source`, messages are numbered."""
        self.publisher, self._index, self._source = publisher, index, source
        self._may_gather = source is None and publisher.keeps(EntryFormat.name)
        self.state = ServedProducerState.OPEN

    def send(self, command: CommandSend, data: bytes, entry_offset: int, max_gathered: int = 0) -> None:
        """Store an entry; it is answered when it is stored. Does nothing if the producer is not open.

        One of at most `max_gathered` bytes, which the backing is known to accept, may wait for the next call of `flush`, and is
        stored together with others: that costs much less than to store each by itself.
        """
        if self.state is not ServedProducerState.OPEN or self.publisher is None or self.is_draining:
            return
        sequence, highest = command.sequence_id, command.highest_sequence_id
        try:
            received = receive_entry(data, entry_offset)
        except RemoteProtocolError as error:
            self.link.send(server_commands.send_error(self.id, sequence, codes.CHECKSUM, str(error)))
            return
        if command.marker or received.metadata.HasField("marker_type"):
            self.link.send(server_commands.send_error(self.id, sequence, codes.NOT_ALLOWED, MARKERS))
            return
        self.received_messages += received.count
        self.received_bytes += len(received.unit.data)
        self.pending += 1
        self.link.pending_sends += 1
        size = len(received.unit.data)
        if self._may_gather and size <= max_gathered and not received.is_opaque:
            if self._gathered_bytes + size > GATHERED_BYTES:
                self.flush()
            self._units.append(received.unit)
            self._sequences.append((sequence, highest))
            self._gathered_bytes += size
            return
        self.flush()
        source = self._source
        metadata = received.metadata
        if source is not None and metadata.num_chunks_from_msg > 1 and metadata.chunk_id != metadata.num_chunks_from_msg - 1:
            source = None  # all chunks of a message have one sequence id, and only the last one is compared, as brokers do
        last = highest if highest > sequence else sequence + received.unit.message_count - 1
        self.publisher.publish(
            self._index,
            make_batch(received, source, last),
            lambda stored: self._on_stored(sequence, highest, stored),
        )

    @property
    def gathers(self) -> bool:
        """True if it accepts `gather`: it is open, and may store several entries with one publication."""
        return self.state is ServedProducerState.OPEN and self._may_gather and not self.is_draining

    def gather(self, run: SendRun) -> None:
        """Let the entries of a run wait for `flush`, as `send` does with each; only while `gathers`."""
        count = len(run.units)
        self.received_messages += run.messages
        self.received_bytes += run.entry_bytes
        self.pending += count
        self.link.pending_sends += count
        if self._gathered_bytes + run.entry_bytes > GATHERED_BYTES:
            self.flush()
        self._units += map(tuple.__new__, repeat(Unit), run.units)  # `Unit(*values)` takes twice the time
        self._sequences += run.sequences
        self._gathered_bytes += run.entry_bytes

    def flush(self) -> None:
        """Store the entries that wait."""
        units, sequences = self._units, self._sequences
        self._units, self._sequences, self._gathered_bytes = [], [], 0
        if units and self.publisher is not None:
            counts = [unit.message_count for unit in units]
            self.publisher.publish(self._index, batch_of(units), lambda stored: self._on_all_stored(counts, sequences, stored))

    def _on_all_stored(self, counts: list[int], sequences: list[tuple[int, int]], stored: Stored) -> None:
        """Answer the sends of one publication, each with its own position; `counts` are the numbers of their messages."""
        self.pending -= len(counts)
        self.link.pending_sends -= len(counts)
        self.link.on_answered()
        if stored.problem is not None or self.state is ServedProducerState.CLOSED:
            for sequence, highest in sequences:
                self._on_problem(stored, sequence, highest)
            return
        entries = self._ids.ids_of(stored.positions, counts)
        self.link.send(encode_receipts(self.id, self._receipts, sequences, entries))

    def _on_stored(self, sequence: int, highest: int, stored: Stored) -> None:
        """Answer a send."""
        self.pending -= 1
        self.link.pending_sends -= 1
        self.link.on_answered()
        if stored.problem is not None or self.state is ServedProducerState.CLOSED:
            self._on_problem(stored, sequence, highest)
            return
        first = stored.first
        entry = self._ids.id_of(first) if first and not stored.is_duplicate else NO_ID
        self.link.send(self._receipts.encode(sequence, highest, entry))

    def _on_problem(self, stored: Stored, sequence: int, highest: int) -> None:
        """Tell the client that a batch with these sequence ids was not stored; do nothing if the producer is closed."""
        if stored.problem is None or self.state is not ServedProducerState.OPEN:
            return
        if stored.problem.failure is Failure.REFUSED:
            # It is never stored, not even as a dead letter, so the client has to fail it to its application. The Java client does
            # with NOT_ALLOWED and the last sequence id; those in C++, Python and Node only with CHECKSUM and the first one: any
            # other code makes them connect again and send it again, until their own time-out.
            problem = f"the message is never stored: {stored.problem}"
            log.warning("producer %s of %s: %s", self.name, self.link.peer, problem)
            last, code = max(sequence, highest), codes.NOT_ALLOWED
            if self.link.client_version.startswith(CPP_CLIENTS):
                last, code = sequence, codes.CHECKSUM
            self.link.send(server_commands.send_error(self.id, last, code, problem))
            return
        # Most clients close their whole connection when they get SEND_ERROR. With CLOSE_PRODUCER they open the producer again and
        # send again everything that has no receipt, in order.
        log.warning("producer %s of %s: a batch was not stored: %s", self.name, self.link.peer, stored.problem)
        self.drop()

    def send_away(self) -> None:
        """Close: the client opens the producer again, and sends again what has no receipt."""
        if self.state is not ServedProducerState.CLOSED:
            self.state = ServedProducerState.CLOSED
            self.link.send(server_commands.close_producer(self.id))
