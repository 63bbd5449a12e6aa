"""A member of a consumer group, or a reader of given queues: takes its share of the queues, commits, and releases them.

There is no coordinator. Each member computes the same assignment (`queue_assignment`) and takes its part: when a broker reports
a change of members, when a route changes, every 20 s, and again after 1 s if a queue could not be taken. For moments two members
may read one queue; after that each queue has one owner.

Subscriptions never change. A heartbeat with them, or with a newer version, is answered before a pull uses that version.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

from mqbridge.errors import ClusterError, Failure, ProtocolError
from mqbridge.net.connectivity import level_of
from mqbridge.net.tasks import cancel, spawn
from mqbridge.rocketmq.client.access_errors import AccessRefused
from mqbridge.rocketmq.client.assigned_queue import AssignedQueue
from mqbridge.rocketmq.client.base_client import BaseClient
from mqbridge.rocketmq.client.broker_request_handler import BrokerRequestHandler
from mqbridge.rocketmq.client.brokers import Brokers
from mqbridge.rocketmq.client.budget import Budget
from mqbridge.rocketmq.client.cleanup_policies import CleanupPolicies
from mqbridge.rocketmq.client.consumer_settings import ConsumerSettings, MessageModel
from mqbridge.rocketmq.client.held_queues import HeldQueues
from mqbridge.rocketmq.client.membership import Membership
from mqbridge.rocketmq.client.offset_store import offset_store
from mqbridge.rocketmq.client.pull_request import Puller
from mqbridge.rocketmq.client.queue_assignment import QueueAssignment
from mqbridge.rocketmq.client.queue_locks import QueueLocks
from mqbridge.rocketmq.client.route import TopicRoute, queue_label
from mqbridge.rocketmq.client.subscription_consistency import SubscriptionConsistency
from mqbridge.rocketmq.wire.bodies.queue import Queue

log = logging.getLogger(__name__)

REBALANCE_S = 20.0
UNBALANCED_S = 1.0
HANDOVER_S = 0.5
"""Pause before loading the offset of a queue that another member may be releasing: it commits when it learns of us."""


async def join(client: BaseClient, settings: ConsumerSettings) -> "PullConsumer":
    """Create a consumer and start it.

    Raises ClusterError: FATAL for a topic or a group that does not exist, or a bad filter; RETRY while the group has members that
    subscribe to something else.
    """
    consumer = PullConsumer(client, settings)
    try:
        await consumer.start()
    except BaseException:
        await consumer.close()
        raise
    return consumer


class PullConsumer:
    """A consumer as `settings` says. `client` is connected; it may serve other groups and producers too, but this group once."""

    def __init__(self, client: BaseClient, settings: ConsumerSettings) -> None:
        self.settings = settings
        self.name = f"group {settings.group}" if settings.group else "a reader"
        self.budget = Budget(settings.max_bytes)
        self.gaps: dict[Queue, int] = {}
        """Queues released at a gap, with its offset: taken again once the group's offset differs."""
        self._client = client
        self._brokers = Brokers(client)
        self.membership = Membership(self._brokers, settings)
        self.store = offset_store(settings, self._brokers)
        self.policies = CleanupPolicies(self._brokers)
        self._consistency = SubscriptionConsistency(self._brokers, settings.group, self.membership.data(), self.membership.renew)
        self._assignment = QueueAssignment(client, settings, self.membership, self.store)
        self.held = HeldQueues(self.store, QueueLocks(self._brokers, settings.group) if settings.orderly else None)
        self._new: asyncio.Queue[AssignedQueue | ClusterError | None] = asyncio.Queue()
        self._wake = asyncio.Event()
        self._unwatch: list[Callable[[], None]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._closing: asyncio.Task[None] | None = None
        self._disagreement = ""
        """The last reported error about members with other subscriptions."""
        self._loop = asyncio.get_running_loop()

    async def start(self) -> None:
        """Find the topics, join the group, take queues, and start rebalancing. Raises ClusterError."""
        await self._assignment.find_topics(self.name)
        self._unwatch = [self._client.routes.watch(topic, self._route_changed) for topic in self.membership.topics]
        if self._is_member:
            BrokerRequestHandler.of(self._client).admit(self.settings.group, self)
            await self._consistency.check()  # before the first heartbeat, which replaces the others' subscriptions
            await self.membership.join()
        self._assignment.joined()
        balanced = await self._rebalance()
        self._tasks = [spawn(self._rebalances(balanced=balanced), f"rocketmq rebalancing of {self.name}")]
        self._tasks += self.held.start_tasks(self.name)

    async def assigned_queues(self) -> AsyncIterator[AssignedQueue]:
        """Yield queues as they are assigned to us; ends with `close`. After a ClusterError close the consumer.

        RETRY if another member has other subscriptions, FATAL if a permission is missing.
        """
        while (assigned := await self._new.get()) is not None:
            if isinstance(assigned, ClusterError):
                raise assigned
            if not assigned.revoked:
                yield assigned
        self._new.put_nowait(None)  # for other callers

    async def close(self, deadline: float | None = None) -> None:
        """Release all queues, committing acknowledged messages, and leave the group; at `deadline` it is cut short.

        One task does it: a cancelled caller stops waiting, another caller waits for the same task.
        """
        if self._closing is None:
            self._closing = spawn(self._close(deadline), f"rocketmq closing {self.name}")
        await asyncio.shield(self._closing)

    async def _close(self, deadline: float | None) -> None:
        for unwatch in self._unwatch:
            unwatch()
        await cancel(*self._tasks)
        # Also waits for queues that are being released already: it is the same task.
        await asyncio.gather(*(assigned.release(deadline) for assigned in list(self.held.values())))
        member = self._is_member and BrokerRequestHandler.of(self._client).dismiss(self.settings.group, self)
        try:
            async with asyncio.timeout_at(deadline):
                await self.held.unlock_unused(self.held.unused)
                if member:
                    await self.membership.leave()
        except TimeoutError:
            log.warning("%s was left without unregistering at every broker: the deadline has passed", self.name)
        self._new.put_nowait(None)

    @property
    def _is_member(self) -> bool:
        """True if we are a member of a group."""
        return self.settings.model is not MessageModel.ASSIGNED

    # --- for assigned queues ----------------------------------------------------------------------------------------

    @property
    def commits_with_pulls(self) -> bool:
        """True if pulls carry commits of the group."""
        return self.store.piggyback

    async def announce(self) -> None:
        """Send a heartbeat."""
        await self._client.heartbeat()

    def request_rebalance(self) -> None:
        """Rebalance at once."""
        self._wake.set()

    def dropped(self, assigned: AssignedQueue) -> None:
        """Drop an AssignedQueue that ended. If it is still assigned to us, the next rebalance takes it again (see `gaps`)."""
        if self.held.get(assigned.queue) is assigned:
            del self.held[assigned.queue]
            if assigned.state.gap_at is not None:
                self.gaps[assigned.queue] = assigned.state.gap_at
            elif self._closing is None:
                self._loop.call_later(UNBALANCED_S, self._wake.set)

    async def leave_gap(self, queue: Queue, offset: int) -> None:
        """Commit an administrator's offset for a queue that is at a gap, or was released at one."""
        try:
            await self.store.save(queue, offset)
        except (ClusterError, ProtocolError) as error:
            log.warning(
                "%s for %s stays at its gap, offset %d could not be committed: %s", queue_label(queue), self.name, offset, error
            )
        self._wake.set()

    async def unlock(self, queue: Queue) -> None:
        """Release a queue's lock."""
        await self.held.unlock({queue})

    # --- rebalancing ------------------------------------------------------------------------------------------------

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
        """Rebalance all topics once; return True if we now hold all our queues."""
        self._wake.clear()
        await asyncio.gather(*(self._check_gap(assigned) for assigned in self.held.values() if assigned.state.rests_at_gap))
        results = await asyncio.gather(self._check_subscriptions(), *(self._divide(topic) for topic in self.membership.topics))
        return all(results)

    async def _check_gap(self, assigned: AssignedQueue) -> None:
        """Release a queue that rests at a gap if the group's offset was changed: it is taken again from there.

        Such a queue is not pulled, so no response reports a reset, and its reader has stopped.
        """
        try:
            offset = await self.store.load(assigned.queue)
        except (ClusterError, ProtocolError) as error:
            log.debug("the offset of %s, which is at a gap, could not be loaded: %s", assigned, error)
            return
        if offset is not None and offset != assigned.committed and assigned.state.rests_at_gap:
            log.warning("%s: continuing at offset %d instead of its gap, as the group's offset was changed", assigned, offset)
            await assigned.revoke()

    async def _check_subscriptions(self) -> bool:
        """Report inconsistent subscriptions of the group's members to our caller, once per difference."""
        try:
            if self._is_member:
                await self._consistency.check()
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
            log.log(
                level_of(error, logging.WARNING), "keeping the queues of %s for %s: rebalance failed: %s", topic, self.name, error
            )
            return False
        if mine is None:
            return self._assignment.may_stay_missing(topic)
        gone = [assigned for queue, assigned in self.held.items() if queue.topic == topic and queue not in mine]
        await asyncio.gather(*(assigned.revoke() for assigned in gone))
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
        """Start reading a queue of ours. It counts on the budget before its offset is known, so that others leave it room."""
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
                self._new.put_nowait(error)  # retrying does not help
            log.log(
                level_of(error, logging.WARNING), "%s is assigned to us but cannot be taken yet: %s", queue_label(queue), error
            )
            await self.held.unlock_unused({queue})
            return False
        if self.gaps.get(queue) == offset:
            await self.held.unlock_unused({queue})
            return True
        self.gaps.pop(queue, None)
        subscription = self.membership.subscription(queue.topic)
        puller = Puller(self._brokers, self.settings, queue, subscription, self.membership.version)
        assigned = AssignedQueue(self, queue, subscription, puller)
        self.held.add(assigned)
        assigned.begin(offset, first_start=first_start, locked_at=locked_at)
        self._new.put_nowait(assigned)
        return True
