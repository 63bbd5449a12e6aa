"""The half messages of one producer group."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.message import Message, Unit
from mqbridge.rocketmq.server import half_messages as module
from mqbridge.rocketmq.server.half_messages import ENDED, HALF, HalfMessages, OpenHalf, PreparedMessage, half_message, read_half

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
        self.appended: list[Message] = []

    async def append(self, messages: list[Message]) -> list[tuple[int, ...]]:
        self.appended += messages
        return [(0,)]


def opened() -> HalfMessages:
    async def nothing(*_: object) -> None:
        pass

    return HalfMessages(FakeHalfTopic(), lambda *_: False, nothing, nothing)  # type: ignore[arg-type]


def half_at(position: int, half_id: str) -> Message:
    message = half_message(PreparedMessage(half_id, "t", 0, "g", 1), Unit(b"", 1, None))
    return message.replace(position=(position,))


def note_of(half_id: str) -> Message:
    return Message(b"", ((ENDED, half_id),))


def test_a_note_ends_a_half_message_before_and_behind_it() -> None:
    halves = opened()
    halves._take([half_at(0, "a"), half_at(1, "b"), note_of("a")])
    assert list(halves._open) == ["b"]
    halves._take([note_of("late"), half_at(5, "late")])
    assert list(halves._open) == ["b"], "one that is stored again after its note stays ended"
    halves._take([Message(b"foreign"), half_at(6, "c")])
    assert list(halves._open) == ["b", "c"]


def test_few_ends_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENDED", 2)
    halves = opened()
    for name in "abc":
        halves._note_ended(name)
    assert list(halves._ended) == ["b", "c"]
    halves._take([note_of(name) for name in "defg"])
    assert len(halves._ended) == 2


class FakeLane:
    def __init__(self) -> None:
        self.acknowledged: list[Any] = []

    def acknowledge(self, batch: Any) -> None:
        self.acknowledged.append(batch)


class FakeHalfBatch:
    def __init__(self, next_: int) -> None:
        self.next = (next_,)


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
        halves._batches.append(made[-1])  # type: ignore[arg-type]
        halves._acknowledge()
    random.shuffle(ids)
    while True:
        oldest = min((int(half_id[1:]) for half_id in ids), default=position)
        assert lane.acknowledged == [each for each in made if each.next <= (oldest,)]
        if not ids:
            break
        halves._note_ended(ids.pop())
