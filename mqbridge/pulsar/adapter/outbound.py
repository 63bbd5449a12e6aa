"""Outbound to one topic. Each partition has a producer, which the first send to the partition, or `resume`, opens."""

import asyncio
import base64
import itertools
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.outbound import OutboundSpec, SendFailure
from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.adapter.tools.deadlines import CLOSE_S
from mqbridge.adapter.tools.receipts import ReceiptAggregator, closed_outbound_future, refused_whole
from mqbridge.adapter.tools.stored_positions import last_stored
from mqbridge.errors import ClusterError, Failure, RequestTimeout
from mqbridge.mapping.bounded_cache import BoundedCache
from mqbridge.mapping.sequences import position_of_sequence
from mqbridge.message import Partition, Position, Share
from mqbridge.net.failing_sends import longest_failing
from mqbridge.net.waiting_sends import Caller
from mqbridge.pulsar.adapter.config import PulsarOutboundOptions
from mqbridge.pulsar.adapter.sender_sequence import SenderSequence
from mqbridge.pulsar.adapter.share_encoder import EncodedShare, ShareEncoder
from mqbridge.pulsar.adapter.topics import UNPARTITIONED, Topics
from mqbridge.pulsar.client.cluster_client import ClusterClient
from mqbridge.pulsar.client.modes import ACCESS_MODES
from mqbridge.pulsar.client.producer.entry_producer import OPEN_TIMEOUT_S, EntryProducer
from mqbridge.pulsar.client.producer.pending_entry import PendingEntry, SendResult, StoredEntry, refusal_before_sending
from mqbridge.pulsar.client.producer.producer_settings import ProducerSettings
from mqbridge.pulsar.mapping.request import EncodedEntry, Limits
from mqbridge.pulsar.mapping.stored_units import UnitToStore
from mqbridge.pulsar.wire.compression import CODEC_NUMBERS
from mqbridge.pulsar.wire.hashing import java_string_hash, murmur3_32
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata
from mqbridge.pulsar.wire.schemas import Schema

SequenceIds = tuple[int | None, int | None]
"""Sequence ids of the first and last message of an entry; both are None if the producer assigns them."""
ASSIGNED_BY_PRODUCER: Iterable[SequenceIds] = itertools.repeat((None, None))
"""The sequence ids of any number of entries to which the producer assigns them."""


