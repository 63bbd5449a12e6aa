"""Members of a group at scripted brokers, with events in any order: no message is lost, and all offsets are committed.

`test_queue_state` tests the state table of one queue; this tests the code around it: division, pulls, commits, locks, releases.
Time is virtual. At the end of a run all faults end: then every message must arrive and every offset be committed.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mqbridge.errors import ClusterError, GapError, LaneRevoked
from mqbridge.net.tasks import cancel, spawn
from mqbridge.rocketmq.client.connection import connection
from mqbridge.rocketmq.client.consumer import queue_identity
from mqbridge.rocketmq.client.consumer.assigned_queue import AssignedQueue
from mqbridge.rocketmq.client.consumer.consumer_settings import ConsumerSettings
from mqbridge.rocketmq.client.consumer.pull_consumer import PullConsumer, join
from mqbridge.rocketmq.client.consumer.pulled_records import PulledRecords
from mqbridge.rocketmq.client.consumer.queue_transitions import State
from mqbridge.rocketmq.client.consumer.subscription import everything
from mqbridge.rocketmq.wire.bodies.queue import Queue
from mqbridge.rocketmq.wire.bodies.queue_locks import LockRequest
from mqbridge.rocketmq.wire.codes import Code, Status
from mqbridge.rocketmq.wire.command import Command
from tests.example_counts import examples
from tests.kit.virtual_time import VirtualTimeLoop
from tests.patience import SERVER_PATIENCE_S
from tests.rocketmq.client.broker import A, Answer, Cluster, Link, scripted_client
from tests.rocketmq.client.groups import Groups

GROUP = "G"
QUEUES = [Queue("T", "broker-a", number) for number in range(2)]
DELAYED = (
    Code.UPDATE_CONSUMER_OFFSET,
    Code.PULL_MESSAGE,
    Code.LOCK_BATCH_MQ,
    Code.UNLOCK_BATCH_MQ,
    Code.QUERY_CONSUMER_OFFSET,
)
COMMITTING_CODES = (Code.UPDATE_CONSUMER_OFFSET, Code.PULL_MESSAGE)
SOON_S = 0.4
"""A delay of responses that no request times out on."""
UNANSWERED_S = 5.0
"""How long a request without an answer disturbs the calm: longer than any request but a pull waits for its response."""
LOCK_EXPIRES_S = 60.0
MEMBERS = 3
LUCK = st.sampled_from([3, 2, 1, 0])
MOMENTS = st.sampled_from([0.0, 0.0, 0.01, 0.5, 3.0])
"""Seconds from one step to the next."""


class World:
    """The brokers, and the messages that the applications of all members have received and acknowledged."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self.loop = loop
        self.cluster = Cluster()
        self.groups = Groups(self.cluster)
        self.cluster.topics["T"] = {"broker-a": len(QUEUES)}
        self.delivered: defaultdict[Queue, set[int]] = defaultdict(set)
        """Offsets that were delivered since the last seek or reset of the group."""
        self.excused: defaultdict[Queue, int] = defaultdict(int)
        """The highest offset of a seek or reset: messages below it may be missing."""
        self.consumed: defaultdict[Queue, set[int]] = defaultdict(set)
        self.delay = 0.0
        self.unanswered: dict[int, int] = {}
        """By request code, how many of the next requests get no response."""
        self.is_paused = False
        """True while the group may not read (`consumeEnable=false`)."""
        self.problems: list[str] = []
        self.made_anew: Queue | None = None
        """The queue of a topic that was deleted and created again, until its reader has stopped."""
        self._due_at = 0.0
        """When the last delayed response arrives, or the last request without one has timed out."""
        self._locked_at: dict[Queue, float] = {}
        self.reads: Callable[[Link, Queue], bool] = lambda _link, _queue: True
        self._newest: dict[tuple[Link, Queue], int] = {}
        """By connection and queue, the opaque of the last pull."""
        self.cluster.on[Code.PULL_MESSAGE] = self._ignoring_abandoned_pulls(self.cluster.on[Code.PULL_MESSAGE])
        for code in DELAYED:
            self.cluster.on[code] = self._delayed(self.cluster.on[code])
        self.cluster.on[Code.LOCK_BATCH_MQ] = self._expiring(self.cluster.on[Code.LOCK_BATCH_MQ])
        self.cluster.on[Code.GET_CONSUMER_LIST_BY_GROUP] = self._listing_connected_members(self.groups.list_members)

    def _delayed(self, answer: Answer) -> Answer:
        def soon(link: Link, request: Command) -> None:
            if request.code == Code.PULL_MESSAGE:
                self._newest[link, Queue(request.ext["topic"], "broker-a", int(request.ext["queueId"]))] = request.opaque
            if self.unanswered.get(request.code, 0):
                self.unanswered[request.code] -= 1
                self._due_at = max(self._due_at, self.loop.time() + UNANSWERED_S)
            elif self.is_paused and request.code == Code.PULL_MESSAGE:
                link.answer(request, Status.NO_PERMISSION, remark="subscription group no permission")
            elif not self.delay:
                answer(link, request)
            else:
                self._due_at = max(self._due_at, self.loop.time() + self.delay)
                self.loop.call_later(self.delay, late, link, request)  # even if the client no longer waits

        def late(link: Link, request: Command) -> None:
            """Handle the request, unless it is a commit of a lost connection, which could undo newer commits unnoticed."""
            if link.open or request.code not in COMMITTING_CODES:
                answer(link, request)

        return soon

    def _expiring(self, answer: Answer) -> Answer:
        def lock(link: Link, request: Command) -> None:
            lock_request = LockRequest.decode(request.body)
            for queue in lock_request.queues:
                if self.loop.time() - self._locked_at.get(queue, 0.0) > LOCK_EXPIRES_S:
                    self.groups.locks.pop((GROUP, queue), None)
                if self.groups.locks.get((GROUP, queue), lock_request.client_id) == lock_request.client_id:
                    self._locked_at[queue] = self.loop.time()
            answer(link, request)

        return lock

    def _ignoring_abandoned_pulls(self, answer: Answer) -> Answer:
        """Brokers report a reset once, to any pull: an abandoned pull gets no response, since the report would be lost."""

        def pull(link: Link, request: Command) -> None:
            queue = Queue(request.ext["topic"], "broker-a", int(request.ext["queueId"]))
            waited_for = self._newest.get((link, queue)) == request.opaque and self.reads(link, queue)
            if (GROUP, queue) not in self.groups.resets or waited_for:
                answer(link, request)

        return pull

    def reset(self, queue: Queue, offset: int) -> None:
        """Reset the group's offset, like the command of a broker."""
        self.groups.release_held()
        self.on_moved(queue, offset)
        self.groups.offsets[GROUP, queue] = self.groups.resets[GROUP, queue] = offset

    def _listing_connected_members(self, answer: Answer) -> Answer:
        def members(link: Link, request: Command) -> None:
            """Remove members whose connection is lost, then list the others."""
            there = self.groups.members[GROUP]
            for client_id in [client_id for client_id, its in there.items() if not its.open]:
                del there[client_id]
            answer(link, request)

        return members

    @property
    def calm(self) -> bool:
        """Whether all requests, also those in flight, are answered in time."""
        late = max(self.delay, self._due_at - self.loop.time())
        return late <= SOON_S and not any(self.unanswered.values()) and not self.is_paused and not self.cluster.down

    def lose_connections(self) -> None:
        """Drop all connections, also those to name servers."""
        for link in self.cluster.links:
            if link.open:
                link.drop()

    def stop_broker(self) -> None:
        """The broker ends, and no name server lists it any more."""
        self.cluster.down, self.cluster.unreachable = {"broker-a"}, {A}
        self.lose_connections()

    def start_broker(self) -> None:
        self.cluster.down, self.cluster.unreachable = set(), set()

    def mend(self) -> None:
        """End all faults."""
        self.delay, self.is_paused = 0.0, False
        self.unanswered.clear()
        self.start_broker()

    def make_anew(self, queue: Queue, count: int, *, keeps_offset: bool) -> None:
        """Delete the queue, with the offset of the group or without, and create it again with this number of messages."""
        self.groups.log(*queue).make_anew()
        if not keeps_offset:
            self.groups.offsets.pop((GROUP, queue), None)
        self.made_anew = queue
        self.forget(queue)
        self.groups.append(*[b"x"] * count, topic=queue.topic, broker=queue.broker, number=queue.id)

    def forget(self, queue: Queue) -> None:
        """Expect every message of a queue from its beginning."""
        self.excused[queue] = 0
        self.delivered[queue].clear()
        self.consumed[queue].clear()

    def on_moved(self, queue: Queue, offset: int) -> None:
        """Note a seek or reset: messages below the offset may be missing, those from it on must be delivered (again)."""
        self.excused[queue] = max(self.excused[queue], offset)
        self.delivered[queue].difference_update(range(offset, self.groups.log(*queue).end))

    def check(self) -> None:
        """Check that no committed offset is above an unconsumed message."""
        for queue in QUEUES:
            done = self.consumed[queue]
            committed = self.groups.committed(GROUP, *queue) or 0
            missing = [at for at in range(self.excused[queue], committed) if at not in done]
            assert not missing, f"{queue} is committed up to {committed}, and {missing} were never consumed"
        assert not self.problems, self.problems

    @property
    def finished(self) -> bool:
        """Whether every message was delivered and every offset is committed."""
        ends = {queue: self.groups.log(*queue).end for queue in QUEUES}
        came = all(set(range(self.excused[queue], end)) <= self.delivered[queue] for queue, end in ends.items())
        return came and all((self.groups.committed(GROUP, *queue) or 0) == end for queue, end in ends.items())


