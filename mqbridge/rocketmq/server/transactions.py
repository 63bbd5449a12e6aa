"""Transactions: half messages are stored apart, and become messages when their producers commit them, see `half_messages`."""

import asyncio
import hashlib
import logging
import time
from functools import partial

from mqbridge.adapter.receipt import MessageFailure
from mqbridge.adapter.tools.deadlines import seconds_until
from mqbridge.errors import ClusterError, Failure, MqbridgeError
from mqbridge.listener.internal_topic import InternalTopic
from mqbridge.listener.publish_queues import PendingSend
from mqbridge.listener.publisher import Stored
from mqbridge.message import NO_SOURCE, Message, Unit
from mqbridge.net.tasks import cancel, spawn
from mqbridge.rocketmq.mapping.served_records import RecordPlace, encode_served
from mqbridge.rocketmq.server.broker import ADDED, Broker
from mqbridge.rocketmq.server.connection import ANSWER_S, ServedConnection
from mqbridge.rocketmq.server.half_messages import HalfMessages, OpenHalf, Outcome, PreparedMessage, find_half
from mqbridge.rocketmq.server.physical_offsets import QueueName, physical_base, physical_offset
from mqbridge.rocketmq.server.refusals import CodedRefusal
from mqbridge.rocketmq.server.sends import SendRequests, properties_of, result, unique_id_of
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command
from mqbridge.rocketmq.wire.headers.send import SendHeader
from mqbridge.rocketmq.wire.headers.transactions import COMMIT, ROLLBACK, CheckTransactionHeader, EndTransactionHeader
from mqbridge.rocketmq.wire.ids import offset_id
from mqbridge.rocketmq.wire.properties import Name, find

log = logging.getLogger(__name__)

PARTITION = "half"
"""What stands for the partition of a topic of half messages in physical offsets."""
_OUTCOMES = {COMMIT: Outcome.COMMIT, ROLLBACK: Outcome.ROLLBACK}
LINGER_S = 5.0
"""How long half messages are kept that nobody uses and whose group has no producers here: the end of a transaction may still
come, and a client that has connected again may send before its next heartbeat."""
MAX_LINGERING = 1000
"""Maximum number of groups without producers here whose half messages are kept: a client may make up the names of groups."""
LOOK_S = 60.0
"""Time between two looks for half messages that other gateways have stored."""
MAX_IMMUNE_S = 86_400
"""Maximum time in which a producer does not want to be asked."""