class PulsarOutbound:
    """Sends to one topic. `resume` reads the topic through `cluster`; `targets` are the topic's partitions by index.

    `warn_undeduplicated` gets the topic's name, and logs a warning if the topic does not deduplicate; None: no warning. `resume`
    calls it if the broker has no sequence id of a named sender for some partition. `unchunked_reason` is why this topic must not
    have messages in chunks, if there is a reason.
    """

    def __init__(
        self,
        cluster: Cluster,
        client: ClusterClient,
        topics: Topics,
        spec: OutboundSpec,
        targets: Sequence[Partition],
        max_message_size: int,
        warn_undeduplicated: Callable[[str], Awaitable[None]] | None = None,
        schema: Schema | None = None,
        unchunked_reason: str = "",
    ) -> None:
        assert spec.options is None or isinstance(spec.options, PulsarOutboundOptions)  # noqa: S101 - validated with that model
        options = spec.options or PulsarOutboundOptions()
        self.partitions = len(targets)
        self._cluster, self._targets = cluster, targets
        self._warn_undeduplicated, self._schema = warn_undeduplicated, schema
        self._unchunked_reason = unchunked_reason
        self._fences = False
        """True once producers are opened with exclusive access, see `resume`."""
        self._sender_sequence = None if spec.sender is None else SenderSequence(spec.sender, spec.topic)
        self._client, self._spec, self._options = client, spec, options
        self._is_persistent = topics.is_persistent(spec.topic)
        self._topic_names = [topics.partition_topic_name(partition) for partition in targets]
        self._limits = self._limits_below(max_message_size)
        self._producers: dict[int, EntryProducer] = {}
        self._encoder = ShareEncoder(spec, options, has_schema=schema is not None)
        self.formats = self._encoder.formats
        self._hash = _JAVA_HASHES.__getitem__ if options.key_hash == "java" else murmur3_32
        self._loop = asyncio.get_running_loop()
        self._closed = False

    def send(self, partition: int, share: Share) -> "asyncio.Future[Receipt]":
        """Encode the share (messages of a batch for this partition) into entries, and queue them in order.

        The receipt has the positions of the stored messages.
        """
        if self._closed:
            return closed_outbound_future(repr(self._spec.topic))
        producer = self._producers.get(partition) or self._open_producer(partition)
        if producer.max_message_size not in (None, self._max_message_size):  # a broker with another limit serves the topic now
            self._limits = self._limits_below(producer.max_message_size or self._max_message_size)
        sequence, sequence_ids = self._sender_sequence, ASSIGNED_BY_PRODUCER
        try:
            encoded = self._encode(partition, share)
            if self._spec.whole_shares and (failures := self._find_refusals(encoded, producer)):
                return self._refused_future(share, failures)
            if sequence is not None:
                sequence_ids = sequence.assign_ids(partition, encoded.entries, encoded.positions)
        except ClusterError as error:
            return _failed_future(share, error)
        receipt = ReceiptAggregator(share.count, encoded.failures, self._loop)
        future = receipt.future
        caller = Caller(future, share.batch.partition, (future,))
        # The delivery charges these bytes to its memory budget until the receipt.
        share.held_bytes = sum(map(_size_of, encoded.entries))
        for entry, ids in zip(encoded.entries, sequence_ids, strict=False):  # ASSIGNED_BY_PRODUCER has no end
            response = _send(producer, entry, ids, caller)
            receipt.add_request(response, entry.indexes, partial(_positions, len(entry.indexes)))
        if sequence is not None:
            receipt.future.add_done_callback(partial(sequence.on_send_done, partition))
        return receipt.finish_adding()

    def _refused_future(self, share: Share, failures: Sequence[MessageFailure]) -> "asyncio.Future[Receipt]":
        """Return the future of a share that is refused as a whole."""
        future: asyncio.Future[Receipt] = self._loop.create_future()
        future.set_result(refused_whole(share.count, failures))
        return future

    def _limits_below(self, max_message_size: int) -> Limits:
        """Return the limits of entries for a broker that accepts at most `max_message_size` bytes.

        No entry of several messages may be larger, because the refusal of an entry says nothing about each of its messages.
        """
        self._max_message_size = max_message_size
        return Limits(self._options.batch_messages, min(self._options.batch_bytes, max_message_size), max_message_size)

    def _encode(self, partition: int, share: Share) -> EncodedShare:
        """Encode a share, or of a sender, what the partition has not stored yet. Raises ClusterError, see `SenderSequence`."""
        if self._sender_sequence is None:
            return self._encoder.encode(share, self._limits)
        return self._encoder.encode_unstored(self._sender_sequence, partition, share, self._limits)

    def _find_refusals(self, encoded: EncodedShare, producer: EntryProducer) -> list[MessageFailure]:
        """Return the failures of the messages of which it is known before they are sent that they cannot be stored."""
        failures = list(encoded.failures)
        caller = Caller(None, None, ())
        for entry in encoded.entries:
            pending = _pending_entry(entry, self._loop.create_future(), caller)
            if (error := refusal_before_sending(pending, self._max_message_size, producer.settings)) is not None:
                failures += [MessageFailure(index, Failure.REFUSED, str(error)) for index in entry.indexes]
        return sorted(failures, key=lambda failure: failure.index)

    def withdraw(self, sends: "Collection[asyncio.Future[Receipt]]") -> None:
        """Withdraw the unsent entries of the sends with these futures; sent entries stay in flight until their receipt."""
        owners = frozenset(sends)
        for producer in self._producers.values():
            producer.withdraw(owners)

    def partition_of(self, key: bytes) -> int:
        """Return the partition index of a key by the configured hash (option `key_hash`)."""
        return self._hash(key) % self.partitions

    def _open_producer(self, partition: int) -> EntryProducer:
        has_sender = self._sender_sequence is not None
        settings = ProducerSettings(
            name=self._spec.sender if has_sender else self._options.producer_name,
            codec=CODEC_NUMBERS[self._options.compression],
            chunking=self._options.chunking and not self._unchunked_reason,
            unchunked_reason=self._unchunked_reason,
            access=pb.ExclusiveWithFencing if self._fences else ACCESS_MODES[self._options.access],
            schema=self._schema,
            properties=tuple(self._options.producer_properties.items()),
            max_elapsed_s=self._spec.max_elapsed_s,
            retries_first_opening=True,
            sole_sender=has_sender,
            fails_in_order=self._spec.ordered,
            is_partition=self._targets[partition].name != UNPARTITIONED,
        )
        producer = self._producers[partition] = self._client.producer(self._topic_names[partition], settings)
        return producer

    async def resume(
        self, source: Partition, since: Mapping[int, Position] | None = None, partitions: Collection[int] | None = None
    ) -> Mapping[int, Position]:
        """Return the last stored source position by partition; without a sender's name, first take exclusive access.

        With `partitions`, only these are searched, and exclusive access is taken to them only. Messages before the positions in
        `since` (by target partition) are not read.

        Exclusive access fences off for good every outbound that has taken it before. It is no protection against an outbound that
        never called `resume`: the broker closes its shared producers, but was seen to accept one of them that reconnected. When
        that producer is closed, the broker forgets the exclusive access of this outbound.
        """
        if self._options.batch_by_key:
            problem = f"the target {self._spec.topic!r} has batch_by_key, which stores messages out of their source's order"
            raise ClusterError(f"{problem}, so a resumed copy could lose some: turn it off here", Failure.FATAL)
        chosen = range(self.partitions) if partitions is None else sorted(partitions)
        if self._sender_sequence is not None:
            return await self._resume_from_sequence_ids(self._sender_sequence, source, since, chosen)
        if not self._fences:
            self._fences = True
            await self._close_producers()
        await self._open_all(chosen)
        return await self._read_last_stored(source, chosen, since)

    async def _resume_from_sequence_ids(
        self, sequence: SenderSequence, source: Partition, since: Mapping[int, Position] | None, partitions: Sequence[int]
    ) -> Mapping[int, Position]:
        """Derive the stored positions from the last sequence ids that the broker has for the sender's name.

        The broker has none if the topic does not deduplicate, or if the name was idle for long. For those partitions the stored
        messages are read instead.
        """
        sequence.check_source(source)
        await self._close_producers()
        await self._open_all(partitions)
        last_ids = {partition: self._producers[partition].last_sequence_id for partition in partitions}
        stored = {partition: position_of_sequence(last_id) for partition, last_id in last_ids.items() if last_id >= 0}
        if len(stored) < len(partitions):
            if self._warn_undeduplicated is not None:
                await self._warn_undeduplicated(self._spec.topic)
            stored.update(await self._read_last_stored(source, [each for each in last_ids if each not in stored], since))
        sequence.set_stored(source, stored, partitions)
        return stored

    @property
    def send_failure(self) -> SendFailure | None:
        """Why a producer cannot store its entries; None while all can."""
        failing = longest_failing(producer.failing for producer in self._producers.values())
        return None if failing is None else SendFailure(*failing)

    async def _close_producers(self) -> None:
        producers, self._producers = self._producers, {}
        await asyncio.gather(*(producer.close() for producer in producers.values()))

    async def _open_all(self, partitions: Iterable[int]) -> None:
        """Open the producers of these partitions. Raises ClusterError; RequestTimeout if it takes longer than OPEN_TIMEOUT_S."""
        for partition in partitions:
            if partition not in self._producers:
                self._open_producer(partition)
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                await asyncio.gather(*(producer.opened() for producer in self._producers.values()))
        except TimeoutError as error:
            sender = self._spec.sender
            name = "" if sender is None else f" named {sender!r} (another sender of this name may still be connected)"
            raise RequestTimeout(
                f"no broker accepted a producer{name} for {self._spec.topic!r} within {OPEN_TIMEOUT_S:g} s"
            ) from error

    async def _read_last_stored(
        self, source: Partition, partitions: Iterable[int], since: Mapping[int, Position] | None
    ) -> dict[int, Position]:
        """Return the last stored source positions, found by reading the partitions backward.

        There are none in a topic that is not persistent.
        """
        if not self._is_persistent:
            return {}
        names = {index: self._targets[index].name for index in partitions}
        return await last_stored(self._cluster, self._spec.topic, names, source, since, self._spec.writer)

    async def close(self, deadline: float | None = None) -> None:
        """Wait for entries in flight until `deadline` (loop time; None: CLOSE_S seconds from now), then close the producers."""
        self._closed = True
        if deadline is None:
            deadline = asyncio.get_running_loop().time() + CLOSE_S
        await asyncio.gather(*(producer.close(deadline=deadline) for producer in self._producers.values()))


