"""Producing to one topic: a producer per partition, opened when the first batch for it comes."""

import asyncio
import base64
import itertools
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from mqbridge import native
from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.deadlines import CLOSE_S
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.errors import ClusterError, Failure, RequestTimeout
from mqbridge.mapping.bounded_cache import BoundedCache
from mqbridge.message import Message, Partition, Position, Share
from mqbridge.pulsar.adapter.batches import FORMAT
from mqbridge.pulsar.adapter.config import PulsarOutboundOptions
from mqbridge.pulsar.adapter.numbering import Numbering, Positions
from mqbridge.pulsar.adapter.topics import Topics
from mqbridge.pulsar.client.client import PulsarClient
from mqbridge.pulsar.client.producer import OPEN_TIMEOUT_S, Producer
from mqbridge.pulsar.client.publication import Publication
from mqbridge.pulsar.client.sending import SendReceipt
from mqbridge.pulsar.mapping.passthrough import encode_entries
from mqbridge.pulsar.mapping.request import Encoded, EncodedEntry, Limits, encode, unreadable
from mqbridge.pulsar.mapping.sequences import position_of_sequence
from mqbridge.pulsar.wire.compression import NAMES
from mqbridge.pulsar.wire.hashing import java_string_hash, murmur3_32
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.ranges import last_stored
from mqbridge.receipts import ReceiptAggregator, closed

Numbers = tuple[int | None, int | None]
"""Sequence ids of the first and last message of an entry; None where the producer counts."""
UNNUMBERED: Iterable[Numbers] = itertools.repeat((None, None))


