"""Producer into one topic of a log, an SQLite file with topics."""

import asyncio
from collections.abc import Collection, Mapping, Sequence

from crc32c import crc32c

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.outbound import OutboundSpec, SendFailure
from mqbridge.adapter.receipt import Receipt
from mqbridge.adapter.tools.deadlines import seconds_until
from mqbridge.adapter.tools.receipts import closed_outbound_future
from mqbridge.adapter.tools.stored_positions import last_stored
from mqbridge.errors import ClusterError, LocalProtocolError
from mqbridge.log.adapter.encoding import ShareEncoder
from mqbridge.log.adapter.unit_formats import STORED_FORMATS
from mqbridge.log.store.append import Append, Appender
from mqbridge.log.store.database import Store
from mqbridge.log.store.senders import highest_sequences
from mqbridge.log.store.topics import PartitionRow, check_not_deleted
from mqbridge.mapping.sequences import position_of_sequence
from mqbridge.message import Partition, Position, Share
from mqbridge.net.failing_sends import longest_failing


class LogOutbound:
    """Encodes each send at once; the appender stores it with its next transaction.

    With `OutboundSpec.stamp_origin`, the stored origin is the message's source partition and position; without it, the origin
    with which the message was read. With `OutboundSpec.sender`, messages are stored once, see `mqbridge.log.store.senders`; those
    whose positions are too large for it are found by their origins, as without a sender.
    """

    formats = STORED_FORMATS
    """Units of all formats that installed adapters know are stored as they are, each as one row."""

    def __init__(
        self, cluster: Cluster, store: Store, appender: Appender, spec: OutboundSpec, partitions: Sequence[PartitionRow]
    ) -> None:
        self._cluster, self._store = cluster, store
        self._appender, self._spec = appender, spec
        self._partition_ids = [row.id for row in partitions]
        """`PartitionRow.id` of each partition, by partition index."""
        self._in_flight: set[asyncio.Future[Receipt]] = set()
        self._encoder = ShareEncoder(store.config, spec)
        self._is_ordered = spec.ordered or spec.sender is not None
        self._closed = False
        self.partitions = len(partitions)

    def send(self, partition: int, share: Share) -> "asyncio.Future[Receipt]":
        """Store the share in order; messages that are too large or cannot be encoded fail with REFUSED, the others are stored."""
        loop = asyncio.get_running_loop()
        if self._closed:
            return closed_outbound_future(f"topic {self._spec.topic!r}")
        partition_id = self._partition_id(partition)
        future: asyncio.Future[Receipt] = loop.create_future()
        try:
            encoded = self._encoder.encode(share)
        except ClusterError as error:
            future.set_exception(error)
            return future
        if not encoded.rows:
            future.set_result(encoded.receipt)
            return future
        share.held_bytes = encoded.size  # held until the receipt, so the gateway counts them
        max_elapsed_s = self._spec.max_elapsed_s
        deadline = None if max_elapsed_s is None else loop.time() + max_elapsed_s
        self._in_flight.add(future)
        future.add_done_callback(self._in_flight.discard)
        self._appender.append(
            Append(
                partition_id,
                rows=encoded.rows,
                size=encoded.size,
                count=share.count,
                indexes=encoded.indexes,
                failures=encoded.failures,
                ordered=self._is_ordered,
                future=future,
                deadline=deadline,
                sender=self._spec.sender,
            )
        )
        return future

    @property
    def send_failure(self) -> SendFailure | None:
        """Why the log cannot be written; None while it can."""
        failing = longest_failing([self._appender.failing])
        return None if failing is None or not self._in_flight else SendFailure(*failing)

    def _partition_id(self, partition: int) -> int:
        """Return the `PartitionRow.id` of the partition with this index. Raises LocalProtocolError if it does not exist."""
        if not 0 <= partition < self.partitions:
            raise LocalProtocolError(
                f"partition {partition} does not exist: topic {self._spec.topic!r} has {self.partitions} partitions"
            )
        return self._partition_ids[partition]

    def withdraw(self, sends: "Collection[asyncio.Future[Receipt]]") -> None:
        """Fail these sends, so that they are not stored. Those in the running transaction fail only if it fails temporarily."""
        self._appender.withdraw(self._in_flight.intersection(sends))

    def partition_of(self, key: bytes) -> int:
        """Return the CRC32C of the key modulo the number of partitions; a log has no other kind of producer to agree with."""
        return crc32c(key) % self.partitions

    async def resume(
        self, source: Partition, since: Mapping[int, Position] | None = None, partitions: Collection[int] | None = None
    ) -> Mapping[int, Position]:
        """Return the last position of `source` that each partition has stored, by index; see `Outbound.resume`.

        With a sender, it is the one beside its newest row, if the partition has one. Otherwise each partition is searched
        backward for a message whose origin is in `source`, down to its position in `since`: messages of a sender have origins,
        too, unless the spec says not to stamp them. Other producers may append meanwhile: a log cannot fence them. Raises
        TopicChanged if the topic was deleted, also if it was made again.
        """
        await self._check_topic()
        searched = {index: str(index) for index in range(self.partitions) if partitions is None or index in partitions}
        found = await self._stored_sequences(searched)
        if self._spec.sender is None or self._spec.stamp_origin:
            missing = {index: name for index, name in searched.items() if index not in found}
            if missing:
                found |= await self._stored_origins(missing, source, since)
        return found

    async def _check_topic(self) -> None:
        """Raise TopicChanged if the topic of this outbound was deleted."""
        await self._store.read(check_not_deleted, self._partition_ids)

    async def _stored_origins(
        self, searched: Mapping[int, str], source: Partition, since: Mapping[int, Position] | None
    ) -> Mapping[int, Position]:
        """Search these partitions for messages whose origin is in `source`: by name, so it may be a new topic of the name."""
        try:
            found = await last_stored(self._cluster, self._spec.topic, searched, source, since, self._spec.writer)
        except (ClusterError, KeyError):  # the topic is gone, or the new one has fewer partitions
            await self._check_topic()
            raise
        await self._check_topic()
        return found

    async def _stored_sequences(self, searched: Collection[int]) -> dict[int, Position]:
        """Return the position of the sender's last stored message by partition index, where the log has a sequence of it."""
        sender = self._spec.sender
        if sender is None:
            return {}
        by_id = {self._partition_ids[index]: index for index in searched}
        found = await self._store.read(highest_sequences, sender, list(by_id), has_origins=self._spec.stamp_origin)
        return {by_id[id_]: position_of_sequence(sequence) for id_, sequence in found.items()}

    async def close(self, deadline: float | None = None) -> None:
        """Wait for the sends in flight until the deadline (loop time; None: CLOSE_S from now), then fail the rest with FATAL."""
        self._closed = True
        if self._in_flight:
            await asyncio.wait(self._in_flight, timeout=seconds_until(deadline))
            self._appender.abandon(set(self._in_flight))
