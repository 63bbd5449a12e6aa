"""Shows the last messages of a partition. No group is moved by it."""

import asyncio
import base64
from collections import deque
from collections.abc import Mapping

from mqbridge.errors import RemoteProtocolError
from mqbridge.listener.number_reader import NumberReader
from mqbridge.listener.topics import ListenedTopic
from mqbridge.message import Unit
from mqbridge.tubemq.mapping.sdk_units import unit_of_message
from mqbridge.tubemq.mapping.served_pack import message_type
from mqbridge.tubemq.mapping.unit_format import split_unit
from mqbridge.tubemq.server.web.answers import Answer, WebRefusal
from mqbridge.tubemq.server.web.context import WebContext
from mqbridge.tubemq.server.web.methods import WebMethod
from mqbridge.tubemq.server.web.requests import Parameters
from mqbridge.tubemq.wire.payload import split_payload

MIN_MESSAGES, MAX_MESSAGES = 3, 50
"""The smallest and the largest number of messages that a Broker shows."""
MAX_SHOWN_BYTES = 4 << 20
"""Maximum bytes of the messages that are shown, except for a single larger one: then older ones are left out."""
READ_S = 10.0
"""Time to read them. What was read until then is shown."""
NO_MESSAGES, NOT_READ = 401, 501
"""Codes of the answer if there are no messages, and if there is no such partition."""


class SnapshotPages:
    """See the module."""

    def __init__(self, context: WebContext) -> None:
        self._context = context

    def methods(self) -> Mapping[str, WebMethod]:
        """Return the methods of the Broker."""
        return {"admin_snapshot_message": WebMethod(self._snapshot)}

    async def _snapshot(self, parameters: Parameters) -> Answer:
        name = parameters.required("topicName")
        index = parameters.number("partitionId", default=0)
        count = parameters.number("msgCount", default=MIN_MESSAGES, lowest=MIN_MESSAGES)
        if count > MAX_MESSAGES:
            raise WebRefusal(f"Over max allowed msgCount value, allowed count is {MAX_MESSAGES}!")
        types = {each.encode("utf-8", "surrogatepass") for each in parameters.names("filterConds")}
        topic = await self._context.broker.find_topic(name)
        if topic is None or index not in topic.partitions:
            last = 0 if topic is None else max(0, topic.count - 1)
            text = f"Get Message failure, exception is Wrong partition value {index},valid partitions in (0,{last})"
            raise WebRefusal(text, NOT_READ)
        shown = [_shown(unit) for unit in await self._read(topic, index, count) if not types or _type(unit) in types]
        if not shown:
            raise WebRefusal(f"Could not find message at position by topic ({name})!", NO_MESSAGES)
        data = [{"index": number} | each for number, each in enumerate(shown)]
        return {"result": True, "errCode": 0, "errMsg": "Success!", "dataSet": data}

    async def _read(self, topic: ListenedTopic, index: int, count: int) -> list[Unit]:
        """Return the last messages of a partition. Raises ClusterError."""
        begin, end, last = await self._range(topic, index, count)
        found: deque[Unit] = deque()
        reader = self._context.broker.open_reader(topic, index)
        try:
            async with asyncio.timeout(READ_S):
                await self._read_range(reader, begin, end, last, count, found)
        except TimeoutError:
            pass  # there may be no message any more before the end
        finally:
            await reader.close()
        return list(found)

    async def _read_range(
        self, reader: NumberReader, begin: int, end: int, last: int | None, count: int, found: "deque[Unit]"
    ) -> None:
        """Read from a number on, up to the end or the last message; keep the newest ones."""
        number, size = begin, 0
        while number < end and (last is None or number <= last):
            taken = await reader.read(number, MAX_MESSAGES, MAX_SHOWN_BYTES)
            units = taken.units if taken.units is not None else [unit_of_message(each) for each in taken.messages or ()]
            for unit_number, unit in zip(taken.numbers, units, strict=True):
                if unit_number >= end:
                    return
                found.append(unit)
                size += len(unit.data)
                while len(found) > count or (size > MAX_SHOWN_BYTES and len(found) > 1):
                    size -= len(found.popleft().data)
            number = taken.next

    async def _range(self, topic: ListenedTopic, index: int, count: int) -> tuple[int, int, int | None]:
        """Return the numbers from which on, and before which, messages are read, and that of the last one if it is known.

        Where numbers do not count messages, this many entries are read up to the last one, of the same segment only.
        """
        services = self._context.broker.services
        bounds = await services.partitions.bounds(topic, index)
        numbering = services.numbering
        first, end = numbering.number(bounds.first), numbering.number(bounds.next)
        last = None if bounds.last is None else numbering.number(bounds.last)
        if numbering.dense:
            return max(first, end - count), end, last
        if bounds.last is None:
            return end, end, last
        segment, entry, *rest = bounds.last
        begin = (segment, max(0, entry - count + 1), *[0 for _ in rest])
        return numbering.number(max(bounds.first, begin)), end, last


def _payload(unit: Unit) -> tuple[bytes | None, bytes]:
    """Return attributes and body; a unit that cannot be read is shown as it is stored."""
    try:
        flag, data = split_unit(unit.data)
    except RemoteProtocolError:
        return None, unit.data
    return split_payload(data, flag)


def _type(unit: Unit) -> bytes | None:
    try:
        flag, data = split_unit(unit.data)
    except RemoteProtocolError:
        return None
    return message_type(data, flag)


def _shown(unit: Unit) -> Answer:
    attributes, body = _payload(unit)
    text = "null" if attributes is None else attributes.decode("utf-8", "replace")
    return {"data": base64.b64encode(body).decode(), "attr": text}
