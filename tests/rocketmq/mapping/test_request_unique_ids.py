"""Every sent message has a UNIQ_KEY: its own, or an added one, which readers do not report as a property of the message."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqbridge.message import Message
from mqbridge.rocketmq.mapping.limits import MAX_PROPERTIES_BYTES, Limits
from mqbridge.rocketmq.mapping.request import IDS_PER_RESERVATION, EncodedRequest, ReserveIds, encode
from mqbridge.rocketmq.wire.batch import decode_batch
from mqbridge.rocketmq.wire.ids import MAX_RESERVED, UniqueIds
from mqbridge.rocketmq.wire.properties import Name
from mqbridge.rocketmq.wire.properties import decode as decode_properties
from mqbridge.rocketmq.wire.record import Record
from tests.example_counts import examples
from tests.rocketmq.records import decode
from tests.strategies import any_messages, comparable_fields

pytestmark = pytest.mark.usefixtures("both_ways")

NOW = 1_800_000_000_000


def stored(sends: list[EncodedRequest]) -> list[Record]:
    """Return the records that a broker stores for these requests."""
    return [
        Record("T", body, string, flag=flag)
        for send in sends
        for flag, body, string in (decode_batch(send.body) if send.is_batch else [(send.flag, send.body, send.properties)])
    ]


def ids(record: Record) -> list[str]:
    return [value for name, value in decode_properties(record.properties) if name == Name.UNIQ_KEY]


def reserve_with_prefix(text: str) -> ReserveIds:
    """Return a function that reserves ids; each reservation has a new prefix that begins with this text."""
    starts = itertools.count(10)
    return lambda count: (f"{text}{next(starts)}", 0xFFFF - count)


@settings(max_examples=examples(300))
@given(st.lists(any_messages(), min_size=1, max_size=4), st.sampled_from([None, "c|t|b:0|"]))
def test_added_ids_change_no_message(messages: list[Message], origin: str | None) -> None:
    made, failures = encode(messages, origin, Limits(), NOW, reserve_with_prefix("ID"))
    plain, same = encode(messages, origin, Limits(), NOW)
    assert [failure.index for failure in failures] == [failure.index for failure in same]
    assert [comparable_fields(message) for message in decode(stored(made))] == [
        comparable_fields(message) for message in decode(stored(plain))
    ]
    found = [ids(record) for record in stored(made)]
    assert all(len(each) == 1 for each in found)
    ours = [one for (one,) in found if one.startswith("ID")]
    assert len(set(ours)) == len(ours)


def test_a_message_keeps_its_own_id() -> None:
    messages = [
        Message(b"x", ((Name.UNIQ_KEY, "mine"),)),
        Message(b"y", (("a", "1"), (Name.UNIQ_KEY, "mine too"))),
        Message(b"z"),
    ]
    made, _ = encode(messages, None, Limits(), NOW, reserve_with_prefix("made"))
    assert [ids(record) for record in stored(made)] == [["mine"], ["mine too"], ["made10FEFF"]]
    assert [message.property(Name.UNIQ_KEY) for message in decode(stored(made))] == ["mine", "mine too", None]


@pytest.mark.parametrize("message", [Message(b"x", deliver_at=NOW + 1), Message(b"x" * 1000)], ids=["delayed", "large"])
def test_a_message_sent_alone_gets_an_id(message: Message) -> None:
    [out], _ = encode([message], None, Limits(max_message_bytes=1010), NOW, reserve_with_prefix("made"))
    assert not out.is_batch
    [one] = ids(stored([out])[0])
    assert one.startswith("made10")


def test_an_id_makes_no_message_too_large() -> None:
    value = "v" * (MAX_PROPERTIES_BYTES - len("name\x01\x02mqbridge.v\x011\x02"))
    [out], failures = encode([Message(b"x", (("name", value),))], None, Limits(), NOW, reserve_with_prefix("A" * 32))
    assert failures == []
    assert len(ids(stored([out])[0])) == 1


def test_ids_of_several_reservations_are_unique() -> None:
    made, _ = encode([Message(b"x")] * (2 * IDS_PER_RESERVATION + 1), None, Limits(), NOW, reserve_with_prefix("made"))
    assert len({one for record in stored(made) for one in ids(record)}) == 2 * IDS_PER_RESERVATION + 1


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, MAX_RESERVED)), max_size=20), st.integers(0, MAX_RESERVED))
def test_reserved_ids_never_repeat(asked: list[tuple[int, int]], start: int) -> None:
    maker, now, seen = UniqueIds(bytes(4), 1, 1, start), 0, dict[str, list[range]]()
    for later, count in asked:
        now += later
        text, first = maker.reserve(now, count)
        taken = range(first, first + count)
        assert taken.stop <= MAX_RESERVED
        for other in seen.setdefault(text, []):
            assert taken.stop <= other.start or other.stop <= taken.start
        seen[text].append(taken)
