"""Sending messages back: delivered again later through the group's retry topic, or put aside in its dead letter topic.

Sending back means: this one is done with, a copy comes again. The broker makes the copy from the stored record. When it cannot
(it is down, or the record is gone), the copy is sent as a message of its own to the retry topic, at whichever broker has it.
"""

import logging
import random
import time

from mqbridge.errors import ClusterError, Failure, ProtocolError
from mqbridge.rocketmq.client.base_client import BaseClient
from mqbridge.rocketmq.client.brokers import Brokers
from mqbridge.rocketmq.client.subscription import retry_topic
from mqbridge.rocketmq.wire import ids, properties
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.codes import STORED, Code
from mqbridge.rocketmq.wire.delay_levels import retry_level
from mqbridge.rocketmq.wire.headers.groups import SendBackHeader
from mqbridge.rocketmq.wire.headers.send import SendHeader
from mqbridge.rocketmq.wire.properties import Name
from mqbridge.rocketmq.wire.record import Record, SysFlag

log = logging.getLogger(__name__)

MAX_TIMES = 16
"""After so many deliveries a message goes to the dead letter topic (the Java clients' default)."""
BROKER_CHOOSES = 0
"""Delay level: 10 s at first, later longer."""
DEAD = -1
_NEVER_COPIED = frozenset({Name.TRAN_MSG, Name.DELAY, Name.RETRY_TOPIC, Name.RECONSUME_TIME, Name.MAX_RECONSUME_TIMES})


class SendBack:
    """Sends messages of one group back."""

    def __init__(self, client: BaseClient, group: str, *, max_times: int = MAX_TIMES) -> None:
        self._brokers, self._group, self._max_times = Brokers(client), group, max_times

    async def later(self, queue: Queue, record: Record, level: int = BROKER_CHOOSES) -> None:
        """Have `record`, which came from `queue`, delivered again after the delay of `level` (1 to 18). Raises ClusterError."""
        ext = SendBackHeader(
            record.physical_offset,
            self._group,
            level,
            origin_msg_id=ids.offset_id(record.store_host, record.physical_offset),
            origin_topic=queue.topic,
            max_reconsume_times=self._max_times,
        ).encode()
        try:
            await self._brokers.ask(queue, Code.CONSUMER_SEND_MSG_BACK, ext)
        except ClusterError as error:
            log.warning("%s could not be sent back, a copy is sent to the retry topic: %s", record, error)
            await self._send_copy(queue, record, level)

    async def dead(self, queue: Queue, record: Record) -> None:
        """Put `record` into the group's dead letter topic. Raises ClusterError."""
        await self.later(queue, record, DEAD)

    async def _send_copy(self, queue: Queue, record: Record, level: int) -> None:
        topic = retry_topic(self._group)
        times = self._max_times + 1 if level == DEAD else record.reconsume_times + 1
        target = await self._some_queue(topic)
        ext = SendHeader(
            producer_group=self._group,  # the consumer group, whose right access control asks for; Java has one for all groups
            topic=topic,
            queue_id=target.id,
            born_timestamp=time.time_ns() // 1_000_000,
            properties=_copied(queue, record, level).decode(),
            sys_flag=record.sys_flag
            & (SysFlag.COMPRESSED | SysFlag.COMPRESSION),  # still set only where the body stayed as stored
            flag=record.flag,
            reconsume_times=times,
            max_reconsume_times=self._max_times,
        ).encode()
        await self._brokers.ask(target, Code.SEND_MESSAGE_V2, ext, record.body, accept=STORED)

    async def _some_queue(self, topic: str) -> Queue:
        route = await self._brokers.client.routes.get(topic)
        queues = route.write_queues() if route is not None else ()
        if not queues:
            raise ClusterError(f"no queue of {topic} can be written to at the moment", Failure.REFRESH)
        return random.choice(queues)  # noqa: S311 - spreads load


def _copied(queue: Queue, record: Record, level: int) -> bytes:
    """The copy's properties: those of the record, where it came from, and how long it waits."""
    try:
        pairs = properties.decode(record.properties)
    except ProtocolError:  # what cannot be read cannot be sent again either
        pairs = []
    known = dict(pairs)
    pairs = [pair for pair in pairs if pair[0] not in _NEVER_COPIED]
    pairs.append((Name.RETRY_TOPIC, known.get(Name.RETRY_TOPIC, queue.topic)))
    if Name.ORIGIN_MESSAGE_ID not in known:
        origin = known.get(Name.UNIQ_KEY) or ids.offset_id(record.store_host, record.physical_offset)
        pairs.append((Name.ORIGIN_MESSAGE_ID, origin))
    if level != DEAD:
        pairs.append((Name.DELAY, str(level or retry_level(record.reconsume_times))))
    return properties.encode(pairs)
