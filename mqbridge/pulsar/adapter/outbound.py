"""Outbound to one topic. Each partition has a producer, which the first send to the partition, or `resume`, opens."""

import asyncio
import base64
import itertools
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from mqbridge import native
from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.outbound import OutboundSpec, SendFailure
from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.adapter.tools.deadlines import CLOSE_S
from mqbridge.adapter.tools.receipts import ReceiptAggregator, closed_outbound_future
from mqbridge.adapter.tools.stored_positions import last_stored
from mqbridge.errors import ClusterError, Failure, RequestTimeout
from mqbridge.mapping.bounded_cache import BoundedCache
from mqbridge.mapping.sequences import position_of_sequence
from mqbridge.message import Message, Partition, Position, Share
from mqbridge.net.failing_sends import longest_failing
from mqbridge.net.waiting_sends import Caller
from mqbridge.pulsar.adapter.batches import FORMAT
from mqbridge.pulsar.adapter.config import PulsarOutboundOptions
from mqbridge.pulsar.adapter.sender_sequence import MessagePositions, SenderSequence
from mqbridge.pulsar.adapter.topics import UNPARTITIONED, Topics
from mqbridge.pulsar.client.cluster_client import ClusterClient
from mqbridge.pulsar.client.modes import ACCESS_MODES
from mqbridge.pulsar.client.producer.entry_producer import OPEN_TIMEOUT_S, EntryProducer
from mqbridge.pulsar.client.producer.pending_entry import SendResult
from mqbridge.pulsar.client.producer.producer_settings import ProducerSettings
from mqbridge.pulsar.mapping.passthrough import encode_entries
from mqbridge.pulsar.mapping.request import (
    EncodeResult,
    Limits,
    encode,
    encode_by_key,
    encode_restored,
    unreadable_failure,
)
from mqbridge.pulsar.wire.compression import CODEC_NUMBERS
from mqbridge.pulsar.wire.hashing import java_string_hash, murmur3_32
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
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

    formats = () if native.compiled is not None else (FORMAT,)
    """Formats of batches that are sent without decoding; none with the compiled module, with which every batch is decoded."""

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
        self._encode_messages = encode_restored if options.restore_entries else encode
        self._copies_entries = native.compiled is None and not options.restore_entries
        self._hash = _JAVA_HASHES.__getitem__ if options.key_hash == "java" else murmur3_32
        self._origin_of = spec.origin_of
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
        sequence_ids: Iterable[SequenceIds] = ASSIGNED_BY_PRODUCER
        try:
            if self._sender_sequence is None:
                entries, failures = self._encode(share)
            else:
                entries, failures, sequence_ids = self._encode_with_sequence_ids(self._sender_sequence, partition, share)
        except ClusterError as error:
            return _failed_future(share, error)
        receipt = ReceiptAggregator(share.count, failures, self._loop)
        future = receipt.future
        caller = Caller(future, share.batch.partition, (future,))
        # The delivery charges these bytes to its memory budget until the receipt.
        share.held_bytes = sum(len(entry.payload) for entry in entries)
        for entry, (first_id, last_id) in zip(entries, sequence_ids, strict=False):  # ASSIGNED_BY_PRODUCER has no end
            response = producer.send(
                entry.metadata,
                entry.payload,
                entry.count,
                first_id,
                highest_sequence_id=last_id,
                divisible=len(entry.indexes) > 1,
                caller=caller,
            )
            receipt.add_request(response, entry.indexes, partial(_positions, len(entry.indexes)))
        if self._sender_sequence is not None:
            receipt.future.add_done_callback(partial(self._sender_sequence.on_send_done, partition))
        return receipt.finish_adding()

    def _limits_below(self, max_message_size: int) -> Limits:
        """Return the limits of entries for a broker that accepts at most `max_message_size` bytes.

        No entry of several messages may be larger, because the refusal of an entry says nothing about each of its messages.
        """
        self._max_message_size = max_message_size
        return Limits(self._options.batch_messages, min(self._options.batch_bytes, max_message_size))

    def _encode(self, share: Share) -> EncodeResult:
        """Encode a share as entries. An unchanged batch of Pulsar entries is copied undecoded, see `formats`."""
        batch, origin = share.batch, self._origin_of(share.batch.partition)
        if self._options.batch_by_key:
            entries, failures = encode_by_key(share.messages, origin, self._limits, self._encode_messages)
        elif self._copies_entries and batch.format == FORMAT and share.indexes is None and not share.is_edited:
            entries, failures = encode_entries(batch.data, origin, self._limits)
        else:
            entries, failures = self._encode_messages(share.messages, origin, self._limits)
        return entries, failures

    def _encode_with_sequence_ids(
        self, sequence: SenderSequence, partition: int, share: Share
    ) -> tuple[*EncodeResult, Sequence[SequenceIds]]:
        """Encode the messages that are not stored yet; return entries, failures and the entries' sequence ids.

        Raises ClusterError if a message must not be sent now (see `SenderSequence`); then no message counts as sent.
        """
        source, messages = share.batch.partition, share.messages
        if not len(messages):
            return [], [], []
        positions = MessagePositions(messages)
        first_index_and_position = next(positions.readable(), None)
        if first_index_and_position is not None:
            sequence.check_first(partition, source, first_index_and_position[1])
        stored_count = sequence.count_stored(partition, positions)
        unstored = messages[stored_count:] if stored_count else messages
        entries, failures = self._encode_messages(unstored, self._origin_of(source), self._limits, stored_count)
        return (
            entries,
            _unreadable_failures(messages, stored_count) + failures,
            sequence.assign_ids(partition, entries, positions),
        )

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

    async def resume(self, source: Partition, since: Mapping[int, Position] | None = None) -> Mapping[int, Position]:
        """Return the last stored source position by partition; without a sender's name, first take exclusive access to all.

        Messages before the positions in `since` (by target partition) are not read.

        Exclusive access fences off for good every outbound that has taken it before. It is no protection against an outbound that
        never called `resume`: the broker closes its shared producers, but was seen to accept one of them that reconnected. When
        that producer is closed, the broker forgets the exclusive access of this outbound.
        """
        if self._options.batch_by_key:
            problem = f"the target {self._spec.topic!r} has batch_by_key, which stores messages out of their source's order"
            raise ClusterError(f"{problem}, so a resumed copy could lose some: turn it off here", Failure.FATAL)
        if self._sender_sequence is not None:
            return await self._resume_from_sequence_ids(self._sender_sequence, source, since)
        if not self._fences:
            self._fences = True
            await self._close_producers()
        await self._open_all()
        return await self._read_last_stored(source, range(self.partitions), since)

    async def _resume_from_sequence_ids(
        self, sequence: SenderSequence, source: Partition, since: Mapping[int, Position] | None
    ) -> Mapping[int, Position]:
        """Derive the stored positions from the last sequence ids that the broker has for the sender's name.

        The broker has none if the topic does not deduplicate, or if the name was idle for long. For those partitions the stored
        messages are read instead.
        """
        sequence.check_source(source)
        await self._close_producers()
        await self._open_all()
        last_ids = {partition: producer.last_sequence_id for partition, producer in self._producers.items()}
        stored = {partition: position_of_sequence(last_id) for partition, last_id in last_ids.items() if last_id >= 0}
        if len(stored) < self.partitions:
            if self._warn_undeduplicated is not None:
                await self._warn_undeduplicated(self._spec.topic)
            stored.update(await self._read_last_stored(source, [each for each in last_ids if each not in stored], since))
        sequence.set_stored(source, stored)
        return stored

    @property
    def send_failure(self) -> SendFailure | None:
        """Why a producer cannot store its entries; None while all can."""
        failing = longest_failing(producer.failing for producer in self._producers.values())
        return None if failing is None else SendFailure(*failing)

    async def _close_producers(self) -> None:
        producers, self._producers = self._producers, {}
        await asyncio.gather(*(producer.close() for producer in producers.values()))

    async def _open_all(self) -> None:
        """Open the producers of all partitions. Raises ClusterError; RequestTimeout if that takes longer than OPEN_TIMEOUT_S."""
        for partition in range(self.partitions):
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


def _unreadable_failures(messages: Sequence[Message], count: int) -> list[MessageFailure]:
    """Return failures for the messages with a defect among the first `count`, which are skipped as if they were stored."""
    defects = ((index, messages[index].defect) for index in range(count))
    return [unreadable_failure(index, defect) for index, defect in defects if defect is not None]


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
