"""What all connections of the server share: its one Broker, topics, offsets and message ids."""

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from zlib import crc32

from mqbridge.adapter.receipt import MessageFailure
from mqbridge.errors import Failure, MqbridgeError, RequestRefused
from mqbridge.listener.number_reader import NumberReader
from mqbridge.listener.server import Services
from mqbridge.listener.topics import ListenedTopic
from mqbridge.message import Message, Partition, Position, Unit
from mqbridge.net.addresses import split_address
from mqbridge.net.tasks import spawn
from mqbridge.tubemq.mapping.unit_format import NAME
from mqbridge.tubemq.server.refusals import CodedRefusal
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.string_formats import DEFAULT_BROKER_PORT, Broker, PartitionRef

log = logging.getLogger(__name__)

BROKER_ID = 1_000_000_000
"""Id of the one Broker that clients see; the same at every gateway. Real Brokers have small ids: a consumer that comes from
one, and has partitions of it still, tells the two apart and goes on with both."""
MIN_MESSAGE_BYTES, MAX_MESSAGE_BYTES, HEADROOM_BYTES = 1 << 20, 20 << 20, 10 << 10
"""The smallest and largest limit of messages that a cluster of this protocol may have, and what a Broker accepts beyond it."""
INDEX_BYTES = 28
"""Bytes of a Broker's index per message: an offset is a position in the index. Clients take offsets as they are, and tools divide
them by this."""
MAX_KNOWN_TOPICS = 20_000
"""Maximum number of topics that are remembered for sends."""
MAX_ASKED_TOGETHER = 20
"""Maximum number of topics that the cluster is asked for at the same time for one request."""
_ID_MASK = (1 << 63) - 1
_ID_FACTOR = 0x5851F42D4C957F2D
"""An odd number: so different numbers of a partition have different ids."""


