"""Reading lanes, against lanes that do what real ones do rarely."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from mqbridge.adapter import Bounds, InboundLane, Topic
from mqbridge.cli.tail import Tail, Wanted
from mqbridge.errors import ClusterError, ConfigError, GapError, LaneRevoked
from mqbridge.message import Batch, Message, Partition, Position

TOPIC = Topic("t", ("a:0", "b:0"))


class Lane:
    """Hands out what it is given: payloads as batches of one message each, exceptions as themselves."""

    def __init__(self, index: int, *given: bytes | Exception, caught_up: bool = True) -> None:
        self.partition = Partition("c", "t", TOPIC.partitions[index], index)
        self.given = list(given)
        self.acknowledged: list[bytes] = []
        self.rejected: list[bytes] = []
        self.sought: list[Position] = []
        self._caught_up = caught_up

    @property
    def caught_up(self) -> bool:
        return self._caught_up

    async def receive(self) -> Batch:
        if not self.given:
            await asyncio.Event().wait()
        next_ = self.given.pop(0)
        if isinstance(next_, Exception):
            raise next_
        messages = [Message(bytes([byte]), position=(0,)) for byte in next_]
        return Batch(self.partition, messages, count=len(messages), size=1, first=(0,), next=(1,), native=next_)

    def acknowledge(self, batch: Batch) -> None:
        self.acknowledged.append(batch.native)

    def reject(self, batch: Batch) -> None:
        self.rejected.append(batch.native)

    async def seek(self, position: Position) -> None:
        self.sought.append(position)

    async def release(self) -> None:
        raise AssertionError("the inbound's close releases lanes")


class Inbound:
    def __init__(self, *lanes: InboundLane, error: Exception | None = None, after_s: float = 0.0) -> None:
        self._lanes, self._error, self._after_s = lanes, error, after_s

    async def lanes(self) -> AsyncIterator[InboundLane]:
        await asyncio.sleep(self._after_s)
        for lane in self._lanes:
            yield lane
        if self._error is not None:
            raise self._error
        await asyncio.Event().wait()

    async def close(self) -> None:
        raise AssertionError("the one who opened it closes it")


def tail(wanted: Wanted, *, bounds: dict[str, Bounds] | None = None, seek: bool = True) -> tuple[Tail, list[bytes]]:
    shown: list[bytes] = []
    one = Tail(wanted, lambda _, messages: shown.extend(message.payload or b"" for message in messages))
    one.expect(TOPIC, bounds or {}, seek=seek)
    return one, shown


async def test_reads_every_partition_to_its_end() -> None:
    one, shown = tail(Wanted(frozenset(), "beginning", exit_at_end=True))
    lanes = Lane(0, b"xy", b"z"), Lane(1, b"q")
    assert await one.run(Inbound(*lanes)) == 4
    assert sorted(shown) == [b"q", b"x", b"y", b"z"]
    assert lanes[0].acknowledged == [b"xy", b"z"]


async def test_a_part_of_a_batch_is_rejected() -> None:
    one, shown = tail(Wanted(frozenset({"0"}), "stored", count=3, shared=True))
    lane = Lane(0, b"ab", b"cd")
    assert await one.run(Inbound(lane)) == 3
    assert (shown, lane.acknowledged, lane.rejected) == ([b"a", b"b", b"c"], [b"ab"], [b"cd"])


async def test_other_partitions_are_left_alone() -> None:
    one, shown = tail(Wanted(frozenset({"b:0"}), "beginning", exit_at_end=True))
    other = Lane(0, b"x")
    await one.run(Inbound(other, Lane(1, b"y")))
    assert (shown, other.given) == ([b"y"], [b"x"])


async def test_a_shared_group_ends_with_the_lanes_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqbridge.cli.tail.SETTLE_S", 0.2)
    one, shown = tail(Wanted(frozenset(), "stored", exit_at_end=True, shared=True))
    await one.run(Inbound(Lane(0, b"x")))
    assert shown == [b"x"]


async def test_a_group_that_takes_its_time_to_hand_out_partitions_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqbridge.cli.tail.SETTLE_S", 0.2)
    one, shown = tail(Wanted(frozenset(), "stored", exit_at_end=True, shared=True))
    await one.run(Inbound(Lane(0, b"x"), after_s=0.6))
    assert shown == [b"x"]


async def test_a_group_that_others_have_to_themselves_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqbridge.cli.tail.FIRST_S", 0.2)
    one, shown = tail(Wanted(frozenset(), "stored", exit_at_end=True, shared=True))
    assert (await one.run(Inbound()), shown) == (0, [])


async def test_a_revoked_lane_may_come_back() -> None:
    one, shown = tail(Wanted(frozenset({"0"}), "beginning", exit_at_end=True))
    await one.run(Inbound(Lane(0, LaneRevoked("taken"), caught_up=False), Lane(0, b"x")))
    assert shown == [b"x"]


@pytest.mark.parametrize("error", [GapError("lost"), ClusterError("gone")])
async def test_what_ends_a_lane_ends_the_reading(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    one, _ = tail(Wanted(frozenset(), "beginning"))
    with caplog.at_level(logging.ERROR), pytest.raises(type(error)):
        await one.run(Inbound(Lane(0, b"x", error)))
    assert not caplog.records  # told by the command, not logged as a fault


async def test_what_ends_the_inbound_ends_the_reading() -> None:
    one, _ = tail(Wanted(frozenset(), "beginning"))
    with pytest.raises(ClusterError, match="gone"):
        await one.run(Inbound(Lane(0, caught_up=False), error=ClusterError("gone")))


async def test_positions_are_sought() -> None:
    lane = Lane(0)
    await tail(Wanted(frozenset({"0"}), (7, 1), exit_at_end=True))[0].run(Inbound(lane))
    assert lane.sought == [(7, 1)]
    bounds = {"a:0": Bounds((2,), (9,))}
    for position in ("beginning", "end"):
        one, _ = tail(Wanted(frozenset({"0"}), position, exit_at_end=True, shared=True), bounds=bounds)
        await one.run(Inbound(lane))
    assert lane.sought == [(7, 1), (2,), (9,)]


async def test_what_cannot_be_sought_is_said() -> None:
    with pytest.raises(ConfigError, match="cannot move to a position"):
        tail(Wanted(frozenset({"0"}), (7,)), seek=False)
    one, _ = tail(Wanted(frozenset({"0"}), "end", shared=True))
    with pytest.raises(ConfigError, match=r"does not say where c/t/a:0 ends"):
        await one.run(Inbound(Lane(0)))


async def test_a_partition_that_is_written_to_ends_where_it_ended_at_the_start() -> None:
    bounds = {"a:0": Bounds((0,), (1,)), "b:0": Bounds((0,), (9,))}
    one, shown = tail(Wanted(frozenset({"0"}), "beginning", exit_at_end=True), bounds=bounds)
    lane = Lane(0, b"x", b"later", caught_up=False)
    assert await one.run(Inbound(lane)) == 1
    assert (shown, lane.given) == ([b"x"], [b"later"])


async def test_so_many_of_each_partition() -> None:
    one, shown = tail(Wanted(frozenset(), "beginning", exit_at_end=True, each=2))
    lanes = Lane(0, b"a", b"bcd", b"e", caught_up=False), Lane(1, b"x")
    assert await one.run(Inbound(*lanes)) == 3
    assert sorted(shown) == [b"a", b"b", b"x"]
    assert (lanes[0].given, lanes[0].rejected) == ([b"e"], [b"bcd"])


async def test_what_lies_before_the_beginning_or_is_of_another_type_is_left_out() -> None:
    one, shown = tail(Wanted(frozenset({"0"}), "beginning", exit_at_end=True, begin={"a:0": (7,)}))
    lane = Lane(0, b"x")
    assert await one.run(Inbound(lane)) == 0
    assert (shown, lane.acknowledged) == ([], [b"x"])
    one, shown = tail(Wanted(frozenset({"0"}), "beginning", exit_at_end=True, msg_types=frozenset({"paid"})))
    assert await one.run(Inbound(Lane(0, b"x"))) == 0
    assert shown == []


async def test_each_lane_is_moved_to_its_own_position() -> None:
    lanes = Lane(0), Lane(1)
    one, _ = tail(Wanted(frozenset(), {"a:0": (3,)}, exit_at_end=True, shared=False))
    await one.run(Inbound(*lanes))
    assert (lanes[0].sought, lanes[1].sought) == ([(3,)], [])