class Transactions:
    """See the module."""

    def __init__(self, broker: Broker, sends: SendRequests) -> None:
        self._broker, self._sends = broker, sends
        self._groups: dict[str, HalfMessages] = {}
        """The half messages of producer groups that have used any, by group. Each group has producers here, or it lingers."""
        self._lingering: dict[str, asyncio.TimerHandle] = {}
        """The timers of the groups that are left when nobody uses their half messages."""
        self._leaving: set[asyncio.Task[None]] = set()
        """Tasks that close half messages that were left."""
        self._is_closed = False
        self._looking: asyncio.Task[None] | None = None
        sends.prepare = self._prepare
        broker.on_producer_group = self._on_producer_group

    def _of(self, group: str) -> HalfMessages:
        """Return the half messages of a producer group. Raises CodedRefusal at the end, and if too many groups linger."""
        known = self._groups.get(group)
        if known is not None:
            return known
        is_here = group in self._broker.clients.producers
        if self._is_closed:
            raise CodedRefusal("the gateway is shutting down", Status.SYSTEM_BUSY)
        if not is_here and len(self._lingering) + len(self._leaving) >= MAX_LINGERING:
            raise CodedRefusal(f"{MAX_LINGERING} producer groups without heartbeats are served already", Status.SYSTEM_BUSY)
        topic = self._topic_of(group)
        made = self._groups[group] = HalfMessages(topic, partial(self._check, group, topic.name), self._commit, self._bury)
        if not is_here:
            self._linger(group, LINGER_S)
        return made

    def start(self) -> None:
        """Begin to look for half messages."""
        self._looking = spawn(self.look_again_and_again(), "half messages of other gateways")

    def _on_producer_group(self, group: str, is_here: bool) -> None:
        """Follow the half messages of a group while it has producers here: others cannot be asked."""
        if is_here and not self._is_closed:
            self._end_lingering(group)
            spawn(self._follow_if_any(group), f"half messages of {group}")
        elif not is_here and group in self._groups:
            self._linger(group, LINGER_S)

    def _linger(self, group: str, time_s: float) -> None:
        """Leave a group after some time, unless it has producers here then; a group has one timer."""
        self._end_lingering(group)
        self._lingering[group] = asyncio.get_running_loop().call_later(time_s, self._leave_if_idle, group)

    def _end_lingering(self, group: str) -> None:
        timer = self._lingering.pop(group, None)
        if timer is not None:
            timer.cancel()

    def _leave_if_idle(self, group: str) -> None:
        """Leave the half messages of a group without producers to other gateways, when nobody has used them for LINGER_S.

        They are not closed while they are used: who stores a half message may follow them then.
        """
        del self._lingering[group]
        left_s = LINGER_S - self._groups[group].idle_s
        if left_s > 0:
            self._linger(group, left_s)
            return
        leaving = spawn(self._groups.pop(group).close(), f"half messages of {group}")
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    async def look_again_and_again(self) -> None:
        """Follow the half messages of groups that another gateway has stored, and perhaps does not serve any more."""
        while True:
            await asyncio.sleep(LOOK_S)
            for group in list(self._broker.clients.producers):
                await self._follow_if_any(group)

    async def _follow_if_any(self, group: str) -> None:
        """Follow the half messages of a group that has some, perhaps of another gateway."""
        known = self._groups.get(group)
        if known is not None and known.is_followed:
            return
        topic = self._topic_of(group) if known is None else known.topic
        try:
            exists = await topic.exists()
        except MqbridgeError as error:
            log.info("whether group %s has half messages is not known now: %s", group, error)
            exists = False
        if exists and group in self._broker.clients.producers and not self._is_closed:
            self._of(group).follow()

    def _topic_of(self, group: str) -> InternalTopic:
        return self._broker.services.internal_topic(f"half-{hashlib.sha256(group.encode()).hexdigest()[:16]}")

    # --- half messages ----------------------------------------------------------------------------------------------------

    async def _prepare(self, link: ServedConnection, request: Command, header: SendHeader, unit: Unit) -> Command:
        """Store a half message, and return the answer."""
        topic = await self._broker.writable_topic(header.topic)
        queue = header.queue_id if header.queue_id >= 0 else min(topic.partitions)
        self._broker.check_queue(topic, queue)
        unique_id = unique_id_of(unit) or ""
        immune = find(properties_of(unit), Name.CHECK_IMMUNITY_TIME_IN_SECONDS) or "0"
        immune_s = min(int(immune), MAX_IMMUNE_S) if immune.isascii() and immune.isdigit() and len(immune) < 10 else 0
        half = PreparedMessage(unique_id, header.topic, queue, header.producer_group, round(time.time() * 1000), immune_s)
        halves = self._of(header.producer_group)
        with halves.in_use():
            position = await halves.add(half, unit)
            if header.producer_group in self._broker.clients.producers:  # otherwise from its first heartbeat on
                halves.follow()
        number = self._broker.services.numbering.number(position)
        physical = physical_offset(QueueName(halves.topic.name, PARTITION), number)
        return result(request, offset_id(link.host, physical), queue, number, unique_id)

    async def end(self, _: ServedConnection, request: Command) -> Command:
        """Serve END_TRANSACTION."""
        header = EndTransactionHeader.decode(request.ext)
        outcome = _OUTCOMES.get(header.commit_or_rollback)
        if outcome is None:
            return request.answer()  # the producer does not know yet
        position = self._broker.position(header.tran_state_table_offset)
        unique_id = header.transaction_id or None
        group = header.producer_group
        known = self._groups.get(group)
        topic = self._topic_of(group) if known is None else known.topic
        found = await find_half(topic, position, unique_id, group)
        if found is None:
            text = f"group {group} has no half message {header.tran_state_table_offset}"
            raise CodedRefusal(text, Status.SYSTEM_ERROR)
        halves = self._of(group)  # nothing is kept for a group that there may not be
        with halves.in_use():
            await halves.end(*found, position, outcome)
        return request.answer()

    async def _commit(self, half: PreparedMessage, unit: Unit) -> None:
        """Store a message in its own topic."""
        topic = await self._broker.writable_topic(half.topic)
        queue = half.queue if half.queue in topic.partitions else min(topic.partitions)
        opened = await self._sends.queues.open(topic, queue)
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_stored(outcome: Stored, _: int) -> None:
            if stored.done():  # whoever waited has given up
                return
            if outcome.problem is None:
                stored.set_result(None)
            else:
                stored.set_exception(outcome.problem)

        opened.publish([PendingSend([unit], on_stored, asyncio.get_running_loop().time() + ANSWER_S)])
        await stored

    async def _bury(self, half: PreparedMessage, unit: Unit) -> None:
        """Store a message as a dead letter whose transaction nobody has ended."""
        letters = await self._broker.services.open_dead_letters()
        reason = f"the transaction {half.id} of producer group {half.group} was neither committed nor rolled back"
        failure = MessageFailure(0, Failure.REFUSED, reason)
        receipt = await letters.send(0, letters.make(half.topic, [Message(unit.data)], [failure], NO_SOURCE))
        if receipt.failures:
            raise ClusterError(receipt.failures[0].reason)

    def _check(self, group: str, topic: str, waiting: OpenHalf, unit: Unit) -> bool:
        """Ask one of the producers of a group how a transaction ends whose half message is in this topic."""
        links = self._broker.clients.producer_links(group)
        if not links:
            return False
        link = links[waiting.checks % len(links)]
        half, number = waiting.half, self._broker.services.numbering.number(waiting.position)
        name = QueueName(topic, PARTITION)
        base = physical_base(name, number)
        place = RecordPlace(half.topic.encode(), half.queue, link.host, base, ADDED)
        body, _ = encode_served([unit._replace(published_ms=half.stored_ms)], [number], place)
        header = CheckTransactionHeader(
            number,
            base + number,
            msg_id=half.id,
            transaction_id=half.id,
            offset_msg_id=offset_id(link.host, base + number),
            topic=half.topic,
        )
        link.notify(Code.CHECK_TRANSACTION_STATE, header, body)
        return True

    async def close(self, deadline: float) -> None:
        """End; what waits stays stored."""
        self._is_closed = True
        await cancel(self._looking)
        groups, self._groups = list(self._groups.values()), {}
        for group in list(self._lingering):
            self._end_lingering(group)
        await asyncio.gather(*(each.close(deadline) for each in groups), return_exceptions=True)
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=seconds_until(deadline))
