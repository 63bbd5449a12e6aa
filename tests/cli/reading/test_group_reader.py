"""Reading as a member of a group, with scripted lanes for cases that real lanes rarely show."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.cli.reading import group_reader
from mqbridge.cli.reading.group_reader import GroupReader, GroupReadSpec
from mqbridge.errors import ClusterError, Failure, GapError, LaneRevoked, Unreachable
from mqbridge.message import Batch, Message, Partition, Position
from tests.patience import SERVER_PATIENCE_S

NAMES = ("a:0", "b:0")
BOTH, ONE = frozenset(NAMES), frozenset({"a:0"})


class Lane:
    """A lane with a script: a bytes item is delivered as a batch with one message per byte, an exception is raised."""

    def __init__(self, index: int, *script: bytes | Exception, caught_up: bool = False) -> None:
        self.partition = Partition("c", "t", NAMES[index], index)
        self.revoked = asyncio.Event()
        self.remaining = list(script)
        self.acknowledged: list[bytes] = []
        self.rejected: list[bytes] = []
        self.sought: list[Position] = []
        self._caught_up = caught_up
        self._next = 0

    @property
    def caught_up(self) -> bool:
        return self._caught_up and not self.remaining

    async def receive(self) -> Batch:
        if not self.remaining:
            await asyncio.Event().wait()
        item = self.remaining.pop(0)
        if isinstance(item, Exception):
            raise item
        first, self._next = self._next, self._next + len(item)
        messages = [Message(bytes([byte]), position=(first + at,)) for at, byte in enumerate(item)]
        return Batch(self.partition, messages, count=len(messages), size=1, first=(first,), next=(self._next,), handle=item)

    def acknowledge(self, batch: Batch, indexes: Sequence[int] | None = None, receipt: Receipt | None = None) -> None:
        assert indexes is None
        self.acknowledged.append(batch.handle)

    def reject(self, batch: Batch, failures: Sequence[MessageFailure] = (), delay_s: float = 0.0) -> None:
        self.rejected.append(batch.handle)

    async def seek(self, position: Position) -> None:
        self.sought.append(position)
        (self._next,) = position

    async def release(self, deadline: float | None = None) -> None:
        raise AssertionError("the reader must not release lanes: closing the inbound does")


class Inbound:
    individual_ack = False

    def __init__(self, *lanes: Lane, error: Exception | None = None, after: asyncio.Event | None = None) -> None:
        self._lanes, self._error, self._after = lanes, error, after

    async def lanes(self) -> AsyncIterator[Lane]:
        if self._after is not None:
            await self._after.wait()
        for lane in self._lanes:
            yield lane
        if self._error is not None:
            raise self._error
        await asyncio.Event().wait()

    async def close(self, deadline: float | None = None) -> None:
        raise AssertionError("the reader must not close the inbound: its opener does")


async def run(inbound: Inbound, partitions: frozenset[str] = BOTH, **reading: Any) -> list[bytes]:
    shown: list[bytes] = []
    reader = GroupReader(
        GroupReadSpec(partitions, **reading), lambda _, messages: shown.extend(message.payload or b"" for message in messages)
    )
    assert await reader.run(inbound) == len(shown)
    return shown


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the time limits for silent and for missing lanes."""
    monkeypatch.setattr(group_reader, "SILENCE_S", 0.01)
    monkeypatch.setattr(group_reader, "MORE_LANES_S", 0.05)


async def test_every_partition_is_read_to_its_end() -> None:
    lanes = Lane(0, b"xy", b"z", b"later"), Lane(1, b"q")
    shown = await run(Inbound(*lanes), ends={"a:0": (3,), "b:0": (1,)}, stop_at_end=True)
    assert sorted(shown) == [b"q", b"x", b"y", b"z"]
    assert (lanes[0].acknowledged, lanes[0].remaining) == ([b"xy", b"z"], [b"later"])


async def test_a_lane_that_begins_at_its_end_is_not_read() -> None:
    lanes = Lane(0, b"later"), Lane(1, b"later")
    ends = {"a:0": (3,), "b:0": (7,)}
    assert await run(Inbound(*lanes), ends=ends, committed={"a:0": (3,)}, begin={"b:0": (7,)}, stop_at_end=True) == []
    assert (lanes[0].remaining, lanes[1].remaining, lanes[1].sought) == ([b"later"], [b"later"], [(7,)])


@pytest.mark.usefixtures("short_limits")
async def test_reading_ends_if_a_silent_lane_is_caught_up() -> None:
    """The broker may filter the last messages: then the lane is caught up although no batch reaches the end."""
    lane = Lane(0, b"x", caught_up=True)
    assert await run(Inbound(lane), ONE, ends={"a:0": (9,)}, stop_at_end=True) == [b"x"]


