"""Groups of consumers: a model of clients that join, work and vanish, at a Master and a Broker without a network."""

import asyncio
from types import SimpleNamespace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mqbridge.adapter.inbound import Start
from mqbridge.listener.numbered import Slice
from mqbridge.listener.queue_feed import QueueFeedState
from mqbridge.tubemq.server import consumer_group as module
from mqbridge.tubemq.server.consumer_group import CONNECT, DISCONNECT, ConsumerGroup, GroupTerms, Mode, ServedMember
from mqbridge.tubemq.server.lanes import LaneStart, PartitionId
from mqbridge.tubemq.server.partition import PartitionOwnership
from mqbridge.tubemq.server.refusals import CodedRefusal

TOPIC, PARTITIONS, PACK = "t", 4, 2
NAMES = ("a", "b", "c")
FROM_FIRST = LaneStart(Start.EARLIEST)


class ModelFeed:
    """A lane: messages are their own numbers, and `stored` of them exist."""

    caught_up = False

    def __init__(self, lanes: "ModelLanes", index: int) -> None:
        self.lanes, self.index = lanes, index
        self.next: int | None = lanes.committed[index]

    @property
    def is_held(self) -> bool:
        return self.index in self.lanes.held

    @property
    def state(self) -> QueueFeedState:
        return QueueFeedState.HELD if self.is_held else QueueFeedState.UNHELD

    async def confirm_caught_up(self) -> bool:
        return True

    def give_back(self) -> None:
        pass

    def claim(self) -> None:
        pass

    async def read(self, number: int, *_: Any, **__: Any) -> Slice:
        assert self.next is not None
        assert number >= self.next, "what is before was handed out"
        end = min(number + PACK, self.lanes.stored[self.index])
        if end == number:
            raise TimeoutError
        self.next = end
        return Slice(list(range(number, end)), end, None, None)


class ModelLanes:
    """The lanes of the group, and what it has committed."""

    problem = None

    def __init__(self) -> None:
        self.held = set(range(PARTITIONS))
        self.committed = dict.fromkeys(range(PARTITIONS), 0)
        self.stored = dict.fromkeys(range(PARTITIONS), 0)

    def available(self) -> set[PartitionId]:
        return {PartitionId(TOPIC, index) for index in self.held}

    async def open(self, _: Any, index: int, __: LaneStart) -> tuple[Any, int]:
        if index not in self.held:
            raise CodedRefusal("not here", 410)
        return ModelFeed(self, index), self.committed[index]

    def commit(self, _: Any, index: int, __: Any, number: int) -> None:
        assert number >= self.committed[index], "a commit does not go back"
        self.committed[index] = number

    async def close(self, _: Any) -> None:
        pass


class ModelReader:
    """Reads again what was handed out."""

    def __init__(self, lanes: ModelLanes, index: int) -> None:
        self._lanes, self._index = lanes, index

    async def read(self, number: int, *_: Any) -> Slice:
        end = min(number + PACK, self._lanes.stored[self._index])
        return Slice(list(range(number, end)), end, None, None)

    async def close(self) -> None:
        pass


