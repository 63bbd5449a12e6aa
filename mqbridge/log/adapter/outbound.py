"""Producer into one topic of a log, an SQLite file with topics."""

import asyncio
from collections.abc import Collection, Mapping, Sequence

from crc32c import crc32c

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.outbound import OutboundSpec, SendFailure
from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.adapter.tools.deadlines import seconds_until
from mqbridge.adapter.tools.receipts import closed_outbound_future
from mqbridge.adapter.tools.stored_positions import last_stored
from mqbridge.errors import Failure, LocalProtocolError, MappingError
from mqbridge.log.store.append import Append, Appender
from mqbridge.log.store.database import Store
from mqbridge.log.store.topics import PartitionRow
from mqbridge.log.wire.records import encode_record, encode_row
from mqbridge.message import Message, Partition, Position, Share, format_position
from mqbridge.net.failing_sends import longest_failing

MAX_ROW_BYTES = 512 << 10
MAX_ROW_MESSAGES = 1000
"""Maximum bytes and messages of a row of the table `batch`, which is always read as a whole. A larger send takes several rows."""


class LogOutbound:
    """Encodes each send at once; the appender stores it with its next transaction.

    With `OutboundSpec.stamp_origin`, the stored origin is the message's source partition and position; without it, the origin
    with which the message was read.
    """

    formats = ()
    """No batch format can be sent without decoding."""

    def __init__(
        self, cluster: Cluster, store: Store, appender: Appender, spec: OutboundSpec, partitions: Sequence[PartitionRow]
    ) -> None:
        self._cluster, self._store = cluster, store
        self._appender, self._spec = appender, spec
        self._partition_ids = [row.id for row in partitions]
        """`PartitionRow.id` of each partition, by partition index."""
        self._in_flight: set[asyncio.Future[Receipt]] = set()
        self._origin_prefix_of = spec.origin_of
        self._closed = False
        self.partitions = len(partitions)

    def send(self, partition: int, share: Share) -> "asyncio.Future[Receipt]":
        """Store the share in order; messages that are too large or cannot be encoded fail with REFUSED, the others are stored."""
        loop = asyncio.get_running_loop()
        if self._closed:
            return closed_outbound_future(f"topic {self._spec.topic!r}")
        partition_id = self._partition_id(partition)
        future: asyncio.Future[Receipt] = loop.create_future()
        records, indexes, failures = self._encode(share)
        size = sum(map(len, records))
        if (problem := self._size_problem(size)) is not None:
            records, failures = [], [MessageFailure(index, Failure.REFUSED, problem) for index in range(share.count)]
        if not records:
            future.set_result(Receipt([()] * share.count, failures))  # (): not stored
            return future
        share.held_bytes = size  # held until the receipt, so the gateway counts them
        max_elapsed_s = self._spec.max_elapsed_s
        deadline = None if max_elapsed_s is None else loop.time() + max_elapsed_s
        self._in_flight.add(future)
        future.add_done_callback(self._in_flight.discard)
        self._appender.append(
            Append(
                partition_id,
                rows=_cut_into_rows(records),
                count=share.count,
                indexes=indexes,
                failures=failures,
                ordered=self._spec.ordered,
                future=future,
                deadline=deadline,
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

    def _encode(self, share: Share) -> tuple[list[bytes], Sequence[int], list[MessageFailure]]:
        """Return the records, the indexes of their messages, and the failures of messages that cannot be stored."""
        prefix = self._origin_prefix_of(share.batch.partition)
        records: list[bytes] = []
        failures: list[MessageFailure] = []
        for index, message in enumerate(share.messages):
            try:
                records.append(
                    self._encode_message(
                        message, message.origin if prefix is None else prefix + format_position(message.position)
                    )
                )
            except MappingError as error:
                failures.append(MessageFailure(index, Failure.REFUSED, str(error)))
        if not failures:
            return records, range(share.count), failures
        refused = {failure.index for failure in failures}
        return records, [index for index in range(share.count) if index not in refused], failures

    def _size_problem(self, size: int) -> str | None:
        """Return why a send of this size would wait for ever; None if it can be stored."""
        max_bytes = self._store.config.max_bytes
        if max_bytes is None or size <= max_bytes // 2:
            return None
        return f"the send has {size} bytes; the log accepts at most a half of its `max_bytes` ({max_bytes}) at once"

    def _encode_message(self, message: Message, origin: str | None) -> bytes:
        """Return the record of a message. Raises MappingError if it cannot be stored."""
        if message.defect is not None:
            raise MappingError(f"it could not be read: {message.defect}")
        record = encode_record(message, origin)
        if len(record) > (max_bytes := self._store.config.max_message_bytes):
            raise MappingError(f"the message has {len(record)} bytes; the log accepts at most {max_bytes} (max_message_bytes)")
        return record

    def withdraw(self, sends: "Collection[asyncio.Future[Receipt]]") -> None:
        """Fail these sends, so that they are not stored. Those in the running transaction fail only if it fails temporarily."""
        self._appender.withdraw(self._in_flight.intersection(sends))

    def partition_of(self, key: bytes) -> int:
        """Return the CRC32C of the key modulo the number of partitions; a log has no other kind of producer to agree with."""
        return crc32c(key) % self.partitions

    async def resume(self, source: Partition, since: Mapping[int, Position] | None = None) -> Mapping[int, Position]:
        """Return the last position of `source` that each partition has stored, by index; see `Outbound.resume`.

        Searches each partition backward for a message whose origin is in `source`, down to its position in `since`.
        Other producers may append meanwhile: a log cannot fence them.
        """
        partitions = {index: str(index) for index in range(self.partitions)}
        return await last_stored(self._cluster, self._spec.topic, partitions, source, since, self._spec.writer)

    async def close(self, deadline: float | None = None) -> None:
        """Wait for the sends in flight until the deadline (loop time; None: CLOSE_S from now), then fail the rest with FATAL."""
        self._closed = True
        if self._in_flight:
            await asyncio.wait(self._in_flight, timeout=seconds_until(deadline))
            self._appender.abandon(set(self._in_flight))


def _cut_into_rows(records: list[bytes]) -> list[tuple[int, bytes]]:
    """Cut records into rows of at most MAX_ROW_BYTES and MAX_ROW_MESSAGES, each with its message count."""
    rows: list[tuple[int, bytes]] = []
    begin = size = 0
    for index, record in enumerate(records):
        if index > begin and (size + len(record) > MAX_ROW_BYTES or index - begin == MAX_ROW_MESSAGES):
            rows.append((index - begin, encode_row(records[begin:index])))
            begin, size = index, 0
        size += len(record)
    rows.append((len(records) - begin, encode_row(records[begin:])))
    return rows
