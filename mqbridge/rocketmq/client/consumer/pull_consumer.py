"""A member of a consumer group, or a reader of given queues: reads its share of the queues, and commits offsets.

There is no coordinator. Each member computes the same assignment (`queue_assignment`) and starts and releases queues accordingly.
It does so (a rebalance) when a broker reports a change of members, when a route changes, every 20 s, and again after 1 s if a
queue could not be started. While members have not all rebalanced, two of them may read the same queue for a moment, unless queues
are locked.

The subscriptions of a consumer never change. Brokers have confirmed a heartbeat with them before the first pull, because they
refuse pulls with a subscription version that they do not know.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping

from mqbridge.errors import ClusterError, Failure, ProtocolError
from mqbridge.net.connectivity import retry_log_level
from mqbridge.net.tasks import cancel, spawn
from mqbridge.rocketmq.client.connection.access_errors import AccessRefused
from mqbridge.rocketmq.client.connection.base_client import BaseClient
from mqbridge.rocketmq.client.connection.brokers import Brokers
from mqbridge.rocketmq.client.connection.route import TopicRoute, queue_label
from mqbridge.rocketmq.client.consumer.assigned_queue import AssignedQueue
from mqbridge.rocketmq.client.consumer.broker_request_handler import BrokerRequestHandler
from mqbridge.rocketmq.client.consumer.budget import PullBudget
from mqbridge.rocketmq.client.consumer.cleanup_policies import CleanupPolicies
from mqbridge.rocketmq.client.consumer.consumer_settings import ConsumerSettings, MessageModel
from mqbridge.rocketmq.client.consumer.held_queues import HeldQueues
from mqbridge.rocketmq.client.consumer.membership import Membership
from mqbridge.rocketmq.client.consumer.offset_store import offset_store
from mqbridge.rocketmq.client.consumer.pull_request import Puller
from mqbridge.rocketmq.client.consumer.queue_assignment import QueueAssignment
from mqbridge.rocketmq.client.consumer.queue_identity import Anchor
from mqbridge.rocketmq.client.consumer.queue_locks import QueueLocks
from mqbridge.rocketmq.client.consumer.subscription_consistency import SubscriptionConsistency
from mqbridge.rocketmq.wire.bodies.queue import Queue

log = logging.getLogger(__name__)

REBALANCE_INTERVAL_S = 20.0
"""Time until the next rebalance, as in the Java clients (rocketmq.client.rebalance.waitInterval)."""
UNBALANCED_INTERVAL_S = 1.0
"""Time until the next rebalance if the last one could not start all queues, or could not query the members."""
HANDOVER_S = 0.5
"""Pause before loading the offset of a queue that another member may be releasing: that member commits its last offset as soon as
a broker reports the change of members to it."""


async def join(client: BaseClient, settings: ConsumerSettings) -> "PullConsumer":
    """Create a consumer and start it.

    Raises ClusterError: FATAL for a topic or a group that does not exist, or an SQL92 expression that a broker cannot use; RETRY
    while the group has members with other subscriptions.
    """
    consumer = PullConsumer(client, settings)
    try:
        await consumer.start()
    except BaseException:
        await consumer.close()
        raise
    return consumer


class PullConsumer:
    """A consumer with these settings. `client` must be connected; it may also have producers, and consumers of other groups."""

    def __init__(self, client: BaseClient, settings: ConsumerSettings) -> None:
        self.settings = settings
        topics = ", ".join(subscription.topic for subscription in settings.subscriptions)
        self.name = f"group {settings.group}" if settings.group else f"a reader of {topics}"
        self.budget = PullBudget(settings.max_bytes)
        self.gaps: dict[Queue, int] = {}
        """Queues that were released at a gap (missing messages), each with the offset of the gap. A rebalance starts such a queue
        again only when the group's offset in it has changed."""
        self._left: dict[Queue, tuple[int, Anchor]] = {}
        """Queues that we have left, each with the offset up to which we had consumed it, and a message that was read. If the
        group is still at this offset when the queue is ours again, nobody has read on, and the message tells if it is the same
        queue."""
        self._client = client
        self._brokers = Brokers(client)
        self.membership = Membership(self._brokers, settings)
        self.store = offset_store(settings, self._brokers)
        self.policies = CleanupPolicies(self._brokers)
        self._consistency = SubscriptionConsistency(
            self._brokers, settings.group, self.membership.subscription_data(), self.membership.announce_newer
        )
        self._assignment = QueueAssignment(client, settings, self.membership, self.store)
        self.held = HeldQueues(self.store, QueueLocks(self._brokers, settings.group) if settings.orderly else None)
        self._events: asyncio.Queue[AssignedQueue | ClusterError | None] = asyncio.Queue()
        """For `assigned_queues`: new queues, errors to raise, and None after `close`."""
        self._rebalance_requested = asyncio.Event()
        self._stop_watching: list[Callable[[], None]] = []
        """Functions that stop watching the routes of our topics."""
        self._tasks: list[asyncio.Task[None]] = []
        self._closing: asyncio.Task[None] | None = None
        """The task of `close`; None before its first call."""
        self._reported_difference = ""
        """Text of the last reported error about members with other subscriptions; empty if the last check found no difference."""
        self._loop = asyncio.get_running_loop()

    async def start(self) -> None:
        """Find the topics, join the group, start our queues, and begin the regular rebalances. Raises ClusterError."""
        await self._assignment.record_initial_queues(self.name)  # queues that are added later start at their first message
        self._stop_watching = [self._client.routes.watch(topic, self._on_route_change) for topic in self.membership.topics]
        if self._is_member:
            BrokerRequestHandler.of(self._client).register(self.settings.group, self)
            # Before our first heartbeat, which replaces the subscriptions of the other members at the brokers.
            await self._consistency.check()
            await self.membership.join()
        self._assignment.mark_joined()
        if self.settings.orderly and self.settings.abandoned:
            await self._release_abandoned_locks()
        balanced = await self._rebalance()
        self._tasks = [spawn(self._rebalance_loop(balanced=balanced), f"rocketmq rebalancing of {self.name}")]
        self._tasks += self.held.start_tasks(self.name)

    async def _release_abandoned_locks(self) -> None:
        """Release the locks of members that were killed: nobody else gets them before they expire, a minute later.

        A broker lists a member until its connection is closed, which a kill does at once. One that is listed is left alone: it
        lives, and reads its queues.
        """
        queues = self._assignment.initial_queues
        try:
            living = await self.membership.living(queues)
        except (ClusterError, ProtocolError) as error:
            log.info(
                "%s: the locks of its earlier members expire within a minute, as members cannot be queried: %s", self.name, error
            )
            return
        for owner in self.settings.abandoned:
            if owner in living:
                log.warning("%s: member %s still lives, so its locks are not released", self.name, owner)
            else:
                await QueueLocks(self._brokers, self.settings.group, owner).unlock(queues)

    async def assigned_queues(self) -> AsyncIterator[AssignedQueue]:
        """Yield queues as they are assigned to us, until `close`.

        Raises ClusterError: RETRY if another member has other subscriptions, FATAL if a permission is missing. The caller then
        closes the consumer.
        """
        while (event := await self._events.get()) is not None:
            if isinstance(event, ClusterError):
                raise event
            if not event.revoked:
                yield event
        self._events.put_nowait(None)  # also ends other iterations of `assigned_queues`

    async def close(self, deadline: float | None = None) -> None:
        """Release all queues, committing acknowledged messages, and leave the group.

        At `deadline` (loop time; None: never) the remaining steps are skipped, and a warning is logged. A task does the work: it
        continues if a caller is cancelled, and further callers wait for the same task, with the first caller's deadline.
        """
        if self._closing is None:
            self._closing = spawn(self._close(deadline), f"rocketmq closing {self.name}")
        await asyncio.shield(self._closing)

    async def _close(self, deadline: float | None) -> None:
        for stop_watching in self._stop_watching:
            stop_watching()
        await cancel(*self._tasks)
        # For a queue that is already being released, this waits for the release in progress.
        await asyncio.gather(*(assigned.release(deadline) for assigned in list(self.held.values())))
        was_registered = self._is_member and BrokerRequestHandler.of(self._client).unregister(self.settings.group, self)
        try:
            async with asyncio.timeout_at(deadline):
                await self.held.unlock_unused(self.held.unused_locks)
                if was_registered:  # otherwise `start` failed early; the client may have another member of the group
                    await self.membership.leave()
        except TimeoutError:
            log.warning("%s was closed at its deadline, before every broker confirmed unlocking and unregistration", self.name)
        self._events.put_nowait(None)

    @property
    def _is_member(self) -> bool:
        """True if we are a member of a group, False if we only read given queues."""
        return self.settings.model is not MessageModel.ASSIGNED

    @property
    def refusals(self) -> Mapping[Queue | str, str]:
        """Why brokers do not permit reading now, by queue, or by topic if none of its queues may be read."""
        topics = dict.fromkeys(
            self._assignment.unreadable_topics, "no broker permits reading the topic (a permission without read)"
        )
        return {queue: why for queue, each in self.held.items() if (why := each.refusal) is not None} | topics

    # --- for assigned queues ----------------------------------------------------------------------------------------

    @property
    def commits_with_pulls(self) -> bool:
        """True if pulls carry commits of the group."""
        return self.store.piggyback

    async def send_heartbeat(self) -> None:
        """Send a heartbeat, which contains our subscriptions, to every broker."""
        await self._client.heartbeat()

    def request_rebalance(self) -> None:
        """Rebalance as soon as the current rebalance, if any, has ended."""
        self._rebalance_requested.set()

    def on_queue_ended(self, assigned: AssignedQueue) -> None:
        """Remove an AssignedQueue that has ended. If the queue is still assigned to us, a rebalance soon starts it again.

        A queue that ended at a gap is added to `gaps` instead, and stays stopped until the group's offset changes.
        """
        if self.held.get(assigned.queue) is assigned:
            del self.held[assigned.queue]
            if assigned.anchor is not None:
                self._left[assigned.queue] = assigned.acknowledged, assigned.anchor
            if assigned.state.gap_at is not None:
                self.gaps[assigned.queue] = assigned.state.gap_at
            elif self._closing is None:
                self._loop.call_later(UNBALANCED_INTERVAL_S, self._rebalance_requested.set)

    async def leave_gap(self, queue: Queue, offset: int) -> None:
        """Commit the offset of an administrator's reset for a queue that is at a gap or was released at one, then rebalance.

        The rebalance finds that the group's offset differs from the gap, and starts the queue at the new offset.
        """
        try:
            await self.store.save(queue, offset)
        except (ClusterError, ProtocolError) as error:
            log.warning(
                "queue %s for %s stays stopped at lost messages, because committing offset %d failed; reset it again: %s",
                queue_label(queue),
                self.name,
                offset,
                error,
            )
        self._rebalance_requested.set()

    async def unlock(self, queue: Queue) -> None:
        """Release the lock of a queue that has ended, at its broker; without effect unless the group is orderly."""
        await self.held.unlock({queue})

    # --- rebalancing ------------------------------------------------------------------------------------------------

    def _on_route_change(self, route: TopicRoute) -> None:
        log.debug("the route of topic %s changed, rebalancing %s", route.topic, self.name)
        self._rebalance_requested.set()

    async def _rebalance_loop(self, *, balanced: bool) -> None:
        """Rebalance at regular intervals and on request. `balanced` is the result of the previous rebalance."""
        while True:
            try:
                async with asyncio.timeout(REBALANCE_INTERVAL_S if balanced else UNBALANCED_INTERVAL_S):
                    await self._rebalance_requested.wait()
            except TimeoutError:
                pass
            balanced = await self._rebalance()

    async def _rebalance(self) -> bool:
        """Rebalance all topics once; return True if we now have all our queues, except those that are stopped at a gap."""
        self._rebalance_requested.clear()
        at_gaps = [assigned for assigned in self.held.values() if assigned.state.rests_at_gap]
        await asyncio.gather(*map(self._release_if_offset_changed, at_gaps))
        results = await asyncio.gather(
            self._check_subscriptions(), *(self._rebalance_topic(topic) for topic in self.membership.topics)
        )
        return all(results)

    async def _release_if_offset_changed(self, assigned: AssignedQueue) -> None:
        """Release a queue that is stopped at a gap if the group's offset was changed; the rebalance then starts it there.

        Such a queue is not pulled, so no response to a pull can report the change.
        """
        try:
            offset = await self.store.load(assigned.queue)
        except (ClusterError, ProtocolError) as error:
            log.debug(
                "loading the offset of %s, which is stopped at lost messages, failed, the next rebalance tries again: %s",
                assigned,
                error,
            )
            return
        if offset is not None and offset != assigned.state.consumed and assigned.state.rests_at_gap:
            log.warning(
                "%s had stopped at lost messages and continues at offset %d, because the group's offset was changed",
                assigned,
                offset,
            )
            assigned.state.keep_committed()
            await assigned.revoke()

    async def _check_subscriptions(self) -> bool:
        """Check that all members have our subscriptions. If not, `assigned_queues` raises the error, once per difference.

        Always returns True, because a difference is no reason for an early next rebalance.
        """
        try:
            if self._is_member:
                await self._consistency.check()
        except ClusterError as error:
            if str(error) != self._reported_difference:
                self._reported_difference = str(error)
                log.warning("%s cannot continue: %s", self.name, error)
                self._events.put_nowait(error)
        else:
            self._reported_difference = ""
        return True

    async def _rebalance_topic(self, topic: str) -> bool:
        """Release the topic's queues that now belong to other members, and start ours; return True if we have all of ours."""
        try:
            own_queues, alone = await self._assignment.own_queues(topic)
        except (ClusterError, ProtocolError) as error:
            log.log(
                retry_log_level(error, logging.WARNING),
                "rebalance of topic %s for %s failed, keeping its queues and retrying: %s",
                topic,
                self.name,
                error,
            )
            return False
        if own_queues is None:  # the route or the members are unknown now, so we keep the queues that we have
            return self._assignment.may_stay_missing(topic)  # False: rebalance again after UNBALANCED_INTERVAL_S
        revoked = [assigned for queue, assigned in self.held.items() if queue.topic == topic and queue not in own_queues]
        if (wait_s := self.settings.release_wait_s) > 0:
            for assigned in revoked:
                assigned.announce_release(wait_s)  # a rebalance does not wait for it: other queues can be started
        else:
            await asyncio.gather(*(assigned.revoke() for assigned in revoked))
        unused_locks = {queue for queue in self.held.unused_locks if queue.topic == topic and queue not in own_queues}
        await self.held.unlock_unused(unused_locks)
        return await self._start_queues([queue for queue in own_queues if queue not in self.held], alone=alone)

    async def _start_queues(self, queues: list[Queue], *, alone: bool) -> bool:
        """Lock these queues if the group is orderly, and start them; return True if all could be started.

        `alone`: no other member can be reading them.
        """
        locked_at = None
        queue_count = len(queues)
        if self.held.needs_locks:
            locked_at = self._loop.time()
            queues = await self.held.lock(queues)
        elif queues and not alone:
            await asyncio.sleep(HANDOVER_S)
        started = await asyncio.gather(*(self._start_queue(queue, locked_at) for queue in queues))
        return sum(started) == queue_count

    async def _start_queue(self, queue: Queue, locked_at: float | None) -> bool:
        """Start reading a queue; return False if it must be tried again.

        `locked_at`: loop time of its lock request; None: it has no lock.

        The budget counts the queue before its offset is known, so that the other queues leave it its share of the memory.
        """
        self.budget.queues += 1
        try:
            return await self._load_offset_and_start(queue, locked_at)
        finally:
            if queue not in self.held:
                self.budget.queues -= 1

    async def _load_offset_and_start(self, queue: Queue, locked_at: float | None) -> bool:
        """Start reading a queue at its offset; return False after an error, which is logged. A queue at its gap stays stopped."""
        try:
            offset, first_start = await self._assignment.start_offset(queue)
        except (ClusterError, ProtocolError) as error:
            if isinstance(error, AccessRefused) and error.failure is Failure.FATAL:
                self._events.put_nowait(error)  # the caller closes us; until then, rebalances retry in vain
            log.log(
                retry_log_level(error, logging.WARNING),
                "queue %s is assigned to %s, but reading cannot start yet, retrying: %s",
                queue_label(queue),
                self.name,
                error,
            )
            await self.held.unlock_unused({queue})
            return False
        if self.gaps.get(queue) == offset:  # still at its gap: it stays stopped, which is no reason for another try
            await self.held.unlock_unused({queue})
            return True
        self.gaps.pop(queue, None)
        subscription = self.membership.subscription(queue.topic)
        puller = Puller(self._brokers, self.settings, queue, subscription, self.membership.version)
        assigned = AssignedQueue(self, queue, subscription, puller)
        self.held.add(assigned)
        left_at, anchor = self._left.pop(queue, (-1, None))
        anchor = anchor if left_at == offset and not first_start else None
        assigned.begin(offset, first_start=first_start, locked_at=locked_at, anchor=anchor)
        self._events.put_nowait(assigned)
        return True
