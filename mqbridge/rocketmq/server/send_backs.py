"""Messages that a consumer could not process: they come again after a while, from the retry topic of their group.

After too many redeliveries, a message is stored in the dead-letter topic of the group instead. A client whose request fails sends
the message itself to the retry topic, with a delay.
"""

import asyncio
import time

from mqbridge.errors import ClusterError, RemoteProtocolError
from mqbridge.listener.publish_queues import PendingSend
from mqbridge.listener.publisher import Stored
from mqbridge.message import Unit
from mqbridge.rocketmq.mapping.sent_units import unit_of_message
from mqbridge.rocketmq.server.broker import Broker, queue_name
from mqbridge.rocketmq.server.connection import ANSWER_S, ServedConnection
from mqbridge.rocketmq.server.lookups import Found, Lookups
from mqbridge.rocketmq.server.physical_offsets import physical_offset
from mqbridge.rocketmq.server.refusals import CodedRefusal
from mqbridge.rocketmq.server.sends import MAX_RETRIES, SendRequests, check_properties
from mqbridge.rocketmq.server.topic_names import dead_topic, is_of_group, retry_topic
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.delay_levels import delay_s, retry_level
from mqbridge.rocketmq.wire.headers.groups import SendBackHeader
from mqbridge.rocketmq.wire.ids import offset_id, parse_offset_id
from mqbridge.rocketmq.wire.neutral_record import read_neutral
from mqbridge.rocketmq.wire.properties import Name, find, join, name_prefix
from mqbridge.wire.text import encode_text

_STATE = (Name.DELAY, Name.REAL_TOPIC, Name.REAL_QID, Name.TIMER_DELIVER_MS, Name.TIMER_DELAY_SEC, Name.TIMER_DELAY_MS)
"""Properties about a delay that has passed."""


class SendBacks:
    """See the module."""

    def __init__(self, broker: Broker, sends: SendRequests, lookups: Lookups) -> None:
        self._broker, self._sends, self._lookups = broker, sends, lookups

    async def serve(self, link: ServedConnection, request: Command) -> Command:
        """Serve CONSUMER_SEND_MSG_BACK."""
        header = SendBackHeader.decode(request.ext)
        found = await self._find(header)
        content = read_neutral(found.unit.data)
        times = content.reconsume_times
        most = MAX_RETRIES if header.max_reconsume_times is None else header.max_reconsume_times
        is_dead = times >= most or header.delay_level < 0
        name = dead_topic(header.group) if is_dead else retry_topic(header.group)
        level = 0 if is_dead else header.delay_level or retry_level(times)
        properties = self._properties(link, found, content.properties, level)
        check_properties(properties)
        again = unit_of_message(
            content.body,
            properties,
            flag=content.flag,
            sys_flag=content.sys_flag,
            born_ms=content.born_timestamp,
            reconsume_times=times + 1,
        )
        topic = await self._broker.writable_topic(name)
        await self.store(topic.name, min(topic.partitions), again, None if is_dead else _now_ms() + 1000 * delay_s(level))
        return request.answer()

    async def _find(self, header: SendBackHeader) -> Found:
        """Return the message that a client names. It may call its topic by the one from which it came at first."""
        names = [retry_topic(header.group)]
        if header.origin_topic is not None:
            names.insert(0, header.origin_topic)
        unique_id = None if _is_offset_id(header.origin_msg_id, header.offset) else header.origin_msg_id
        for name in names:
            try:
                return await self._lookups.find(header.offset, name, unique_id)
            except CodedRefusal:
                continue
        return await self._lookups.find(header.offset, None, unique_id)

    def _properties(self, link: ServedConnection, found: Found, properties: bytes, level: int) -> bytes:
        """Return the property string of a message that comes again."""
        physical = physical_offset(queue_name(found.topic, found.queue), found.number)
        pairs = []
        if find(properties, Name.RETRY_TOPIC) is None and not is_of_group(found.topic.name):
            pairs.append((Name.RETRY_TOPIC, found.topic.name))
        if find(properties, Name.ORIGIN_MESSAGE_ID) is None:
            pairs.append((Name.ORIGIN_MESSAGE_ID, offset_id(link.host, physical)))
        if level:
            pairs.append((Name.DELAY, str(level)))
        return without(properties, _STATE) + encode_text(join(pairs))

    async def store(self, topic_name: str, queue: int, unit: Unit, due_ms: int | None) -> None:
        """Store a message that is due then (ms since the epoch; None: at once). Raises RequestRefused, ClusterError."""
        services = self._broker.services
        topic = await self._broker.writable_topic(topic_name)
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if due_ms is not None and services.parking.is_supported:
            services.parking.deposit(topic, queue, unit, due_ms, lambda error: _settle(stored, error))
        else:
            opened = await self._sends.queues.open(topic, queue)

            def on_stored(result: Stored, _: int) -> None:
                _settle(stored, result.problem)

            opened.publish([PendingSend([unit], on_stored, asyncio.get_running_loop().time() + ANSWER_S)], due_ms)
        await stored


def _is_offset_id(message_id: str | None, offset: int) -> bool:
    """Return True if an id says no more than this physical offset does: some clients send that instead of the unique id."""
    try:
        return message_id is not None and parse_offset_id(message_id)[1] == offset
    except RemoteProtocolError:
        return False


def _settle(stored: "asyncio.Future[None]", error: ClusterError | None) -> None:
    if stored.done():
        return
    if error is None:
        stored.set_result(None)
    else:
        stored.set_exception(error)


def without(properties: bytes, names: tuple[str, ...]) -> bytes:
    """Return a property string without the entries of these names, and with a separator at its end."""
    prefixes = tuple(map(name_prefix, names))
    entries = [entry for entry in properties.split(b"\2") if entry and not entry.startswith(prefixes)]
    return b"".join(entry + b"\2" for entry in entries)


def _now_ms() -> int:
    return round(time.time() * 1000)