class PulsarOutbound:
    """A way into one topic of `cluster`, which is asked what the topic holds."""

    formats = () if native.compiled is not None else (FORMAT,)

    def __init__(
        self,
        cluster: Cluster,
        client: PulsarClient,
        topics: Topics,
        spec: OutboundSpec,
        targets: Sequence[Partition],
        max_message_size: int,
        warn_undeduplicated: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        assert spec.options is None or isinstance(spec.options, PulsarOutboundOptions)  # noqa: S101 - by the registry
        options = spec.options or PulsarOutboundOptions()
        self.partitions = len(targets)
        self._cluster, self._targets = cluster, targets
        self._warn_undeduplicated = warn_undeduplicated
        self._fences = False
        self._numbering = None if spec.sender is None else Numbering(spec.sender, spec.topic)
        self._client, self._spec, self._options = client, spec, options
        self._names = [topics.concrete(partition) for partition in targets]
        # An entry that the broker refuses would take all of its messages with it, so only a message that is too large by itself
        # may make one.
        self._limits = Limits(options.batch_messages, min(options.batch_bytes, max_message_size))
        self._producers: dict[int, Producer] = {}
        self._hash = _JAVA_HASHES.__getitem__ if options.key_hash == "java" else murmur3_32
        self._origin_of = spec.origin_of
        self._loop = asyncio.get_running_loop()
        self._closed = False

    def send(self, partition: int, share: Share) -> "asyncio.Future[Receipt]":
        """Send in order; the receipt's positions are those of the entries."""
        if self._closed:
            return closed(repr(self._spec.topic))
        numbers: Iterable[Numbers] = UNNUMBERED
        try:
            if self._numbering is None:
                entries, failures = self._encode(share)
            else:
                entries, failures, numbers = self._encode_numbered(self._numbering, partition, share)
        except ClusterError as error:
            return _failed(share, error)
        producer = self._producers.get(partition) or self._open(partition)
        receipt = ReceiptAggregator(share.count, failures, self._loop)
        share.held_bytes = sum(len(out.payload) for out in entries)
        for out, (first, last) in zip(entries, numbers, strict=False):
            sent = producer.send(out.metadata, out.payload, out.count, first, highest_sequence_id=last, owner=receipt.future)
            receipt.wait_for(sent, out.indexes, partial(_positions, out))
        if self._numbering is not None:
            receipt.future.add_done_callback(partial(self._numbering.ended, partition))
        return receipt.sent()

    def _encode(self, share: Share) -> Encoded:
        """Its entries. Without the compiled module whole batches of entries are not decoded."""
        batch, origin = share.batch, self._origin_of(share.batch.partition)
        if native.compiled is None and batch.format == FORMAT and share.indexes is None and not share.is_edited:
            return encode_entries(batch.data, origin, self._limits)
        return encode(share.messages, origin, self._limits)

    def _encode_numbered(self, numbering: Numbering, partition: int, share: Share) -> tuple[*Encoded, Sequence[Numbers]]:
        """Entries with sequence ids; what the broker holds is left out. Raises ClusterError before anything counts as sent."""
        source, messages = share.batch.partition, share.messages
        if not len(messages):
            return [], [], []
        positions = Positions(messages)
        if (first := next(positions.readable(), None)) is not None:
            numbering.check_first(partition, source, first[1])
        left_out = numbering.count_stored(partition, positions)
        entries, failures = encode(messages[left_out:] if left_out else messages, self._origin_of(source), self._limits, left_out)
        return entries, _unreadable(messages, left_out) + failures, numbering.number(partition, entries, positions)

    def withdraw(self, sends: "Collection[asyncio.Future[Receipt]]") -> None:
        """Entries are on their way while the broker has them and has not answered."""
        owners = frozenset(sends)
        for producer in self._producers.values():
            producer.withdraw(owners)

    def partition_of(self, key: bytes) -> int:
        """By the hash of the options; a key that is no text counts as its base64 form, as it does for Java producers."""
        return self._hash(key) % self.partitions

    def _open(self, partition: int) -> Producer:
        named = self._numbering is not None
        publication = Publication(
            self._spec.sender if named else self._options.producer_name,
            NAMES[self._options.compression],
            access=pb.ExclusiveWithFencing if self._fences else pb.Shared,
            max_elapsed_s=self._spec.max_elapsed_s,
            opens_patiently=True,
            alone=named,
            fails_in_order=self._spec.ordered,
        )
        producer = self._producers[partition] = self._client.producer(self._names[partition], publication)
        return producer

    async def resume(self, source: Partition, since: Mapping[int, Position] | None = None) -> Mapping[int, Position]:
        """Without a sender's name, fences off the producers of outbounds that resumed before, for good.

        The broker closes others too, but a shared producer that comes back was seen to be let in: closing it makes the broker
        forget that there is an exclusive one.
        """
        if self._numbering is not None:
            return await self._resume_numbered(self._numbering, source, since)
        if not self._fences:
            self._fences = True
            await self._close_producers()
        await self._open_all()
        return await self._last_stored(source, range(self.partitions), since)

    async def _resume_numbered(
        self, numbering: Numbering, source: Partition, since: Mapping[int, Position] | None
    ) -> Mapping[int, Position]:
        """By what the broker has last of the name; it knows none where it does not deduplicate, or has forgotten an idle name."""
        numbering.check_source(source)
        await self._close_producers()
        await self._open_all()
        last = {partition: producer.last_sequence_id for partition, producer in self._producers.items()}
        found = {partition: position_of_sequence(sequence) for partition, sequence in last.items() if sequence >= 0}
        if len(found) < self.partitions:
            if self._warn_undeduplicated is not None:
                await self._warn_undeduplicated(self._spec.topic)
            found.update(await self._last_stored(source, [each for each in last if each not in found], since))
        numbering.resumed(source, found)
        return found

    async def _close_producers(self) -> None:
        producers, self._producers = self._producers, {}
        await asyncio.gather(*(producer.close() for producer in producers.values()))

    async def _open_all(self) -> None:
        """Wait until the broker lets all of them in. Raises ClusterError (RETRY)."""
        for partition in range(self.partitions):
            if partition not in self._producers:
                self._open(partition)
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                await asyncio.gather(*(producer.opened() for producer in self._producers.values()))
        except TimeoutError as error:
            whom = "us" if self._spec.sender is None else f"us as {self._spec.sender!r}, which somebody else may still be,"
            raise RequestTimeout(
                f"no broker lets {whom} produce into {self._spec.topic!r} within {OPEN_TIMEOUT_S:g} s"
            ) from error

    async def _last_stored(
        self, source: Partition, partitions: Iterable[int], since: Mapping[int, Position] | None
    ) -> dict[int, Position]:
        names = {index: self._targets[index].name for index in partitions}
        return await last_stored(self._cluster, self._spec.topic, names, source, since)

    async def close(self, deadline: float | None = None) -> None:
        """Wait for what is in flight, then let go."""
        self._closed = True
        if deadline is None:
            deadline = asyncio.get_running_loop().time() + CLOSE_S
        await asyncio.gather(*(producer.close(deadline) for producer in self._producers.values()))


def _unreadable(messages: Sequence[Message], count: int) -> list[MessageFailure]:
    """The failures among the first `count`, which were sent before: what cannot be read was not stored then either."""
    return [unreadable(index, messages[index].defect or "") for index in range(count) if messages[index].defect is not None]


def _java_hash(key: bytes) -> int:
    try:
        return java_string_hash(key.decode())
    except UnicodeDecodeError:
        return java_string_hash(base64.b64encode(key).decode())


_JAVA_HASHES = BoundedCache[bytes, int](_java_hash)
"""Keys repeat, and hashing one takes longer than looking it up."""


def _failed(share: Share, error: ClusterError) -> "asyncio.Future[Receipt]":
    """The answer to a share of which nothing was sent."""
    future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
    if error.failure is Failure.FATAL:
        future.set_exception(error)
    else:
        future.set_result(Receipt(failures=[MessageFailure(index, error.failure, str(error)) for index in range(share.count)]))
    return future


def _positions(out: EncodedEntry, receipt: SendReceipt) -> list[Position]:
    """Of an entry that the broker had before it does not say where."""
    if receipt.duplicate:
        return [()] * out.count
    return [(receipt.ledger, receipt.entry, index) for index in range(out.count)]