class Member:
    """A member and its application, which reads by `receive`, or as the documentation's loop does, by `take` and `changed`."""

    def __init__(self, world: World, number: int, *, orderly: bool, polls: bool) -> None:
        self.world, self.orderly, self.polls = world, orderly, polls
        self.client = scripted_client()
        self.client._instance = f"{number}#{number}"
        self.consumer: PullConsumer | None = None
        self.out: list[tuple[AssignedQueue, int, PulledRecords]] = []
        self.stopped: set[Queue] = set()
        """Queues at which reading stopped, because they were made anew."""
        self.at_once = False
        self.closing = False
        self.tasks = [spawn(self._live(), f"member {number}")]

    def __str__(self) -> str:
        held = {} if self.consumer is None else {str(each): each.state.state.value for each in self.consumer.held.values()}
        return f"{self.client.client_id} ({'closed' if self.closing else 'lives'}) has {held}"

    async def _live(self) -> None:
        await self.client.connect()
        spec = ConsumerSettings(GROUP, (everything("T"),), orderly=self.orderly, retries=False)
        while self.consumer is None:
            try:
                self.consumer = await join(self.client, spec)
            except ClusterError:
                await asyncio.sleep(1.0)
        async for assigned in self.consumer.assigned_queues():
            self.tasks.append(spawn(self._read(assigned), f"reading {assigned}"))

    async def _read(self, assigned: AssignedQueue) -> None:
        try:
            while True:
                pulled = await self._next(assigned)
                self.world.delivered[assigned.queue].update(range(pulled.first, pulled.next))
                self.out.append((assigned, assigned.state.run, pulled))
                if self.at_once:
                    self.acknowledge(len(self.out))
        except LaneRevoked:
            pass
        except GapError as error:
            if assigned.queue == self.world.made_anew:
                self.stopped.add(assigned.queue)
            else:
                self.world.problems.append(f"{assigned}: {error!r}")
        except Exception as error:  # noqa: BLE001 - tasks fail unseen
            self.world.problems.append(f"{assigned}: {error!r}")

    async def _next(self, assigned: AssignedQueue) -> PulledRecords:
        if not self.polls:
            return await assigned.receive()
        while (pulled := assigned.take()) is None:
            others: list[int] = []
            asyncio.get_running_loop().call_soon(others.append, 1)
            await assigned.wait_for_change(1.0)
            assert others, "waiting for a change let nobody else run"
            if assigned.revoked:
                raise LaneRevoked
        return pulled

    def acknowledge(self, count: int) -> None:
        """Acknowledge the oldest `count` pulls."""
        for assigned, run, pulled in self.out[:count]:
            self.world.consumed[assigned.queue].update(range(pulled.first, pulled.next))
            assigned.commit(pulled.next, run)
        del self.out[:count]

    def acknowledge_all_at_once(self) -> None:
        """Acknowledge everything now, and each later pull on delivery."""
        self.at_once = True
        self.acknowledge(len(self.out))

    async def close(self) -> None:
        """Close the consumer and its client, as the gateway does."""
        self.closing = True
        if self.consumer is not None:
            await self.consumer.close()
        await self.client.close()

    async def end(self) -> None:
        await self.close()
        await cancel(*self.tasks)
        await self.close()


