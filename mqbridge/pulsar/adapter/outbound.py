"""Producing to one topic: a producer per partition, opened when the first batch for it comes."""

import asyncio
import base64
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache, partial

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.deadlines import CLOSE_S
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.receipt import Receipt
from mqbridge.errors import RequestTimeout
from mqbridge.message import Partition, Position, Share
from mqbridge.pulsar.adapter.batches import FORMAT
from mqbridge.pulsar.adapter.config import PulsarOutboundOptions
from mqbridge.pulsar.adapter.topics import Topics
from mqbridge.pulsar.client.client import PulsarClient
from mqbridge.pulsar.client.producer import OPEN_TIMEOUT_S, Producer
from mqbridge.pulsar.client.publication import Publication
from mqbridge.pulsar.client.sending import SendReceipt
from mqbridge.pulsar.mapping.passthrough import encode_entries
from mqbridge.pulsar.mapping.request import EncodedEntry, Limits, encode
from mqbridge.pulsar.wire.compression import NAMES
from mqbridge.pulsar.wire.hashing import java_string_hash, murmur3_32
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.ranges import last_stored
from mqbridge.receipts import ReceiptAggregator, closed

KEY_MEMO = 16384
"""Hashes remembered; keys repeat, and hashing one takes longer than looking it up."""


class PulsarOutbound:
    """A way into one topic of `cluster`, which is asked what the topic holds."""

    formats = (FORMAT,)

    def __init__(
        self,
        cluster: Cluster,
        client: PulsarClient,
        topics: Topics,
        spec: OutboundSpec,
        targets: Sequence[Partition],
        max_message_size: int,
    ) -> None:
        assert spec.options is None or isinstance(spec.options, PulsarOutboundOptions)  # noqa: S101 - by the registry
        options = spec.options or PulsarOutboundOptions()
        self.partitions = len(targets)
        self._cluster, self._targets = cluster, targets
        self._fences = False
        self._client, self._spec, self._options = client, spec, options
        self._names = [topics.concrete(partition) for partition in targets]
        # An entry that the broker refuses would take all of its messages with it, so only a message that is too large by itself
        # may make one.
        self._limits = Limits(options.batch_messages, min(options.batch_bytes, max_message_size))
        self._producers: dict[int, Producer] = {}
        self._hash = _java_hash if options.key_hash == "java" else murmur3_32
        self._origin_of = spec.origin_of
        self._closed = False

    def send(self, partition: int, share: Share) -> "asyncio.Future[Receipt]":
        """Send in order; the receipt's positions are those of the entries."""
        if self._closed:
            return closed(repr(self._spec.topic))
        batch = share.batch
        prefix = self._origin_of(batch.partition)
        if batch.format == FORMAT and share.indexes is None and not share.is_edited:
            entries, failures = encode_entries(batch.data, prefix, self._limits)
        else:
            entries, failures = encode(share.messages, prefix, self._limits)
        producer = self._producers.get(partition) or self._open(partition)
        receipt = ReceiptAggregator(share.count, failures)
        for out in entries:
            sent = producer.send(out.metadata, out.payload, out.count, owner=receipt.future)
            receipt.wait_for(sent, out.indexes, partial(_positions, out))
        return receipt.sent()

    def withdraw(self, sends: "Collection[asyncio.Future[Receipt]]") -> None:
        """Entries are on their way while the broker has them and has not answered."""
        owners = frozenset(sends)
        for producer in self._producers.values():
            producer.withdraw(owners)

    def partition_of(self, key: bytes) -> int:
        """By the hash of the options; a key that is no text counts as its base64 form, as it does for Java producers."""
        return self._hash(key) % self.partitions

    def _open(self, partition: int) -> Producer:
        publication = Publication(
            self._options.producer_name,
            NAMES[self._options.compression],
            access=pb.ExclusiveWithFencing if self._fences else pb.Shared,
            max_elapsed_s=self._spec.max_elapsed_s,
            opens_patiently=True,
            fails_in_order=self._spec.ordered,
        )
        producer = self._producers[partition] = self._client.producer(self._names[partition], publication)
        return producer

    async def resume(self, source: Partition, since: Mapping[int, Position] | None = None) -> Mapping[int, Position]:
        """Fences off the producers of outbounds that resumed before, for good.

        The broker closes others too, but a shared producer that comes back was seen to be let in: closing it makes the broker
        forget that there is an exclusive one.
        """
        if not self._fences:
            self._fences = True
            shared, self._producers = self._producers, {}
            await asyncio.gather(*(producer.close() for producer in shared.values()))
        for partition in range(self.partitions):
            if partition not in self._producers:
                self._open(partition)
        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                await asyncio.gather(*(producer.opened() for producer in self._producers.values()))
        except TimeoutError as error:
            raise RequestTimeout(f"no broker lets us produce into {self._spec.topic!r} within {OPEN_TIMEOUT_S:g} s") from error
        partitions = {index: target.name for index, target in enumerate(self._targets)}
        return await last_stored(self._cluster, self._spec.topic, partitions, source, since)

    async def close(self, deadline: float | None = None) -> None:
        """Wait for what is in flight, then let go."""
        self._closed = True
        if deadline is None:
            deadline = asyncio.get_running_loop().time() + CLOSE_S
        await asyncio.gather(*(producer.close(deadline) for producer in self._producers.values()))


@lru_cache(maxsize=KEY_MEMO)
def _java_hash(key: bytes) -> int:
    try:
        return java_string_hash(key.decode())
    except UnicodeDecodeError:
        return java_string_hash(base64.b64encode(key).decode())


def _positions(out: EncodedEntry, receipt: SendReceipt) -> list[Position]:
    return [(receipt.ledger, receipt.entry, index) for index in range(out.count)]