class AskedLane(Lane):
    """A lane that knows its end only if it is asked; `answers` are returned or raised in turn, the last one again and again."""

    def __init__(self, *answers: bool | Exception) -> None:
        super().__init__(0, b"x")
        self.answers = list(answers)

    async def confirm_caught_up(self) -> bool:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self._caught_up = answer is True
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.mark.usefixtures("short_limits")
async def test_a_silent_lane_is_asked_until_it_is_caught_up() -> None:
    lane = AskedLane(False, Unreachable("restarting"), False, True)
    assert await run(Inbound(lane), ONE, ends={"a:0": (9,)}, stop_at_end=True) == [b"x"]
    assert lane.answers == [True]


@pytest.mark.usefixtures("short_limits")
async def test_a_source_that_must_not_be_asked_ends_reading() -> None:
    with pytest.raises(ClusterError, match="no permission"):
        await run(Inbound(AskedLane(ClusterError("no permission", Failure.FATAL))), ONE, ends={"a:0": (9,)}, stop_at_end=True)


@pytest.mark.usefixtures("short_limits")
async def test_a_source_that_was_caught_up_and_cannot_be_asked_ends_reading() -> None:
    """As far as the lane knows it is at its end, so nothing else will ever arrive."""
    lane = AskedLane(Unreachable("nobody listens"))
    lane._caught_up = True
    with pytest.raises(ClusterError, match="nobody listens"):
        await run(Inbound(lane), ONE, ends={"a:0": (9,)}, stop_at_end=True)


@pytest.mark.usefixtures("short_limits")
async def test_a_caught_up_lane_does_not_delay_the_end_while_another_member_has_the_other_partition() -> None:
    lane = Lane(0, b"x", caught_up=True)
    assert await run(Inbound(lane), ends={"a:0": (9,), "b:0": (9,)}, stop_at_end=True) == [b"x"]


async def test_a_batch_that_is_shown_in_part_is_rejected() -> None:
    lane = Lane(0, b"ab", b"cd")
    assert await run(Inbound(lane), ONE, count=3) == [b"a", b"b", b"c"]
    assert (lane.acknowledged, lane.rejected) == ([b"ab"], [b"cd"])


async def test_lanes_of_other_partitions_are_ignored() -> None:
    other = Lane(1, b"x")
    assert await run(Inbound(other, Lane(0, b"y")), ONE, ends={"a:0": (1,)}, stop_at_end=True) == [b"y"]
    assert other.remaining == [b"x"]


@pytest.mark.usefixtures("short_limits")
async def test_reading_ends_without_partitions_of_other_members() -> None:
    assert await run(Inbound(Lane(0, b"x")), ends={"a:0": (1,), "b:0": (1,)}, stop_at_end=True) == [b"x"]


@pytest.mark.usefixtures("short_limits")
async def test_reading_waits_for_a_slow_first_assignment() -> None:
    assigned = asyncio.Event()
    asyncio.get_running_loop().call_later(0.3, assigned.set)
    assert await run(Inbound(Lane(0, b"x"), after=assigned), ends={"a:0": (1,)}, stop_at_end=True) == [b"x"]


async def test_reading_ends_if_other_members_have_every_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_reader, "FIRST_LANE_S", 0.05)
    assert await run(Inbound(), stop_at_end=True) == []


async def test_a_partition_that_is_assigned_again_is_not_moved_again() -> None:
    lanes = Lane(0, LaneRevoked("taken")), Lane(0, b"xyz")
    assert await run(Inbound(*lanes), ONE, begin={"a:0": (0,)}, ends={"a:0": (3,)}, stop_at_end=True) == [b"x", b"y", b"z"]
    assert (lanes[0].sought, lanes[1].sought) == ([(0,)], [])


async def test_messages_of_other_types_are_acknowledged_but_not_shown() -> None:
    lane = Lane(0, b"x")
    assert await run(Inbound(lane), ONE, ends={"a:0": (1,)}, stop_at_end=True, msg_types=frozenset({"paid"})) == []
    assert lane.acknowledged == [b"x"]


@pytest.mark.parametrize("error", [GapError("lost"), ClusterError("gone")])
async def test_an_error_of_a_lane_ends_the_reading(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR), pytest.raises(type(error)):
        await run(Inbound(Lane(0, b"x", error)))
    assert not caplog.records  # the command prints the error: it is not logged as a bug


async def test_an_error_of_the_inbound_ends_the_reading() -> None:
    with pytest.raises(ClusterError, match="gone"):
        await run(Inbound(Lane(0), error=ClusterError("gone")))


async def test_waiting_for_the_first_partition_prints_a_note(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(group_reader, "NOTE_AFTER_S", 0.0)
    note = "waiting for the group's first partition; groups of some systems take half a minute\n"
    waiting = asyncio.ensure_future(run(Inbound()))
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while not (err := capsys.readouterr().err):
            await asyncio.sleep(0.001)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert err == note
