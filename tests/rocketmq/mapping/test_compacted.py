"""Messages for compacted topics have KEYS, and are refused if they have no key."""

import pytest

from mqbridge.message import Message
from mqbridge.rocketmq.mapping.compacted import NO_KEY, with_index_key
from mqbridge.rocketmq.mapping.limits import Limits
from mqbridge.rocketmq.mapping.request import encode
from mqbridge.rocketmq.wire.properties import Name, find
from tests.rocketmq.mapping.test_request_unique_ids import stored
from tests.rocketmq.records import decode

pytestmark = pytest.mark.usefixtures("both_ways")

NOW = 1_800_000_000_000
COMPACTED = Limits(requires_keys=True)


@pytest.mark.parametrize(
    ("message", "keys"),
    [
        (Message(b"x", key="customer-7"), "customer-7"),
        (Message(b"x", key="two words"), "two words"),
        (Message(b"x", key="customer-7", keys=("order-1", "order-2")), "order-1 order-2"),
        (Message(b"x", key="customer-7", keys=(" ", "")), "customer-7"),
        (Message(b"x", key=b"\xff\x00"), "/wA="),
        (Message(b"x", key="a\x01b"), "YQFi"),
        (Message(b"x", key="  "), "ICA="),
        (Message(b"x", key="later", deliver_at=NOW + 60_000), "later"),
        (Message(b"x" * (4 << 20), key="large"), "large"),
        (Message(None, key="tombstone"), "tombstone"),
    ],
)
def test_a_message_is_sent_with_its_index_keys_or_its_key_as_keys(message: Message, keys: str) -> None:
    requests, failures = encode([message], "c|t|p|", COMPACTED, NOW)
    assert not failures
    (record,) = stored(requests)
    assert find(record.properties, Name.KEYS) == keys
    (copy,) = decode([record])
    assert (copy.payload, copy.key) == (message.payload, message.key)


@pytest.mark.parametrize("message", [Message(b"x"), Message(b"x", key=""), Message(b"x", key=b""), Message(b"x", keys=(" ",))])
def test_a_message_without_a_key_is_refused_and_the_others_are_sent(message: Message) -> None:
    requests, failures = encode([Message(b"1", key="a"), message, Message(b"2", key="b")], None, COMPACTED, NOW)
    assert [(failure.index, failure.reason) for failure in failures] == [(1, NO_KEY)]
    assert [list(request.indexes) for request in requests] == [[0], [2]]
    assert with_index_key(message) is None


def test_messages_for_other_topics_stay_as_they_are() -> None:
    requests, failures = encode([Message(b"x", key="k"), Message(b"y")], None, Limits(), NOW)
    assert not failures
    assert [find(record.properties, Name.KEYS) for record in stored(requests)] == [None, None]