class ServedBroker:
    """See the module."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.is_draining = False
        self._topics: dict[str, ListenedTopic] = {}
        """Topics as they were found last, by name."""
        self._id_bases: dict[tuple[str, str], int] = {}
        """By topic and partition in the cluster."""
        self.totals: Counter[str] = Counter()
        """Totals: messages and bytes received and delivered, and messages delivered again."""

    # --- topics -----------------------------------------------------------------------------------------------------------

    async def find_topic(self, name: str) -> ListenedTopic | None:
        """Return a topic; None if it does not exist. Raises ClusterError."""
        topic = await self.services.topics.find(name)
        if topic is None:
            self._topics.pop(name, None)
        else:
            if len(self._topics) >= MAX_KNOWN_TOPICS:
                self._topics.clear()
            self._topics[name] = topic
        return topic

    async def used_topic(self, name: str) -> ListenedTopic | None:
        """Return a topic that a client wants to use: it is created if it does not exist, and may be. Raises ClusterError."""
        topic = await self.find_topic(name)
        if topic is None and self.services.topics.can_create:
            try:
                await self.services.topics.find_or_create(name)
            except RequestRefused as error:
                log.info("topic %s is not created: %s", name, error)
            topic = await self.find_topic(name)
        return topic

    async def used_topics(self, names: Iterable[str]) -> dict[str, ListenedTopic]:
        """Return those of these topics that exist now, by name, see `used_topic`. Raises ClusterError."""
        limit = asyncio.Semaphore(MAX_ASKED_TOGETHER)

        async def find(name: str) -> ListenedTopic | None:
            async with limit:
                return await self.used_topic(name)

        wanted = sorted(set(names))
        found = await asyncio.gather(*(find(name) for name in wanted))
        return {name: topic for name, topic in zip(wanted, found, strict=True) if topic is not None}

    def known_topic(self, name: str) -> ListenedTopic | None:
        """Return a topic as it was found last, which may be outdated; None if it was not found yet."""
        return self._topics.get(name)

    async def partition_topic(self, name: str, partition: int) -> ListenedTopic:
        """Return a topic that has this partition. Raises CodedRefusal, ClusterError."""
        topic = self._topics.get(name)
        if topic is None or partition not in topic.partitions:
            topic = await self.find_topic(name)
        if topic is None:
            raise CodedRefusal(f"topic {name} does not exist", codes.FORBIDDEN)
        if partition not in topic.partitions:
            raise CodedRefusal(f"topic {name} has no partition {partition} now", codes.FORBIDDEN)
        return topic

    @property
    def max_message_bytes(self) -> int:
        """Maximum size of a message with its attributes, as clients are told."""
        return min(MAX_MESSAGE_BYTES, self.services.max_message_bytes() or MAX_MESSAGE_BYTES)

    # --- the Broker as clients see it -------------------------------------------------------------------------------------

    def address(self, at: str) -> Broker:
        """Return the Broker for a client that has reached us at this address."""
        host, port = split_address(at, DEFAULT_BROKER_PORT)
        return Broker(BROKER_ID, host, port)

    def checksum(self, at: str) -> int:
        """Return the version of the list of Brokers: another one at another address, the same after a restart. Never -1, -2."""
        return crc32(str(self.address(at)).encode())

    def ref(self, at: str, topic: str, partition: int) -> PartitionRef:
        """Return a partition for a client that has reached us at this address."""
        return PartitionRef(self.address(at), topic, partition)

    # --- offsets and ids --------------------------------------------------------------------------------------------------

    @property
    def offset_step(self) -> int:
        """What one message adds to an offset, where numbers count messages; otherwise offsets are the numbers themselves."""
        return INDEX_BYTES if self.services.numbering.dense else 1

    def offset(self, number: int) -> int:
        """Return the offset of the message with this number."""
        return number * self.offset_step

    def number(self, offset: int) -> int:
        """Return the number for an offset of a client; one between two messages is rounded down, as a Broker does."""
        return offset // self.offset_step

    def position(self, number: int) -> Position:
        """Return the position with a number. Raises CodedRefusal if there is none."""
        try:
            return self.services.numbering.position(number)
        except ValueError as error:
            raise CodedRefusal(f"{self.offset(number)} is not an offset: {error}", codes.BAD_REQUEST) from error

    async def bounds_of(self, topic: ListenedTopic, partition: int) -> tuple[int, int]:
        """Return the number of the first message of a partition, and that of its next one. Raises ClusterError."""
        bounds = await self.services.partitions.bounds(topic, partition)
        number = self.services.numbering.number
        return number(bounds.first), number(bounds.next)

    def open_reader(self, topic: ListenedTopic, partition: int) -> NumberReader:
        """Return a reader of a partition, which reads from any number on."""
        services = self.services
        source = partial(services.partitions.source, topic, partition)
        return NumberReader(source, services.numbering, NAME, services.memory)

    def message_ids(self, topic: ListenedTopic, partition: int, numbers: Sequence[int]) -> Sequence[int]:
        """Return the ids of messages, by their numbers: the same at every gateway, and different within the partition."""
        key = topic.backing, topic.partition(partition)
        if (base := self._id_bases.get(key)) is None:
            if len(self._id_bases) >= MAX_KNOWN_TOPICS:
                self._id_bases.clear()
            digest = hashlib.blake2b("\0".join(key).encode("utf-8", "surrogatepass"), digest_size=8).digest()
            base = self._id_bases[key] = int.from_bytes(digest, "big")
        return [(base + number * _ID_FACTOR) & _ID_MASK for number in numbers]

    # --- messages that cannot be read -------------------------------------------------------------------------------------

    def quarantine(self, topic: ListenedTopic, partition: int, number: int, unit: Unit, problem: str) -> None:
        """Store a unit that cannot be read as a dead letter; clients go on behind it."""
        log.error("message %d of %s/%d cannot be read, and is skipped: %s", number, topic.backing, partition, problem)
        spawn(self._put_away(topic, partition, number, unit, problem), f"quarantine of {topic.backing}/{partition}/{number}")

    async def _put_away(self, topic: ListenedTopic, partition: int, number: int, unit: Unit, problem: str) -> None:
        source = Partition(self.services.cluster, topic.backing, topic.partition(partition), partition)
        message = Message(unit.data, position=self.services.numbering.position(number))
        try:
            letters = await self.services.open_dead_letters()
            failure = MessageFailure(0, Failure.REFUSED, problem)
            receipt = await letters.send(0, letters.make(str(source), [message], [failure], source))
            if receipt.failures:
                log.error("it is no dead letter either: %s", receipt.failures[0].reason)
        except MqbridgeError as error:
            log.error("it is no dead letter either: %s", error)  # noqa: TRY400 - expected

    # --- figures ----------------------------------------------------------------------------------------------------------

    def count_received(self, size: int) -> None:
        """Count a received message."""
        self.totals["received_messages"] += 1
        self.totals["received_bytes"] += size

    def count_delivered(self, messages: int, size: int, *, again: bool) -> None:
        """Count delivered messages."""
        self.totals["delivered_messages"] += messages
        self.totals["delivered_bytes"] += size
        if again:
            self.totals["redelivered_messages"] += messages
