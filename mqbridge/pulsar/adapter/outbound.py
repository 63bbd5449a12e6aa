"""Producing to one topic: a producer per partition, opened when the first batch for it comes."""

import asyncio
import base64
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial

from mqbridge.adapter import OutboundSpec, Receipt
from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Partition, Position, Share
from mqbridge.pulsar.adapter.config import PulsarOutboundOptions
from mqbridge.pulsar.adapter.lane import newest_message
from mqbridge.pulsar.adapter.topics import Topics
from mqbridge.pulsar.client.client import PulsarClient
from mqbridge.pulsar.client.producer import Producer
from mqbridge.pulsar.client.sending import SendReceipt
from mqbridge.pulsar.client.subscription import reader
from mqbridge.pulsar.mapping.request import EncodedEntry, Limits, encode
from mqbridge.pulsar.wire.compression import NAMES
from mqbridge.pulsar.wire.hashing import java_string_hash, murmur3_32
from mqbridge.pulsar.wire.ids import LATEST
from mqbridge.receipts import ReceiptAggregator, closed

READ_BACK_TIMEOUT_S = 10.0
KEY_MEMO = 16384
"""Hashes remembered; keys repeat, and hashing one takes longer than looking it up."""


class PulsarOutbound:
    """A way into one topic."""

    def __init__(
        self, client: PulsarClient, topics: Topics, spec: OutboundSpec, targets: Sequence[Partition], max_message_size: int
    ) -> None:
        assert spec.options is None or isinstance(spec.options, PulsarOutboundOptions)  # noqa: S101 - by the registry
        options = spec.options or PulsarOutboundOptions()
        self.partitions = len(targets)
        self._client, self._spec, self._options = client, spec, options
        self._names = [topics.concrete(partition) for partition in targets]
        # An entry that the broker refuses would take all of its messages with it, so only a message that is too large by itself
        # may make one.
        self._limits = Limits(options.batch_messages, min(options.batch_bytes, max_message_size))
        self._producers: dict[int, Producer] = {}
        self._hash = _java_hash if options.key_hash == "java" else murmur3_32
        self._closed = False

    def send(self, partition: int, share: Share) -> "asyncio.Future[Receipt]":
        """Send in order; the receipt's positions are those of the entries."""
        if self._closed:
            return closed(repr(self._spec.topic))
        prefix = self._spec.origin_prefix(share.batch)
        entries, failures = encode(share.messages, prefix, self._limits)
        producer = self._producers.get(partition) or self._open(partition)
        receipt = ReceiptAggregator(len(share), failures)
        for out in entries:
            receipt.wait_for(producer.send(out.metadata, out.payload, out.count), out.indexes, partial(_positions, out))
        return receipt.sent()

    def encodes(self, format: str) -> bool:  # noqa: A002 - the contract's word for it
        """None yet."""
        return False

    def partition_of(self, key: bytes) -> int:
        """By the hash of the options; a key that is no text counts as its base64 form, as it does for Java producers."""
        return self._hash(key) % self.partitions

    def _open(self, partition: int) -> Producer:
        producer = self._producers[partition] = self._client.producer(
            self._names[partition],
            name=self._options.producer_name,
            codec=NAMES[self._options.compression],
            max_elapsed_s=self._spec.max_elapsed_s,
        )
        return producer

    async def resume(self, source: Partition) -> Mapping[int, Position]:
        """Not yet."""
        raise ClusterError(f"what {self._spec.topic!r} holds of {source} cannot be told yet", Failure.FATAL)

    async def last_origin(self, partition: int) -> str | None:
        """The origin stamped on the newest message. Raises ClusterError."""
        consumer = await self._client.consumer(self._names[partition], reader(LATEST))
        try:
            message = await newest_message(consumer, READ_BACK_TIMEOUT_S)
        except TimeoutError as error:
            raise ClusterError(f"the newest message of {self._names[partition]} did not come") from error
        finally:
            await consumer.close()
        return None if message is None else message.origin

    async def close(self, deadline: float | None = None) -> None:
        """Wait for what is in flight, then let go."""
        self._closed = True
        await asyncio.gather(*(producer.close() for producer in self._producers.values()))


@lru_cache(maxsize=KEY_MEMO)
def _java_hash(key: bytes) -> int:
    try:
        return java_string_hash(key.decode())
    except UnicodeDecodeError:
        return java_string_hash(base64.b64encode(key).decode())


def _positions(out: EncodedEntry, receipt: SendReceipt) -> list[Position]:
    return [(receipt.ledger, receipt.entry, index) for index in range(out.count)]
