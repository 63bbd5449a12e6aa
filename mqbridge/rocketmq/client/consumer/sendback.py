"""Sends messages back: a group gets them again later through its retry topic, or they go to its dead letter topic.

The broker that has a message copies its stored record to one of these topics, and the consumer acknowledges the original. If the
broker cannot copy it (it is down, or the record was deleted), we send the copy as a new message to the retry topic, at any broker
that has the topic.
"""

import logging
import random
import time

from mqbridge.errors import ClusterError, Failure, ProtocolError
from mqbridge.rocketmq.client.connection.base_client import BaseClient
from mqbridge.rocketmq.client.connection.brokers import Brokers
from mqbridge.rocketmq.client.connection.route import queue_label
from mqbridge.rocketmq.client.consumer.subscription import retry_topic
from mqbridge.rocketmq.wire import ids, properties
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import STORED, Code
from mqbridge.rocketmq.wire.delay_levels import retry_level
from mqbridge.rocketmq.wire.headers.groups import SendBackHeader
from mqbridge.rocketmq.wire.headers.send import SendHeader
from mqbridge.rocketmq.wire.properties import Name
from mqbridge.rocketmq.wire.record import Record, SysFlag

log = logging.getLogger(__name__)

MAX_REDELIVERIES = 16
"""Number of redeliveries after which a message becomes a dead letter (the Java clients' default)."""
BROKER_CHOOSES = 0
"""Delay level: the broker chooses the delay, 10 s for the first redelivery, and longer for each later one."""
DEAD_LETTER = -1
"""Delay level: the message goes to the dead letter topic."""
# Properties of the copy that we set ourselves, or that would change how the broker handles it.
_NEVER_COPIED = frozenset({Name.TRAN_MSG, Name.DELAY, Name.RETRY_TOPIC, Name.RECONSUME_TIME, Name.MAX_RECONSUME_TIMES})


class SendBack:
    """Sends messages back for one group. After `max_redeliveries` redeliveries a message becomes a dead letter."""

    def __init__(self, client: BaseClient, group: str, *, max_redeliveries: int = MAX_REDELIVERIES) -> None:
        self._brokers = Brokers(client)
        self._group, self._max_redeliveries = group, max_redeliveries

    async def redeliver(self, queue: Queue, record: Record, level: int = BROKER_CHOOSES) -> None:
        """Redeliver `record` of `queue` after the delay of `level`: a delay level from 1 to 18, BROKER_CHOOSES or DEAD_LETTER.

        Raises ClusterError if the broker does not send the record back and the copy cannot be sent either.
        """
        ext = SendBackHeader(
            record.physical_offset,
            self._group,
            level,
            origin_msg_id=ids.offset_id(record.store_host, record.physical_offset),
            origin_topic=queue.topic,
            max_reconsume_times=self._max_redeliveries,
        ).encode()
        try:
            await self._brokers.request(queue, Code.CONSUMER_SEND_MSG_BACK, ext)
        except ClusterError as error:
            log.warning(
                "the message at offset %d of queue %s could not be sent back, sending a copy to retry topic %s instead: %s",
                record.queue_offset,
                queue_label(queue),
                retry_topic(self._group),
                error,
            )
            await self._send_copy(queue, record, level)

    async def move_to_dead_letters(self, queue: Queue, record: Record) -> None:
        """Move `record` of `queue` to the group's dead letter topic. Raises ClusterError."""
        await self.redeliver(queue, record, DEAD_LETTER)

    async def _send_copy(self, queue: Queue, record: Record, level: int) -> None:
        """Send a copy of the record to the retry topic.

        A broker moves a copy whose `reconsume_times` exceeds the maximum to the dead letter topic; DEAD_LETTER relies on this.
        """
        topic = retry_topic(self._group)
        reconsume_times = self._max_redeliveries + 1 if level == DEAD_LETTER else record.reconsume_times + 1
        target = await self._random_queue(topic)
        ext = SendHeader(
            producer_group=self._group,  # access control checks the permission of the consumer group
            topic=topic,
            queue_id=target.id,
            born_timestamp=time.time_ns() // 1_000_000,
            properties=_copy_properties(queue, record, level).decode(),
            # These bits are only set if the body could not be decompressed and is sent as it is.
            sys_flag=record.sys_flag & (SysFlag.COMPRESSED | SysFlag.COMPRESSION),
            flag=record.flag,
            reconsume_times=reconsume_times,
            max_reconsume_times=self._max_redeliveries,
        ).encode()
        await self._brokers.request(target, Code.SEND_MESSAGE_V2, ext, record.body, accept=STORED)

    async def _random_queue(self, topic: str) -> Queue:
        """Return any writable queue of the topic. Raises ClusterError (REFRESH) if there is none."""
        route = await self._brokers.client.routes.get(topic)
        queues = route.write_queues() if route is not None else ()
        if not queues:
            raise ClusterError(f"topic {topic} has no writable queue now", Failure.REFRESH)
        return random.choice(queues)  # noqa: S311 - spreads load


def _copy_properties(queue: Queue, record: Record, level: int) -> bytes:
    """Return the properties of the copy: those of the record, its original topic and id, and, unless DEAD_LETTER, the delay."""
    try:
        pairs = properties.decode(record.properties)
    except ProtocolError:  # properties that cannot be decoded cannot be sent either
        pairs = []
    original = dict(pairs)
    pairs = [pair for pair in pairs if pair[0] not in _NEVER_COPIED]
    pairs.append((Name.RETRY_TOPIC, original.get(Name.RETRY_TOPIC, queue.topic)))
    if Name.ORIGIN_MESSAGE_ID not in original:
        origin = original.get(Name.UNIQ_KEY) or ids.offset_id(record.store_host, record.physical_offset)
        pairs.append((Name.ORIGIN_MESSAGE_ID, origin))
    if level != DEAD_LETTER:
        delay_level = retry_level(record.reconsume_times) if level == BROKER_CHOOSES else level
        pairs.append((Name.DELAY, str(delay_level)))
    return properties.encode(pairs)
