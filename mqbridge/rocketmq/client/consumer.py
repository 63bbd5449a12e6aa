"""A member of a consumer group, or a reader of given queues: it divides, takes queues, commits, and gives them back.

Nobody assigns queues. Each member divides them as all others do (`queue_assignment`) and takes its part:
when a broker says that the members changed, when a route changed, every 20 s, and again after 1 s when not everything could be
had. For moments two members may read one queue; at rest each queue has one owner.

The subscriptions never change. The heartbeat that carries them, or a newer version of them, is answered before a pull says so.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

from mqbridge.errors import ClusterError, Failure, ProtocolError
from mqbridge.net.connectivity import level_of
from mqbridge.net.tasks import cancel, spawn
from mqbridge.rocketmq.client.access import AccessRefused
from mqbridge.rocketmq.client.base_client import BaseClient
from mqbridge.rocketmq.client.broker_requests import BrokerRequestHandler
from mqbridge.rocketmq.client.brokers import Brokers
from mqbridge.rocketmq.client.budget import Budget
from mqbridge.rocketmq.client.group_agreement import GroupAgreement
from mqbridge.rocketmq.client.held_queues import HeldQueues
from mqbridge.rocketmq.client.locks import Locks
from mqbridge.rocketmq.client.membership import Membership
from mqbridge.rocketmq.client.offsets import offset_store
from mqbridge.rocketmq.client.pulling import Puller
from mqbridge.rocketmq.client.queue_assignment import QueueAssignment
from mqbridge.rocketmq.client.route import TopicRoute, shown
from mqbridge.rocketmq.client.spec import GroupSpec, Model
from mqbridge.rocketmq.client.stream import QueueStream
from mqbridge.rocketmq.client.topic_policies import TopicPolicies
from mqbridge.rocketmq.wire.bodies.queue import Queue

log = logging.getLogger(__name__)

REBALANCE_S = 20.0
UNBALANCED_S = 1.0
HANDOVER_S = 0.5
"""Before the offset of a queue is read that another member may just be giving back: it commits when it hears of us."""


async def join(client: BaseClient, spec: GroupSpec) -> "GroupConsumer":
    """Make a consumer and start it.

    Raises ClusterError: FATAL for a topic or a group that does not exist, or a bad filter; RETRY while the group has members that
    subscribe to something else.
    """
    consumer = GroupConsumer(client, spec)
    try:
        await consumer.start()
    except BaseException:
        await consumer.close()
        raise
    return consumer


class GroupConsumer:
    """A consumer as `spec` says. `client` is connected; it may serve other groups and producers too, but this group once."""

    def __init__(self, client: BaseClient, spec: GroupSpec) -> None:
        self.spec = spec
        self.name = f"group {spec.group}" if spec.group else "a reader"
        self.budget = Budget(spec.max_bytes)
        self.gaps: dict[Queue, int] = {}
        """Queues that were given back at a gap, and where: taken again when the group's offset is another."""
        self._client = client
        self._brokers = Brokers(client)
        self.membership = Membership(self._brokers, spec)
        self.store = offset_store(spec, self._brokers)
        self.policies = TopicPolicies(self._brokers)
        self._agreement = GroupAgreement(self._brokers, spec.group, self.membership.data(), self.membership.renew)
        self._assignment = QueueAssignment(client, spec, self.membership, self.store)
        self.held = HeldQueues(self.store, Locks(self._brokers, spec.group) if spec.orderly else None)
        self._new: asyncio.Queue[QueueStream | ClusterError | None] = asyncio.Queue()
        self._wake = asyncio.Event()
        self._unwatch: list[Callable[[], None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._closing: asyncio.Task[None] | None = None
        self._disagreement = ""
        """What was told last of members that subscribe to something else."""
        self._loop = asyncio.get_running_loop()

    async def start(self) -> None:
        """Find the topics, join, take queues, and keep doing so. Raises ClusterError."""
        await self._assignment.find_topics(self.name)
        self._unwatch = [self._client.routes.watch(topic, self._route_changed) for topic in self.membership.topics]
        if self._is_member:
            BrokerRequestHandler.of(self._client).admit(self.spec.group, self)
            await self._agreement.check()  # before the first heartbeat, which would replace what the others said
            await self.membership.join()
        self._assignment.joined()
        balanced = await self._rebalance()
        self._tasks = [spawn(self._rebalances(balanced=balanced), f"rocketmq rebalancing of {self.name}")]
        self._tasks += self.held.keep(self.name)

    async def streams(self) -> AsyncIterator[QueueStream]:
        """Queues as they become ours; ends with `close`. Raises ClusterError: close it then.

        RETRY when another member differs, FATAL when a right is missing.
        """
        while (stream := await self._new.get()) is not None:
            if isinstance(stream, ClusterError):
                raise stream
            if not stream.revoked:
                yield stream
        self._new.put_nowait(None)  # for whoever else asks

    async def close(self, deadline: float | None = None) -> None:
        """Give all queues back, keeping what is acknowledged, and leave the group; what is not done at `deadline` is left.

        One task does that, whoever asks for it: a caller that is cancelled stops waiting, another one waits for the same.
        """
        if self._closing is None:
            self._closing = spawn(self._close(deadline), f"rocketmq closing {self.name}")
        await asyncio.shield(self._closing)

    async def _close(self, deadline: float | None) -> None:
        for unwatch in self._unwatch:
            unwatch()
        await cancel(*self._tasks)
        # Queues that are being given away are waited for like the others: theirs is the same task.
        await asyncio.gather(*(stream.release(deadline) for stream in list(self.held.values())))
        member = self._is_member and BrokerRequestHandler.of(self._client).dismiss(self.spec.group, self)
        try:
            async with asyncio.timeout_at(deadline):
                await self.held.unlock_unused(self.held.unused)
                if member:
                    await self.membership.leave()
        except TimeoutError:
            log.warning("%s was left without telling every broker: the deadline has passed", self.name)
        self._new.put_nowait(None)

    @property
    def _is_member(self) -> bool:
        """Whether brokers count us in."""
        return self.spec.model is not Model.ASSIGNED

    # --- what streams need ------------------------------------------------------------------------------------------

    @property
    def commits_with_pulls(self) -> bool:
        """Whether pulls carry the group's offsets to its brokers."""
        return self.store.piggyback

    async def announce(self) -> None:
        """Send a heartbeat."""
        await self._client.heartbeat()

    def look_again(self) -> None:
        """Divide the queues anew, at once."""
        self._wake.set()

    def dropped(self, stream: QueueStream) -> None:
        """A stream is over. If the queue is still ours by division, it is taken again with the next round; see `gaps`."""
        if self.held.get(stream.queue) is stream:
            del self.held[stream.queue]
            if stream.state.gap_at is not None:
                self.gaps[stream.queue] = stream.state.gap_at
            elif self._closing is None:
                self._loop.call_later(UNBALANCED_S, self._wake.set)

    async def leave_gap(self, queue: Queue, offset: int) -> None:
        """An administrator says where to go on with a queue that stands at a gap, or was given back at one."""
        try:
            await self.store.save(queue, offset)
        except (ClusterError, ProtocolError) as error:
            log.warning(
                "%s for %s stays at its gap, offset %d could not be committed: %s", shown(queue), self.name, offset, error
            )
        self._wake.set()

    async def unlock(self, queue: Queue) -> None:
        """Give a queue's lock back."""
        await self.held.unlock({queue})

    # --- dividing ---------------------------------------------------------------------------------------------------

    def _route_changed(self, route: TopicRoute) -> None:
        log.debug("the route of %s changed", route.topic)
        self._wake.set()

    async def _rebalances(self, *, balanced: bool) -> None:
        while True:
            try:
                async with asyncio.timeout(REBALANCE_S if balanced else UNBALANCED_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            balanced = await self._rebalance()

    async def _rebalance(self) -> bool:
        """One round over all topics; whether we hold now what is ours."""
        self._wake.clear()
        await asyncio.gather(*(self._look_at_gap(stream) for stream in self.held.values() if stream.state.rests_at_gap))
        results = await asyncio.gather(self._look_at_others(), *(self._divide(topic) for topic in self.membership.topics))
        return all(results)

    async def _look_at_gap(self, stream: QueueStream) -> None:
        """Give a queue back at whose gap nobody goes on, when somebody has set the group's offset: it is taken again from there.

        Nothing is asked of such a queue, so no answer tells of the reset, and whoever took the stream reads it no more.
        """
        try:
            offset = await self.store.load(stream.queue)
        except (ClusterError, ProtocolError) as error:
            log.debug("the offset of %s, which stands at a gap, is not known: %s", stream, error)
            return
        if offset is not None and offset != stream.committed and stream.state.rests_at_gap:
            log.warning("%s: goes on at offset %d instead of its gap, as somebody has set the group's offset", stream, offset)
            await stream.revoke()

    async def _look_at_others(self) -> bool:
        """Tell who takes our streams, once for each difference, that the group cannot be read like this."""
        try:
            if self._is_member:
                await self._agreement.check()
        except ClusterError as error:
            if str(error) != self._disagreement:
                self._disagreement = str(error)
                log.warning("%s", error)
                self._new.put_nowait(error)
        else:
            self._disagreement = ""
        return True

    async def _divide(self, topic: str) -> bool:
        try:
            mine, alone = await self._assignment.part_of(topic)
        except (ClusterError, ProtocolError) as error:
            log.log(level_of(error, logging.WARNING), "the queues of %s for %s stay as they are: %s", topic, self.name, error)
            return False
        if mine is None:
            return self._assignment.may_stay_missing(topic)
        gone = [stream for queue, stream in self.held.items() if queue.topic == topic and queue not in mine]
        await asyncio.gather(*(stream.revoke() for stream in gone))
        await self.held.unlock_unused({queue for queue in self.held.unused if queue.topic == topic and queue not in mine})
        return await self._take_all([queue for queue in mine if queue not in self.held], alone=alone)

    async def _take_all(self, queues: list[Queue], *, alone: bool) -> bool:
        locked_at = None
        wanted = len(queues)
        if self.held.needs_locks:
            locked_at = self._loop.time()
            queues = await self.held.lock(queues)
        elif queues and not alone:
            await asyncio.sleep(HANDOVER_S)
        taken = await asyncio.gather(*(self._take(queue, locked_at) for queue in queues))
        return sum(taken) == wanted

    async def _take(self, queue: Queue, locked_at: float | None) -> bool:
        """Begin to read a queue that is ours. It counts before its offset is known, so that the first to pull leave it room."""
        self.budget.queues += 1
        try:
            return await self._begin(queue, locked_at)
        finally:
            if queue not in self.held:
                self.budget.queues -= 1

    async def _begin(self, queue: Queue, locked_at: float | None) -> bool:
        try:
            offset, first_start = await self._assignment.start_of(queue)
        except (ClusterError, ProtocolError) as error:
            if isinstance(error, AccessRefused) and error.failure is Failure.FATAL:
                self._new.put_nowait(error)  # waiting does not help
            log.log(level_of(error, logging.WARNING), "%s is ours but cannot be taken yet: %s", shown(queue), error)
            await self.held.unlock_unused({queue})
            return False
        if self.gaps.get(queue) == offset:
            await self.held.unlock_unused({queue})
            return True
        self.gaps.pop(queue, None)
        subscription = self.membership.subscription(queue.topic)
        puller = Puller(self._brokers, self.spec, queue, subscription, self.membership.version)
        stream = QueueStream(self, queue, subscription, puller)
        self.held.add(stream)
        stream.begin(offset, first_start=first_start, locked_at=locked_at)
        self._new.put_nowait(stream)
        return True