def _send(
    producer: EntryProducer, entry: EncodedEntry | UnitToStore, ids: SequenceIds, caller: Caller
) -> "asyncio.Future[SendResult]":
    """Queue an entry for sending, with the sequence ids of its first and last message."""
    first, last = ids
    if isinstance(entry, UnitToStore):
        return producer.send_stored(
            entry.data, entry.metadata, entry.payload_size, first, highest_sequence_id=last, caller=caller
        )
    return producer.send(
        entry.metadata,
        entry.payload,
        entry.count,
        first,
        highest_sequence_id=last,
        divisible=len(entry.indexes) > 1,
        caller=caller,
    )


def _pending_entry(entry: EncodedEntry | UnitToStore, future: "asyncio.Future[SendResult]", caller: Caller) -> PendingEntry:
    """Return a copy of an entry as a producer queues it."""
    if isinstance(entry, UnitToStore):
        return StoredEntry(entry.data, entry.metadata, entry.payload_size, None, future, caller)
    metadata = MessageMetadata(publish_time=1)
    metadata.MergeFrom(entry.metadata)
    return PendingEntry(metadata, entry.payload, entry.count, None, future, caller, divisible=False)


def _size_of(entry: EncodedEntry | UnitToStore) -> int:
    return len(entry.data if isinstance(entry, UnitToStore) else entry.payload)


def _java_hash(key: bytes) -> int:
    """Return the Java hash of a key; a binary key is hashed as base64, as by Java producers."""
    try:
        return java_string_hash(key.decode())
    except UnicodeDecodeError:
        return java_string_hash(base64.b64encode(key).decode())


_JAVA_HASHES = BoundedCache[bytes, int](_java_hash)
"""Cache of Java hashes by key: keys repeat, and hashing a key takes longer than a lookup."""


def _failed_future(share: Share, error: ClusterError) -> "asyncio.Future[Receipt]":
    """Return the future of a share that was not sent: a FATAL error fails the future, any other fails every message."""
    future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
    if error.failure is Failure.FATAL:
        future.set_exception(error)
    else:
        future.set_result(Receipt(failures=[MessageFailure(index, error.failure, str(error)) for index in range(share.count)]))
    return future


def _positions(count: int, receipt: SendResult) -> list[Position]:
    """Return the positions of an entry's messages; empty ones for a duplicate, whose position the broker does not report."""
    if receipt.duplicate:
        return [()] * count
    return [(receipt.ledger, receipt.entry, index) for index in range(count)]