class ModelClient:
    """A client of the protocol: it does what it is told, and knows which packs it has."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.link = SimpleNamespace(alive=True)
        self.told: module.Event | None = None
        self.is_done = False
        self.packs: dict[PartitionId, list[int]] = {}


class GroupMachine(RuleBasedStateMachine):
    """Clients, a group and its partitions."""

    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = SimpleNamespace(now=1000.0)
        self.lanes = ModelLanes()
        topic = SimpleNamespace(name=TOPIC, partitions={index: str(index) for index in range(PARTITIONS)})

        async def bounds_of(_: Any, index: int) -> tuple[int, int]:
            return 0, self.lanes.stored[index]

        broker: Any = SimpleNamespace(
            known_topic=lambda _: topic, bounds_of=bounds_of, open_reader=lambda _, index: ModelReader(self.lanes, index)
        )
        self.topic: Any = topic
        self.clients: dict[str, ModelClient] = {}
        self.delivered: dict[int, list[int]] = {index: [] for index in range(PARTITIONS)}
        self.group = self.run(self._make(broker))

    async def _make(self, broker: Any) -> ConsumerGroup:
        lanes: Any = self.lanes
        group = ConsumerGroup(broker, "g", GroupTerms(Mode.ASSIGNED, frozenset({TOPIC}), {}), lanes)
        group._loop = self._fake_loop()
        return group

    def _fake_loop(self) -> Any:
        return SimpleNamespace(time=lambda: self.clock.now)

    def run(self, work: Any) -> Any:
        """Do something, and everything that follows from it."""

        async def settle() -> Any:
            result = await work
            for _ in range(5):
                await asyncio.sleep(0)
            return result

        return self.loop.run_until_complete(settle())

    def member(self, client: ModelClient) -> ServedMember | None:
        return self.group.members.get(client.name)

    # --- what clients do ----------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES))
    def join(self, name: str) -> None:
        client = self.clients.setdefault(name, ModelClient(name))
        client.link.alive = True
        link: Any = client.link
        member = self.group.join(link, name)
        self.group.forget_event(member)
        client.told, client.is_done = None, False

    @rule(name=st.sampled_from(NAMES), is_lost=st.booleans())
    def beat(self, name: str, is_lost: bool) -> None:
        """Send a heartbeat, whose response may be lost."""
        client = self.clients.get(name)
        member = None if client is None else self.member(client)
        if client is None or member is None:
            return
        link: Any = client.link
        self.group.touch(member, link)
        if client.is_done:
            self.group.on_event_done(member)
            client.told, client.is_done = None, False
            self.group.on_report(member, [each for each, _ in self._owned(client)])
        event = self.run(self._next_event(member))
        if event is not None and not is_lost:
            assert client.told is None
            client.told, client.is_done = event, False

    async def _next_event(self, member: ServedMember) -> module.Event | None:
        event = self.group.next_event(member)
        for served in self.group.partitions.values():
            served._loop = self._fake_loop()
        return event

    def _owned(self, client: ModelClient) -> list[tuple[PartitionId, Any]]:
        return [(each, served) for each, served in self.group.partitions.items() if served.owner == client.name]

    @rule(name=st.sampled_from(NAMES), confirms=st.booleans())
    def obey(self, name: str, confirms: bool) -> None:
        """Do what the event says."""
        client = self.clients.get(name)
        if client is None or client.told is None or client.is_done:
            return
        for each in client.told.partitions:
            served = self.group.partition(each)
            try:
                if client.told.kind == DISCONNECT:
                    pack = client.packs.pop(each, [])
                    served.unregister(client.name, is_consumed=confirms)
                    if confirms:
                        self._note_confirmed(each, pack)
                else:
                    assert client.told.kind == CONNECT
                    self.run(served.register(client.name, self.topic, FROM_FIRST, frozenset()))
                    client.packs.pop(each, None)
            except CodedRefusal:
                pass
        self.run(asyncio.sleep(0))
        client.is_done = True

    def _note_confirmed(self, each: PartitionId, pack: list[int]) -> None:
        assert not pack or self.lanes.committed[each.partition] > pack[-1]

    @rule(name=st.sampled_from(NAMES), choice=st.sampled_from(["confirm", "roll back", "keep"]))
    def work(self, name: str, choice: str) -> None:
        """Get a pack of each partition, and confirm it, roll it back, or neither."""
        client = self.clients.get(name)
        if client is None:
            return
        for each, served in self._owned(client):
            self.run(self._work(client, each, served, choice))

    async def _work(self, client: ModelClient, each: PartitionId, served: Any, choice: str) -> None:
        try:
            served.check_owner(client.name)
            served.roll_back()
            pack = await served.get(client.name, keeps_pack=False)
        except CodedRefusal:
            return
        if pack is None:
            return
        numbers = list(pack.messages.numbers)
        assert numbers[0] == self.lanes.committed[each.partition], "it begins at what is not confirmed"
        served.hand_out(pack)
        self.delivered[each.partition] += numbers
        client.packs[each] = numbers
        if choice == "confirm":
            served.confirm()
            assert self.lanes.committed[each.partition] == numbers[-1] + 1
            del client.packs[each]
        elif choice == "roll back":
            served.roll_back()
            del client.packs[each]

    @rule(name=st.sampled_from(NAMES))
    def vanish(self, name: str) -> None:
        client = self.clients.pop(name, None)
        if client is not None:
            client.link.alive = False
            link: Any = client.link
            self.group.drop(link)

    @rule(name=st.sampled_from(NAMES))
    def leave(self, name: str) -> None:
        if self.clients.pop(name, None) is not None:
            self.group.leave(name)
            self.run(asyncio.sleep(0))

    # --- what happens to them -----------------------------------------------------------------------------------------

    @rule(index=st.integers(0, PARTITIONS - 1), count=st.integers(1, 5))
    def store(self, index: int, count: int) -> None:
        self.lanes.stored[index] += count

    @rule(seconds=st.sampled_from([1.0, 14.0, 31.0]))
    def pass_time(self, seconds: float) -> None:
        self.clock.now += seconds
        self._sweep()

    def _sweep(self) -> None:
        async def sweep() -> None:
            self.group.sweep()

        self.run(sweep())
        for name in [name for name in self.clients if name not in self.group.members]:
            del self.clients[name]  # its next heartbeat would tell it

    @rule(index=st.integers(0, PARTITIONS - 1))
    def lose_lane(self, index: int) -> None:
        self.lanes.held.discard(index)
        served = self.group.partitions.get(PartitionId(TOPIC, index))
        if served is not None:

            async def release() -> None:
                served.release()

            self.run(release())

    @rule(index=st.integers(0, PARTITIONS - 1))
    def get_lane(self, index: int) -> None:
        self.lanes.held.add(index)

    # --- what holds ---------------------------------------------------------------------------------------------------

    @invariant()
    def owners_are_consistent(self) -> None:
        if not hasattr(self, "group"):
            return
        for served in self.group.partitions.values():
            assert (served.owner is None) == (served.state is PartitionOwnership.FREE)
            if served.offered_to is not None:
                member = self.group.members[served.offered_to]
                assert member.event is not None
                assert served.id in member.event.partitions

    def teardown(self) -> None:
        """Let everybody work for a while: then each partition has an owner, and everything is delivered in order."""
        if not hasattr(self, "group"):
            return
        self.clock.now += module.EVENT_S + module.LEASE_S
        self._sweep()
        self.clients.clear()
        for name in NAMES:
            self.join(name)
        for _ in range(6):
            self.clock.now += 1.0
            for name in NAMES:
                self.beat(name, False)
                self.obey(name, True)
                self.beat(name, False)
        for _ in range(40):
            for name in NAMES:
                self.work(name, "confirm")
        owners = {each.partition: served.owner for each, served in self.group.partitions.items() if served.owner is not None}
        assert owners.keys() == self.lanes.held
        shares = [list(owners.values()).count(name) for name in NAMES]
        assert max(shares) - min(shares) <= 1
        for index in self.lanes.held:
            assert self.lanes.committed[index] == self.lanes.stored[index]
            assert list(dict.fromkeys(self.delivered[index])) == list(range(self.lanes.stored[index]))
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()


GroupMachine.TestCase.settings = settings(deadline=None, stateful_step_count=30)
TestGroup = GroupMachine.TestCase
