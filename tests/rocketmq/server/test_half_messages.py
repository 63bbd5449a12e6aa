"""The half messages of one producer group."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.errors import ClusterError, GapError
from mqbridge.message import NO_SOURCE, Batch, Message, Unit
from mqbridge.net.tasks import cancel, spawn
from mqbridge.rocketmq.server import half_messages as module
from mqbridge.rocketmq.server.half_messages import (
    ENDED,
    HALF,
    HalfKey,
    HalfMessages,
    OpenHalf,
    Outcome,
    PreparedMessage,
    ended_note,
    half_message,
    read_half,
    read_note,
)
from tests.patience import PATIENCE_S
from tests.rocketmq.server.serving import rounds, until

NUMBERS = st.integers(0, (1 << 63) - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
PREPARED = st.builds(PreparedMessage, TEXTS, TEXTS, NUMBERS, TEXTS, NUMBERS, NUMBERS)


@given(PREPARED, st.binary(max_size=20))
def test_a_half_message_is_read_as_it_was_written(half: PreparedMessage, data: bytes) -> None:
    assert read_half(half_message(half, Unit(data, 1, 5))) == (half, Unit(data, 1, None))


@given(st.one_of(st.text(max_size=20), st.recursive(st.none() | st.integers() | st.text(max_size=3), st.lists).map(json.dumps)))
def test_any_other_text_is_no_half_message_or_a_valid_one(text: str) -> None:
    found = read_half(Message(b"x", ((HALF, text),)))
    if found is not None:
        assert list(found[0]) == [*json.loads(text), 0][:6]


@pytest.mark.parametrize(
    "values",
    [
        ["id", "t", 0, "g"], ["id", "t", -1, "g", 1, 0], ["id", "t", 1 << 63, "g", 1, 0], [1, "t", 0, "g", 1, 0],
        ["id", None, 0, "g", 1, 0], ["id", "t", True, "g", 1, 0], ["id", "t", 0, "g", 1.5, 0], ["id", "t", 0, "g", 1, 0, 0],
        {"a": 1}, 7, None,
    ],
    ids=str,
)  # fmt: skip
def test_damaged_half_messages_are_none(values: Any) -> None:
    assert read_half(Message(b"x", ((HALF, json.dumps(values)),))) is None


def test_messages_of_others_are_none() -> None:
    assert read_half(Message(b"x")) is None
    assert read_half(Message(b"x", ((HALF, "[" * 100_000),))) is None
    valid = ((HALF, json.dumps(PreparedMessage("id", "t", 0, "g", 1))),)
    assert read_half(Message(b"x", valid)) is not None
    assert read_half(Message(b"x", valid, defect="damaged")) is None
    assert read_half(Message(b"", ((ENDED, "id"),))) is None


def test_a_producer_is_asked_first_after_its_own_time() -> None:
    assert OpenHalf(PreparedMessage("id", "t", 0, "g", 10_000), (0,)).next_check == 10 + module.FIRST_CHECK_S
    assert OpenHalf(PreparedMessage("id", "t", 0, "g", 10_000, 60), (0,)).next_check == 70


class FakeHalfTopic:
    name = "half-p"

    def __init__(self) -> None:
        self.needs_contents = False
        self.appended: list[Message] = []
        self.attempts = 0
        self.error: ClusterError | None = None
        self.is_closed = False

    async def append(self, messages: list[Message]) -> list[tuple[int, ...]]:
        self.attempts += 1
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.appended += messages
        return [(0,)]

    async def close(self, _: float | None) -> None:
        self.is_closed = True

    @property
    def notes(self) -> list[HalfKey | None]:
        return [read_note(text) for message in self.appended for text in message.property_values(ENDED)]


class HalfBench:
    """Half messages over a topic whose appends a test lets fail, and what was committed."""

    def __init__(self) -> None:
        self.topic = FakeHalfTopic()
        self.committed: list[PreparedMessage] = []
        self.halves = HalfMessages(self.topic, lambda *_: False, self.commit, self.commit)  # type: ignore[arg-type]

    async def commit(self, half: PreparedMessage, _: Unit) -> None:
        self.committed.append(half)

    async def end(self, half_id: str = "a", position: int = 0) -> None:
        half = PreparedMessage(half_id, "t", 0, "g", 1)
        await self.halves.end(half, Unit(b"", 1, None), (position,), Outcome.COMMIT)


def opened() -> HalfMessages:
    return HalfBench().halves


def half_at(position: int, half_id: str) -> Message:
    message = half_message(PreparedMessage(half_id, "t", 0, "g", 1), Unit(b"", 1, None))
    return message.replace(position=(position,))


def note_of(half_id: str, position: int = 0) -> Message:
    return ended_note(HalfKey(half_id, (position,)))


def open_positions(halves: HalfMessages) -> list[tuple[str, int]]:
    """Return the ids and positions of the open half messages, the oldest first."""
    return [(each.half.id, each.position[0]) for each in halves._open.values()]


def test_a_note_ends_the_half_message_at_its_position() -> None:
    halves = opened()
    halves._take([half_at(0, "a"), half_at(1, "b"), note_of("a", 0)])
    assert open_positions(halves) == [("b", 1)]
    halves._take([Message(b"foreign"), half_at(6, "c")])
    assert open_positions(halves) == [("b", 1), ("c", 6)]


def test_a_half_message_that_is_stored_after_the_end_of_one_with_its_id_is_open() -> None:
    halves = opened()
    halves._take([half_at(0, "a"), note_of("a", 0), half_at(2, "a")])
    assert open_positions(halves) == [("a", 2)]
    halves._take([note_of("a", 0)])
    assert open_positions(halves) == [("a", 2)], "the note is of the one before"
    halves._take([note_of("a", 2)])
    assert open_positions(halves) == []


def test_a_half_message_whose_end_was_told_before_it_was_read_is_not_open() -> None:
    halves = opened()
    halves._take([note_of("a", 5), half_at(5, "a")])
    assert open_positions(halves) == []


def test_half_messages_of_one_id_are_open_each() -> None:
    """An application may send a message object again before its first transaction has ended."""
    halves = opened()
    halves._take([half_at(0, "a"), half_at(1, "b"), half_at(2, "a")])
    assert open_positions(halves) == [("a", 0), ("b", 1), ("a", 2)]
    halves._take([half_at(0, "a")])
    assert open_positions(halves) == [("a", 0), ("b", 1), ("a", 2)], "one that is read again is not another one"
    halves._take([note_of("a", 2)])
    assert open_positions(halves) == [("a", 0), ("b", 1)]


def test_half_messages_without_an_id_do_not_replace_each_other() -> None:
    halves = opened()
    halves._take([half_at(0, ""), half_at(1, ""), half_at(2, "")])
    assert open_positions(halves) == [("", 0), ("", 1), ("", 2)]
    halves._take([note_of("", 1)])
    assert open_positions(halves) == [("", 0), ("", 2)]


@given(TEXTS, st.lists(NUMBERS, min_size=1, max_size=3).map(tuple))
def test_a_note_is_read_as_it_was_written(half_id: str, position: tuple[int, ...]) -> None:
    (text,) = ended_note(HalfKey(half_id, position)).property_values(ENDED)
    assert read_note(text) == HalfKey(half_id, position)


@pytest.mark.parametrize(
    "text",
    ["", "an-id", "[", "[" * 100_000, "null", "{}", "7", '["id"]', '["id", 7]', '["id", []]', '["id", [-1]]', '["id", [true]]',
     '["id", [1.5]]', '["id", "12"]', "[1, [1]]", '["id", [1], 2]', "ab"],
    ids=lambda text: text[:12],
)  # fmt: skip
def test_a_note_that_cannot_be_read_is_skipped(text: str, caplog: pytest.LogCaptureFixture) -> None:
    halves = opened()
    halves._take([half_at(0, "an-id"), Message(b"", ((ENDED, text),)), half_at(2, "b")])
    assert open_positions(halves) == [("an-id", 0), ("b", 2)]
    assert "cannot be read, and is skipped" in caplog.text


def test_few_ends_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENDED", 2)
    halves = opened()
    for name in "abc":
        halves._remember_ended(HalfKey(name, (0,)))
    assert [each.id for each in halves._ended] == ["b", "c"]
    halves._take([note_of(name) for name in "defg"])
    assert len(halves._ended) == 2


# --- notes that cannot be stored ------------------------------------------------------------------------------------------


async def test_an_end_that_is_told_again_stores_the_note_that_is_missing_and_no_message() -> None:
    bench = HalfBench()
    bench.halves._take([half_at(0, "a")])
    bench.topic.error = ClusterError("not now")
    for _ in range(2):
        with pytest.raises(ClusterError):
            await bench.end()
    assert (len(bench.committed), bench.topic.notes, open_positions(bench.halves)) == (1, [], [])
    bench.topic.error = None
    for _ in range(2):
        await bench.end()
    assert (len(bench.committed), bench.topic.notes) == (1, [HalfKey("a", (0,))])
    await bench.halves.close()


async def test_a_note_that_is_missing_is_stored_later(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(module, "NOTE_AGAIN_S", 0.001)
    bench = HalfBench()
    bench.topic.error = ClusterError("not now")
    for position in range(3):
        with pytest.raises(ClusterError):
            await bench.end("a", position)
    attempts = bench.topic.attempts
    await until(lambda: bench.topic.attempts > attempts + 2)
    assert "the end of 3 transactions is not noted in half-p" in caplog.text
    assert bench.halves.idle_s == 0
    bench.topic.error = None
    await until(lambda: bench.halves.idle_s > 0)
    assert sorted(bench.topic.notes) == [HalfKey("a", (position,)) for position in range(3)]  # type: ignore[type-var]
    assert len(bench.committed) == 3
    bench.topic.error = ClusterError("not now")
    with pytest.raises(ClusterError):
        await bench.end("b")
    bench.topic.error = None
    await until(lambda: bench.halves.idle_s > 0)
    assert bench.topic.notes[-1] == HalfKey("b", (0,))


async def test_a_note_whose_append_was_given_up_is_stored_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NOTE_AGAIN_S", 0.001)
    bench, gate = HalfBench(), asyncio.Event()

    async def hang(_: object) -> None:
        await gate.wait()

    with monkeypatch.context() as patch:
        patch.setattr(bench.topic, "append", hang)
        ending = spawn(bench.end(), "end")
        await until(lambda: len(bench.committed) == 1)
        await cancel(ending)
    await until(lambda: bench.topic.notes == [HalfKey("a", (0,))])
    assert len(bench.committed) == 1


async def test_closing_tries_to_store_notes_a_last_time(caplog: pytest.LogCaptureFixture) -> None:
    bench = HalfBench()
    bench.topic.error = ClusterError("not now")
    with pytest.raises(ClusterError):
        await bench.end()
    bench.topic.error = None
    await bench.halves.close(asyncio.get_running_loop().time() + PATIENCE_S)
    assert (bench.topic.notes, bench.topic.is_closed) == ([HalfKey("a", (0,))], True)
    assert "may be committed once more" not in caplog.text


async def test_closing_ends_if_notes_cannot_be_stored(caplog: pytest.LogCaptureFixture) -> None:
    bench = HalfBench()
    bench.topic.error = ClusterError("not now")
    for position in range(2):
        with pytest.raises(ClusterError):
            await bench.end("a", position)
    attempts = bench.topic.attempts
    await bench.halves.close(asyncio.get_running_loop().time() + PATIENCE_S)
    assert (bench.topic.notes, bench.topic.is_closed, bench.topic.attempts) == ([], True, attempts + 1)
    assert "the end of 2 transactions is not noted in half-p, and they may be committed once more: not now" in caplog.text


async def test_closing_waits_for_those_that_use_half_messages() -> None:
    bench = HalfBench()
    with bench.halves.in_use():
        assert bench.halves.idle_s == 0
        closing = spawn(bench.halves.close(), "close")
        with bench.halves.in_use():
            await rounds()
        await rounds()
        assert not bench.topic.is_closed
    await closing
    assert bench.topic.is_closed
    assert bench.halves.idle_s > 0


async def test_closing_ends_at_its_deadline() -> None:
    bench = HalfBench()
    with bench.halves.in_use():
        await bench.halves.close(asyncio.get_running_loop().time() + 0.01)
    assert bench.topic.is_closed


async def test_a_note_that_is_missing_after_the_end_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NOTE_AGAIN_S", 0.001)
    bench = HalfBench()
    with bench.halves.in_use():
        await bench.halves.close(asyncio.get_running_loop().time() + 0.01)
        bench.topic.error = ClusterError("half-p was closed")
        with pytest.raises(ClusterError):
            await bench.end()
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "notes of half-p"]


async def test_few_ends_wait_for_their_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENDED", 2)
    bench = HalfBench()
    bench.topic.error = ClusterError("not now")
    for position in range(5):
        with pytest.raises(ClusterError):
            await bench.end("a", position)
    assert len(bench.committed) == 2, "the others stay open"
    bench.topic.error = None
    for position in range(5):
        await bench.end("a", position)
    assert (len(bench.committed), len(bench.topic.notes)) == (5, 5)
    await bench.halves.close()


# --- what is acknowledged -------------------------------------------------------------------------------------------------


class FakeLane:
    """A lane whose batches a test gives it."""

    def __init__(self) -> None:
        self.acknowledged: list[Any] = []
        self.revoked = asyncio.Event()
        self.received = 0
        self.seeks: list[tuple[int, ...]] = []
        self._batches: asyncio.Queue[Batch | GapError] = asyncio.Queue()

    def give(self, *messages: Message, messages_replace_data: bool = False) -> Batch:
        """Let the next `receive` return these messages, as a batch that decodes them on demand."""
        batch = Batch(
            NO_SOURCE, lambda: messages, count=len(messages), size=1, first=messages[0].position,
            next=(messages[-1].position[0] + 1,), data=b"received", held_bytes=10, messages_replace_data=messages_replace_data,
        )  # fmt: skip
        self._batches.put_nowait(batch)
        return batch

    def lose(self, end: int) -> None:
        """Let the messages before `end` be lost."""
        self._batches.put_nowait(GapError("messages are lost", (end,)))

    async def receive(self) -> Batch:
        batch = await self._batches.get()
        if isinstance(batch, GapError):
            raise batch
        self.received += 1
        return batch

    async def seek(self, position: tuple[int, ...]) -> None:
        self.seeks.append(position)

    def acknowledge(self, batch: Any) -> None:
        self.acknowledged.append(batch)


@asynccontextmanager
async def running(bench: HalfBench, lane: FakeLane) -> AsyncIterator[None]:
    """Run a lane of the half messages until the block ends."""
    task = spawn(bench.halves._run_lane(lane, None), "lane")  # type: ignore[arg-type]
    try:
        yield
    finally:
        lane.revoked.set()
        await task


def full_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if "wait behind the oldest open one" in record.message]


@pytest.mark.parametrize(("needs_contents", "replaces"), [(False, False), (False, True), (True, True), (True, False)])
async def test_contents_of_messages_that_wait_are_dropped_unless_the_cluster_needs_them(
    needs_contents: bool, replaces: bool
) -> None:
    bench, lane = HalfBench(), FakeLane()
    bench.topic.needs_contents = needs_contents
    batch = lane.give(half_at(0, "a"), messages_replace_data=replaces)
    async with running(bench, lane):
        await until(lambda: open_positions(bench.halves) == [("a", 0)])
        keeps = needs_contents and not replaces
        assert (batch.data, batch.is_decoded) == ((b"received", False) if keeps else (None, True))
        assert len(batch.messages) == keeps
        await bench.end("a", 0)
        assert lane.acknowledged == [batch]


async def test_reading_stops_while_many_messages_wait(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 4)
    bench, lane = HalfBench(), FakeLane()
    for position in range(10):
        lane.give(half_at(position, f"h{position}"))
    async with running(bench, lane):
        await until(lambda: bool(full_warnings(caplog)))
        for position in (1, 2, 3):
            await bench.end(f"h{position}", position)
        await rounds()
        assert (lane.received, lane.acknowledged, len(full_warnings(caplog))) == (4, [], 1)
        await bench.end("h0", 0)
        await until(lambda: lane.received == 8)
        await until(lambda: len(full_warnings(caplog)) == 2)
        for position in range(4, 10):
            await bench.end(f"h{position}", position)
        await until(lambda: len(lane.acknowledged) == 10)
    assert bench.halves._waiting == 0


async def test_a_stop_that_goes_on_is_logged_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 4)
    bench, lane = HalfBench(), FakeLane()
    for position in range(20):
        lane.give(half_at(position, f"h{position}"))
    async with running(bench, lane):
        for position in range(10):
            await until(lambda n=position: lane.received == n + 4)  # type: ignore[misc]
            await bench.end(f"h{position}", position)
        await until(lambda: lane.received == 14)
    assert len(full_warnings(caplog)) == 1


async def test_reading_stops_while_contents_that_the_cluster_needs_take_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING_BYTES", 25)
    bench, lane = HalfBench(), FakeLane()
    bench.topic.needs_contents = True
    for position in range(5):
        lane.give(half_at(position, f"h{position}"))
    async with running(bench, lane):
        await until(lambda: lane.received == 3)
        await rounds()
        assert lane.received == 3
        await bench.end("h0", 0)
        await until(lambda: lane.received == 4)
        for position in range(1, 5):
            await bench.end(f"h{position}", position)
        await until(lambda: len(lane.acknowledged) == 5)
    assert bench.halves._waiting_bytes == 0


async def test_while_reading_is_stopped_no_producer_is_asked_about_what_may_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The notes of the newest half messages may be among what is not read."""
    monkeypatch.setattr(module, "MAX_WAITING", 6)
    bench, lane = HalfBench(), FakeLane()
    async with running(bench, lane):
        for position in range(6):
            lane.give(half_at(position, f"h{position}"))
        await until(lambda: len(bench.halves._open) == 6)
        assert [each.position for each in bench.halves._due(1e9)] == [(0,), (1,), (2,)]
        await bench.end("h0", 0)
        assert [each.position for each in bench.halves._due(1e9)] == [(1,), (2,), (3,), (4,), (5,)]
        lane.give(half_at(6, "h6"), half_at(7, "h7"))
        await until(lambda: len(bench.halves._open) == 7)
        assert [each.position for each in bench.halves._due(1e9)] == [(1,), (2,), (3,)]
        for position in (1, 2, 3, 4, 5):
            await bench.end(f"h{position}", position)
        lane.give(*(half_at(position, f"h{position}") for position in range(8, 20)))
        await bench.end("h6", 6)
        await bench.end("h7", 7)
        await until(lambda: len(bench.halves._open) == 12)
        assert [each.position for each in bench.halves._due(1e9)] == [(8,)], "always about the oldest"


