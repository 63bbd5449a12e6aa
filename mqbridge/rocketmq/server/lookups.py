"""Looks messages up: by physical offset, by unique id, by key.

There is no index: a search reads the messages of the time that the client names, at most MAX_SCANNED of each queue, and says so
if it has not seen all.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import NamedTuple

from mqbridge.errors import ClusterError, MqbridgeError
from mqbridge.listener.topics import ListenedTopic
from mqbridge.message import Unit
from mqbridge.rocketmq.server.broker import Broker, queue_name
from mqbridge.rocketmq.server.connection import ServedConnection
from mqbridge.rocketmq.server.physical_offsets import numbers_at
from mqbridge.rocketmq.server.refusals import CodedRefusal
from mqbridge.rocketmq.server.sends import properties_of, unique_id_of
from mqbridge.rocketmq.wire.codes import Status
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.headers.query import QueryHeader, QueryResult, ViewHeader
from mqbridge.rocketmq.wire.properties import Name, find

MAX_SCANNED = 100_000
"""Maximum number of messages of a queue that a search reads."""
SCAN_S = 2.0
"""Maximum time of a search."""
SCAN_BYTES, SCAN_MESSAGES = 1 << 20, 1024
"""How much is read at once."""
MAX_FOUND = 64
"""Maximum number of messages in an answer, as with brokers."""
MAX_FOUND_BYTES = 8 << 20
"""Maximum bytes of an answer."""
READ_S = 2.0
"""Maximum time for reading one message."""


class Found(NamedTuple):
    """A stored message, and where it is."""

    topic: ListenedTopic
    queue: int
    number: int
    unit: Unit


class Lookups:
    """See the module."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    # --- by physical offset -----------------------------------------------------------------------------------------------

    async def view(self, link: ServedConnection, request: Command) -> Command:
        """Serve VIEW_MESSAGE_BY_ID."""
        header = ViewHeader.decode(request.ext)
        found = await self.find(header.offset, header.topic, None)
        return request.answer(body=self._encode(link, [found]))

    async def find(self, physical_offset: int, topic_name: str | None, unique_id: str | None) -> Found:
        """Return a message by its physical offset. Raises CodedRefusal if there is none, or if it is not clear which one it is.

        The topic is needed if several queues have the same digest; a `unique_id` that the message does not have excludes it.
        """
        found = []
        for topic, queue, number in await self._candidates(physical_offset, topic_name):
            unit = await self.read(topic, queue, number)
            if unit is not None and (unique_id is None or unique_id_of(unit) in (None, unique_id)):
                found.append(Found(topic, queue, number, unit))
        if len(found) != 1:
            problem = f"there is no message at the physical offset {physical_offset}"
            if found:
                problem = f"several messages have the physical offset {physical_offset}: name the topic"
            raise CodedRefusal(problem, Status.SYSTEM_ERROR)
        return found[0]

    async def _candidates(self, physical_offset: int, topic_name: str | None) -> list[tuple[ListenedTopic, int, int]]:
        """Return the queues and numbers with this physical offset: of one topic, or of all that clients see."""
        names = await self._broker.services.topics.names() if topic_name is None else [topic_name]
        found = []
        for name in names:
            topic = await self._broker.find_topic(name)
            for queue in () if topic is None else sorted(topic.partitions):
                assert topic is not None  # noqa: S101 - it has queues
                first, end = await self._broker.bounds_of(topic, queue)
                numbers = numbers_at(queue_name(topic, queue), physical_offset, first, end)
                found += [(topic, queue, number) for number in numbers]
        return found

    async def read(self, topic: ListenedTopic, queue: int, number: int) -> Unit | None:
        """Return the message with this offset; None if there is none any more. Raises ClusterError."""
        reader = self._broker.open_reader(topic, queue)
        try:
            async with asyncio.timeout(READ_S):
                found = await reader.read(number, 1, 1)
        except TimeoutError:
            raise ClusterError(f"message {number} of {topic.name}/{queue} cannot be read now") from None
        finally:
            await reader.close(asyncio.get_running_loop().time() + 1.0)
        if not found.numbers or found.numbers[0] != number:
            return None
        return found.units[0] if found.units else self._broker.units_of(found.messages or (), topic, queue)[0]

    def _encode(self, link: ServedConnection, found: Sequence[Found]) -> bytes:
        encode = self._broker.encode
        return b"".join([encode(each.topic, each.queue, link.host, [each.unit], [each.number])[0] for each in found])

    # --- by key -----------------------------------------------------------------------------------------------------------

    async def query(self, link: ServedConnection, request: Command) -> Command:
        """Serve QUERY_MESSAGE."""
        header = QueryHeader.decode(request.ext)
        topic = await self._broker.find_topic(header.topic)
        if topic is None:
            raise CodedRefusal(f"topic {header.topic} does not exist", Status.QUERY_NOT_FOUND)
        found: list[Found] = []
        try:
            async with asyncio.timeout(SCAN_S):
                problem = await self._search(topic, header, found)
        except TimeoutError:
            problem = f"the search has ended after {SCAN_S:g} s: name a shorter time"
        if not found:
            raise CodedRefusal(f"no message with this key was found. {problem}".strip(), Status.QUERY_NOT_FOUND)
        newest = max(each.unit.published_ms or 0 for each in found)
        result = QueryResult(newest, 0)
        return request.answer(Status.SUCCESS, result.encode(), self._encode(link, found), problem or None)

    async def _search(self, topic: ListenedTopic, header: QueryHeader, found: list[Found]) -> str:
        """Add the messages with a key to `found`; return why there may be more, or nothing. Raises ClusterError."""
        wanted, size, problem = min(max(1, header.max_num), MAX_FOUND), 0, ""
        matches = _has_id(header.key) if header.unique_key else _has_key(header.key)
        for queue in sorted(topic.partitions):
            scanned = 0
            async with aclosing(self._scan(topic, queue, header.begin_timestamp, header.end_timestamp)) as scan:
                async for each in scan:
                    scanned += 1
                    if matches(each.unit):
                        size += len(each.unit.data)
                        if found and size > MAX_FOUND_BYTES:
                            return f"more messages exceed the {MAX_FOUND_BYTES} bytes of an answer: name a shorter time"
                        found.append(each)
                    if len(found) >= wanted:
                        return problem
                    if scanned >= MAX_SCANNED:
                        problem = f"only the first {MAX_SCANNED} messages of each queue were searched: name a shorter time"
                        break
        return problem

    async def _scan(self, topic: ListenedTopic, queue: int, begin_ms: int, end_ms: int) -> AsyncGenerator[Found, None]:
        """Yield the messages of a queue that were stored in this time, in order."""
        services = self._broker.services
        number_of = services.numbering.number
        try:
            number = number_of(await services.partitions.position_at(topic, queue, max(0, begin_ms)))
        except MqbridgeError:
            number = number_of((await services.partitions.bounds(topic, queue)).first)
        end = number_of((await services.partitions.bounds(topic, queue)).next)
        reader = self._broker.open_reader(topic, queue)
        try:
            while number < end:
                read = await reader.read(number, SCAN_MESSAGES, SCAN_BYTES)
                units = read.units if read.units is not None else self._broker.units_of(read.messages or (), topic, queue)
                for unit, each in zip(units, read.numbers, strict=True):
                    if (unit.published_ms or 0) > end_ms:
                        return
                    yield Found(topic, queue, each, unit)
                number = read.next
        finally:
            await reader.close(asyncio.get_running_loop().time() + 1.0)


def _has_key(key: str) -> Callable[[Unit], bool]:
    encoded = key.encode()

    def matches(unit: Unit) -> bool:
        if not encoded or encoded not in unit.data:
            return False
        properties = properties_of(unit)
        return key in (find(properties, Name.KEYS) or "").split(" ") or find(properties, Name.UNIQ_KEY) == key

    return matches


def _has_id(unique_id: str) -> Callable[[Unit], bool]:
    encoded = unique_id.encode()
    return lambda unit: encoded in unit.data and unique_id_of(unit) == unique_id
