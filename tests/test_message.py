"""A share has the messages of its batch that it names, with their changes, and the time at which they are delivered."""

from collections.abc import Sequence

import pytest

from mqbridge.message import Batch, Message, Share

BATCH = Batch.of([Message(b"0", deliver_at=5), Message(b"1"), Message(b"2", key="k")])


def contents(messages: Sequence[Message]) -> list[tuple[bytes | None, int | None]]:
    return [(message.payload, message.deliver_at) for message in messages]


@pytest.mark.parametrize("indexes", [None, [0, 2]])
@pytest.mark.parametrize("has_edits", [False, True])
def test_all_messages_of_a_share_get_its_time(indexes: list[int] | None, has_edits: bool) -> None:
    chosen = indexes or range(3)
    edited = [Message(b"e%d" % index) for index in chosen] if has_edits else None
    share = Share(BATCH, indexes, edited, deliver_at=9)
    expected = [(b"e%d" % index if has_edits else b"%d" % index, 9) for index in chosen]
    assert contents(share.messages) == expected
    assert (share.is_edited, share.has_edits) == (True, has_edits)
    assert contents(share.originals) == [(b"%d" % index, 5 if index == 0 else None) for index in chosen]
    part = share.subset([1])
    assert contents(part.messages) == expected[1:2]
    assert (part.deliver_at, part.has_edits, part.count) == (9, has_edits, 1)


def test_without_a_time_messages_keep_their_own() -> None:
    share = Share(BATCH)
    assert contents(share.messages) == [(b"0", 5), (b"1", None), (b"2", None)]
    assert not share.is_edited
    assert share.subset([0]).deliver_at is None