class GroupLife(RuleBasedStateMachine):
    """Every rule starts something and lets some time pass; none waits for a result, except in calm."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.loop = VirtualTimeLoop()
        self.world = World(self.loop)
        self.patch.setattr(connection, "dial", self.world.cluster.dial)
        self.world.reads = self.reads
        self.members: list[Member] = []
        self.made = 0
        self.background: list[asyncio.Task[Any]] = []

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(coroutine)

    def moment(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    def do(self, call: Callable[[], Any], seconds: float) -> None:
        """Call a function inside the loop, then let some time pass."""

        async def inside() -> None:
            call()
            await asyncio.sleep(seconds)

        self.run(inside())

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self.loop.create_task(coroutine)
        self.background.append(task)
        return task

    @property
    def living(self) -> list[Member]:
        return [one for one in self.members if not one.closing and one.consumer is not None]

    def assigned_queues(self) -> list[AssignedQueue]:
        held = [one.consumer.held.values() for one in self.living if one.consumer is not None]
        return [assigned for assigned_queues in held for assigned in assigned_queues]

    def reads(self, link: Link, queue: Queue) -> bool:
        """Whether the member at the other end of this link waits for an answer about the queue."""
        there = self.world.groups.members[GROUP]
        held = [one.consumer.held for one in self.living if one.consumer and there.get(one.client.client_id) is link]
        return any(queue in assigned_queues and assigned_queues[queue].state._pull is not None for assigned_queues in held)

    # --- members ------------------------------------------------------------------------------------------------------

    @initialize(orderly=st.booleans(), polls=st.booleans(), messages=st.integers(1, 40))
    def start(self, orderly: bool, polls: bool, messages: int) -> None:
        self.orderly, self.polls = orderly, polls
        for queue in QUEUES:
            self.world.groups.append(*[b"x"] * messages, topic=queue.topic, broker=queue.broker, number=queue.id)
            self.world.groups.log(*queue).limit = 7
        self.add(3.0)

    def add(self, seconds: float) -> None:
        self.made += 1
        self.do(
            lambda: self.members.append(Member(self.world, self.made, orderly=self.orderly, polls=self.polls)),
            seconds,
        )

    @precondition(lambda self: sum(not one.closing for one in self.members) < MEMBERS)
    @rule(seconds=MOMENTS)
    def another_joins(self, seconds: float) -> None:
        """A new member gets queues of the others."""
        self.add(seconds)

    @precondition(lambda self: self.living)
    @rule(data=st.data(), seconds=MOMENTS, cancelled=st.booleans())
    def one_closes(self, data: st.DataObject, seconds: float, cancelled: bool) -> None:
        """A member closes at any step; the first caller of `close` may be cancelled."""
        member = data.draw(st.sampled_from(self.living))
        first = self.begin(member.close())
        self.moment(seconds)
        if cancelled:
            first.cancel()
            self.begin(member.close())
            self.moment(0.0)

    @precondition(lambda self: self.world.calm and self.living)
    @rule(data=st.data())
    def one_closes_in_calm(self, data: st.DataObject) -> None:
        """After the close without faults, acknowledged offsets are committed, locks are released, and the member has left."""
        member = data.draw(st.sampled_from(self.living))
        assert member.consumer is not None
        groups, held = self.world.groups, list(member.consumer.held.values())
        self.run(member.close())
        for assigned in held:
            assert assigned.state.state in (State.RELEASED, State.LOST)
            certain = assigned.state.state is State.RELEASED and assigned.state.lock_holds(self.loop.time())
            if certain and (GROUP, assigned.queue) not in groups.resets:
                committed = groups.committed(GROUP, *assigned.queue) or 0
                assert committed >= assigned.acknowledged, (
                    f"{assigned}: acknowledged {assigned.acknowledged}, committed {committed}"
                )
            if certain:
                assert groups.locks.get((GROUP, assigned.queue)) != member.client.client_id, f"{assigned} is still locked"
        assert member.client.client_id not in [one for one, link in groups.members[GROUP].items() if link.open]

    @precondition(lambda self: self.assigned_queues())
    @rule(data=st.data(), seconds=MOMENTS, cancelled=st.booleans())
    def a_queue_is_released(self, data: st.DataObject, seconds: float, cancelled: bool) -> None:
        assigned = data.draw(st.sampled_from(self.assigned_queues()))
        releasing = self.begin(assigned.release())
        self.moment(seconds)
        if cancelled:
            releasing.cancel()
            self.moment(0.0)

    # --- brokers ------------------------------------------------------------------------------------------------------

    @rule(number=st.integers(0, 1), count=st.integers(1, 20), seconds=MOMENTS)
    def store(self, number: int, count: int, seconds: float) -> None:
        self.do(lambda: self.world.groups.append(*[b"x"] * count, number=number), seconds)

    @rule(delay=st.sampled_from([0.0, SOON_S, SOON_S, 5.0]), seconds=MOMENTS)
    def answers_are_late(self, delay: float, seconds: float) -> None:
        self.world.delay = delay
        self.moment(seconds)

    @rule(code=st.sampled_from(DELAYED), count=st.integers(1, 2), luck=LUCK)
    def some_are_not_answered(self, code: int, count: int, luck: int) -> None:
        if luck == 0:
            self.world.unanswered[code] = count

    @precondition(lambda self: self.orderly and self.assigned_queues())
    @rule(missed=st.sampled_from([1, 1, 100]), count=st.integers(1, 9), seconds=MOMENTS)
    def locks_are_not_renewed(self, missed: int, count: int, seconds: float) -> None:
        """A missed renewal makes a lock too old to deliver messages until the next one; messages are stored meanwhile."""
        self.world.unanswered[Code.LOCK_BATCH_MQ] = missed
        for _ in range(50):
            if not all(assigned.state.lock_holds(self.loop.time()) for assigned in self.assigned_queues()):
                break
            self.moment(1.0)
        for queue in QUEUES:
            self.do(lambda number=queue.id: self.world.groups.append(*[b"x"] * count, number=number), 0.0)  # type: ignore[misc]
        self.moment(seconds)
        self.world.unanswered.pop(Code.LOCK_BATCH_MQ, None)

    @rule(luck=LUCK, seconds=MOMENTS)
    def connections_are_lost(self, luck: int, seconds: float) -> None:
        if luck == 0:
            self.do(self.world.lose_connections, seconds)

    @rule(count=st.integers(1, 9), seconds=st.sampled_from([1.0, 25.0]), resumes=st.booleans())
    def group_is_paused(self, count: int, seconds: float, resumes: bool) -> None:
        """An operator forbids the group to read, and mostly permits it again; new messages end the pulls that are held."""
        self.world.is_paused = True
        for queue in QUEUES:
            self.do(lambda number=queue.id: self.world.groups.append(*[b"x"] * count, number=number), 0.0)  # type: ignore[misc]
        self.moment(seconds)
        self.world.is_paused = not resumes

    @rule(luck=LUCK, away=st.sampled_from([1.0, 40.0]), seconds=MOMENTS)
    def broker_is_missing(self, luck: int, away: float, seconds: float) -> None:
        """The broker is in no route for a while. Members may start and close meanwhile."""
        if luck == 0:
            self.do(self.world.stop_broker, away)
        elif luck == 1 and self.world.cluster.down:
            self.do(self.world.start_broker, seconds)

    @rule(number=st.integers(0, 1), share=st.floats(0, 1), luck=LUCK, released=st.booleans(), seconds=MOMENTS)
    def reset_from_outside(self, number: int, share: float, luck: int, released: bool, seconds: float) -> None:
        """A broker resets the offset and reports that to one pull; the queue may be released before the report arrives."""
        if luck < 2:
            queue = QUEUES[number]
            offset = int(self.world.groups.log(*queue).end * share)
            self.do(lambda: self.world.reset(queue, offset), 0.0)
            for assigned in self.assigned_queues():
                if released and assigned.queue == queue:
                    self.begin(assigned.release())
            self.moment(seconds)

    @precondition(lambda self: self.reads_all_alone())
    @rule(number=st.integers(0, 1), more=st.integers(-10, 30), restarted=st.booleans(), released=st.booleans())
    def topic_is_made_anew(self, number: int, more: int, restarted: bool, released: bool) -> None:
        """A topic is deleted and created again: its reader stops, and whoever reads next begins with its first message.

        The new one mostly has `more` messages than the old one at once, so that a pull finds messages where it expects them. With
        `released`, the queue is assigned to nobody at this moment, and the broker keeps the offset that the release committed.
        """
        world, queue, (member,) = self.world, QUEUES[number], self.living
        world.mend()
        count = max(1, world.groups.log(*queue).end + more)
        if released:
            assert member.consumer is not None
            assigned = member.consumer.held[queue]
            self.run(assigned.release())
            if world.groups.committed(GROUP, *queue) != assigned.acknowledged:  # its lock has expired
                return
        self.do(lambda: world.make_anew(queue, count, keeps_offset=released), 0.0)
        member.out = [each for each in member.out if each[0].queue != queue]

        async def stopped() -> None:
            while queue not in member.stopped:
                world.groups.append(b"x", number=queue.id)
                await asyncio.sleep(queue_identity.CHECK_S)

        self.run(asyncio.wait_for(stopped(), SERVER_PATIENCE_S))
        world.forget(queue)
        self.run(member.close())
        if not restarted or world.groups.committed(GROUP, *queue) != 0:  # an orderly member may have lost its lock
            assert restarted is False or self.orderly, "the group would skip messages of the new queue"
            world.groups.offsets[GROUP, queue] = 0
        world.made_anew = None
        self.add(3.0)

    def reads_all_alone(self) -> bool:
        """Whether a single member reads both queues, knows a message of each, and no reset waits to be reported."""
        if self.world.groups.resets:
            return False
        reading = [assigned for assigned in self.assigned_queues() if assigned.state.state is State.READING]
        alone = len(self.living) == 1 and all(one.closing or one in self.living for one in self.members)
        return alone and len(reading) == len(QUEUES) and all(assigned._pulls.identity.anchor for assigned in reading)

    @rule(seconds=st.sampled_from([1.0, 6.0, 25.0]))
    def time_passes(self, seconds: float) -> None:
        self.moment(seconds)

    # --- applications -------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.living)
    @rule(data=st.data(), count=st.integers(1, 6), seconds=MOMENTS)
    def acknowledge(self, data: st.DataObject, count: int, seconds: float) -> None:
        member = data.draw(st.sampled_from(self.living))
        self.do(lambda: member.acknowledge(count), seconds)

    @precondition(lambda self: any(one.out for one in self.living))
    @rule(data=st.data(), seconds=MOMENTS)
    def redeliver(self, data: st.DataObject, seconds: float) -> None:
        """Reject the last delivered pull of a member."""
        member = data.draw(st.sampled_from([one for one in self.living if one.out]))
        self.do(lambda: self.again(member), seconds)

    def again(self, member: Member) -> None:
        if member.out:
            assigned, run, pulled = member.out[-1]
            if assigned.rewind(pulled.first, run):
                member.out.pop()

    @precondition(lambda self: self.assigned_queues())
    @rule(data=st.data(), share=st.floats(0, 1), luck=LUCK, seconds=MOMENTS)
    def seek(self, data: st.DataObject, share: float, luck: int, seconds: float) -> None:
        if luck == 0:
            assigned = data.draw(st.sampled_from(self.assigned_queues()))
            offset = int(self.world.groups.log(*assigned.queue).end * share)
            if not assigned.revoked:
                self.world.on_moved(assigned.queue, offset)
                self.world.delivered[assigned.queue].update(range(offset, self.world.groups.log(*assigned.queue).end))
                self.begin(assigned.seek(offset))
                self.moment(seconds)

    # --- always -------------------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_skipped(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        try:
            if self.members:
                self.settle()
        finally:
            self.run(self.end())
            self.loop.close()
            self.patch.undo()

    def settle(self) -> None:
        """End all faults, with at least one member: every message must be delivered and every offset committed."""
        self.world.mend()
        if not any(not one.closing for one in self.members):
            self.add(0.0)

        async def all_done() -> None:
            while not self.world.finished:
                for one in self.members:
                    if not one.closing:
                        one.acknowledge_all_at_once()
                await asyncio.sleep(1.0)

        try:
            self.run(asyncio.wait_for(all_done(), SERVER_PATIENCE_S))
        except TimeoutError:
            there = list(self.world.groups.members[GROUP])
            raise AssertionError(
                f"messages or commits are missing: {self.world.groups.offsets}, {there}, {[*map(str, self.members)]}"
            ) from None
        self.world.check()

    async def end(self) -> None:
        self.world.mend()
        await cancel(*self.background)
        await asyncio.gather(*(one.end() for one in self.members))


class AnyGroupLife(GroupLife):
    """The same rules with other random runs each time."""


LIFE = settings(
    stateful_step_count=20,
    suppress_health_check=[HealthCheck.too_slow],
    deadline=None,
    phases=[Phase.generate],
)
GroupLife.TestCase.settings = settings(LIFE, max_examples=examples(60), derandomize=True)
AnyGroupLife.TestCase.settings = settings(LIFE, max_examples=examples(300))
TestGroupLife = GroupLife.TestCase
TestAnyGroupLife = pytest.mark.thorough(AnyGroupLife.TestCase)
