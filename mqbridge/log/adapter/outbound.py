"""The way into one topic of a log."""

import asyncio
from collections.abc import Sequence

from crc32c import crc32c

from mqbridge.adapter import MessageFailure, OutboundSpec, Receipt
from mqbridge.errors import ClusterError, Failure, LocalProtocolError, MappingError
from mqbridge.log.store import read
from mqbridge.log.store.append import Append, Appender
from mqbridge.log.store.database import Store
from mqbridge.log.store.topics import PartitionRow
from mqbridge.log.wire.records import encode_record, encode_row
from mqbridge.message import Message, Partition, format_position, origin_prefix

ROW_BYTES = 512 << 10
ROW_MESSAGES = 1000
"""A longer send is cut into rows of this size, which is also what one receive returns: readers never hold much more."""

CLOSE_TIMEOUT_S = 30.0


class LogOutbound:
    """Sends are encoded at once and stored by the appender's next group.

    With `stamp_origin` and a source, a message's origin becomes its place in that source; otherwise its own origin is kept.
    """

    def __init__(self, store: Store, appender: Appender, spec: OutboundSpec, rows: Sequence[PartitionRow]) -> None:
        self._store, self._appender, self._spec = store, appender, spec
        self._ids = [row.id for row in rows]
        self._in_flight: set[asyncio.Future[Receipt]] = set()
        self._closed = False
        self.partitions = len(rows)

    def send(self, partition: int, messages: Sequence[Message], source: Partition | None) -> "asyncio.Future[Receipt]":
        """Store in order; messages that are too large or cannot be encoded are refused, the others are stored."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Receipt] = loop.create_future()
        if self._closed:
            future.set_exception(ClusterError(f"the outbound into topic {self._spec.topic!r} is closed", Failure.FATAL))
            return future
        receipt = Receipt()
        records, places = self._encode(messages, source, receipt)
        if not records:
            future.set_result(receipt)
            return future
        elapsed = self._spec.max_elapsed_s
        deadline = None if elapsed is None else loop.time() + elapsed
        self._in_flight.add(future)
        future.add_done_callback(self._in_flight.discard)
        self._appender.append(
            Append(self._id(partition), rows=_cut(records), places=places, receipt=receipt, future=future, deadline=deadline)
        )
        return future

    def _id(self, partition: int) -> int:
        if not 0 <= partition < self.partitions:
            raise LocalProtocolError(
                f"topic {self._spec.topic!r} has {self.partitions} partitions, there is no partition {partition}"
            )
        return self._ids[partition]

    def _encode(
        self, messages: Sequence[Message], source: Partition | None, receipt: Receipt
    ) -> tuple[list[bytes], Sequence[int]]:
        """The records, and the indexes of their messages; what is refused is noted in the receipt."""
        prefix = origin_prefix(source) if source is not None and self._spec.stamp_origin else None
        records: list[bytes] = []
        for index, message in enumerate(messages):
            try:
                records.append(
                    self._record(message, message.origin if prefix is None else prefix + format_position(message.position))
                )
            except MappingError as error:
                receipt.failures.append(MessageFailure(index, Failure.REFUSED, str(error)))
        if not receipt.failures:
            return records, range(len(messages))
        refused = {failure.index for failure in receipt.failures}
        return records, [index for index in range(len(messages)) if index not in refused]

    def _record(self, message: Message, origin: str | None) -> bytes:
        if message.defect is not None:
            raise MappingError(f"it could not be read: {message.defect}")
        record = encode_record(message, origin)
        if len(record) > (most := self._store.config.max_message_bytes):
            raise MappingError(f"the message has {len(record)} bytes, the log takes {most} (max_message_bytes)")
        return record

    def partition_of(self, key: bytes) -> int:
        """CRC32C of the key modulo the partitions: the log has no producers but us."""
        return crc32c(key) % self.partitions

    async def last_origin(self, partition: int) -> str | None:
        """The origin of the newest message."""
        message = await self._store.read(read.newest, self._id(partition))
        return None if message is None else message.origin

    async def close(self) -> None:
        """Wait until what is in flight is stored, at most CLOSE_TIMEOUT_S."""
        self._closed = True
        if self._in_flight:
            await asyncio.wait(self._in_flight, timeout=CLOSE_TIMEOUT_S)
            self._appender.abandon(set(self._in_flight))


def _cut(records: list[bytes]) -> list[tuple[int, bytes]]:
    """Records as rows of bounded size."""
    rows: list[tuple[int, bytes]] = []
    begin = size = 0
    for place, record in enumerate(records):
        if place > begin and (size + len(record) > ROW_BYTES or place - begin == ROW_MESSAGES):
            rows.append((place - begin, encode_row(records[begin:place])))
            begin, size = place, 0
        size += len(record)
    rows.append((len(records) - begin, encode_row(records[begin:])))
    return rows