async def test_lost_messages_are_passed_once_no_half_message_before_them_is_open() -> None:
    """Passing them acknowledges what is before them."""
    bench, lane = HalfBench(), FakeLane()
    lane.give(half_at(0, "a"))
    lane.lose(5)
    lane.give(half_at(5, "b"))
    async with running(bench, lane):
        await until(lambda: open_positions(bench.halves) == [("a", 0)])
        await rounds()
        assert lane.seeks == []
        await bench.end("a", 0)
        await until(lambda: open_positions(bench.halves) == [("b", 5)])
        assert lane.seeks == [(5,)]


async def test_a_lane_that_was_lost_does_not_end_the_one_after_it() -> None:
    bench, first, second = HalfBench(), FakeLane(), FakeLane()
    first.give(half_at(0, "a"))
    ended = spawn(bench.halves._run_lane(first, None), "first")  # type: ignore[arg-type]
    await until(lambda: open_positions(bench.halves) == [("a", 0)])
    batch = second.give(half_at(0, "a"))
    async with running(bench, second):
        await until(lambda: second.received == 1)
        first.give(half_at(7, "old"))
        await until(lambda: first.received == 2)
        first.revoked.set()
        await ended
        assert open_positions(bench.halves) == [("a", 0)]
        await bench.end("a", 0)
        assert (first.acknowledged, second.acknowledged) == ([], [batch])


class FakeHalfBatch:
    count = 1

    def __init__(self, next_: int) -> None:
        self.next = (next_,)

    def drop_contents(self) -> None:
        pass


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans()), max_size=8), st.randoms())
def test_what_is_before_the_oldest_open_half_message_is_acknowledged(batches: list[tuple[int, bool]], random: Any) -> None:
    halves, lane, position, ids = opened(), FakeLane(), 0, []
    halves._lane = lane  # type: ignore[assignment]
    made: list[FakeHalfBatch] = []
    for count, has_halves in batches:
        messages = []
        for _ in range(count):
            messages.append(half_at(position, f"h{position}") if has_halves else note_of("other").replace(position=(position,)))
            ids += [f"h{position}"] if has_halves else []
            position += 1
        made.append(FakeHalfBatch(position))
        halves._take(messages)
        halves._keep(made[-1])  # type: ignore[arg-type]
    random.shuffle(ids)
    while True:
        oldest = min((int(half_id[1:]) for half_id in ids), default=position)
        assert lane.acknowledged == [each for each in made if each.next <= (oldest,)]
        if not ids:
            break
        half_id = ids.pop()
        halves._note_ended(HalfKey(half_id, (int(half_id[1:]),)))
