"""`Messages` of the compiled module by themselves: views of them, parts of them, and what they are made of."""

from typing import Any

import pytest

from mqbridge.message import Batch, Message, Partition, Share
from mqbridge.native import compiled
from mqbridge.routing.keys import KeyPicker
from mqbridge.routing.loops import LoopGuard

pytestmark = pytest.mark.skipif(compiled is None, reason="the compiled module is not installed")

MESSAGES = [
    Message(b"1", (("a", "x"), ("b", ""), ("a", "y")), "key", b"o", ("i", "j"), "t", b"a=1", 5, 6, 7, 8, (9,), "c|t|0|1", 2),
    Message(None, key=b"\xff", position=(1, 2, 3)),
    Message("é".encode(), (("größe", "ü"),), keys=("ä",), origin="other|t|0|1", hops=1),
    Message(b"raw", defect="it is damaged"),
]


def made(messages: list[Any]) -> Any:
    assert compiled is not None
    return compiled.Messages.of(messages)


def test_views_have_the_attributes_of_messages() -> None:
    views = made(MESSAGES)
    assert [view.as_dict() for view in views] == [message.as_dict() for message in MESSAGES]
    assert [repr(view) for view in views] == [repr(message) for message in MESSAGES]
    assert [view.property("a") for view in views] == ["x", None, None, None]
    changed = views[0].replace(key=None)
    assert type(changed) is Message
    assert changed.as_dict() == MESSAGES[0].replace(key=None).as_dict()


def test_parts_and_lists_of_views_and_messages() -> None:
    views = made(MESSAGES)
    part = views.part([2, 0]).part([1, 0, 1])
    assert [view.payload for view in part] == [b"1", "é".encode(), b"1"]
    assert [view.payload for view in views[1:-1]] == [None, "é".encode()]
    mixed = made([views[3], MESSAGES[1], part[0], views[2]])
    assert [message.as_dict() for message in mixed] == [MESSAGES[index].as_dict() for index in (3, 1, 0, 2)]
    for beyond in (4, -5):
        with pytest.raises(IndexError):
            views[beyond]
    with pytest.raises(IndexError):
        views.part([4])


@pytest.mark.parametrize(
    "change",
    [
        {"payload": bytearray(b"x")},
        {"properties": (["a", "b"],)},
        {"properties": (("a", 1),)},
        {"key": 5},
        {"keys": (1,)},
        {"position": [1]},
        {"position": (1, 2, 3, 4)},
        {"position": (1 << 63,)},
        {"event_time": 1.5},
        {"deliver_at": -(1 << 63) - 1},
        {"hops": (1 << 63) - 1},
        {"msg_type": "\ud800"},
    ],
)
def test_what_does_not_fit_is_left_to_the_plain_code(change: dict[str, Any]) -> None:
    assert made([MESSAGES[0], MESSAGES[0].replace(**change)]) is None


def test_loops_are_seen_without_messages() -> None:
    batch = Batch(Partition("c", "t", "0", 0), made(MESSAGES), count=4, size=4, first=(0,), next=(4,))
    for home, most, kept in [(("c", "t"), 16, [1, 2, 3]), (("c", "u"), 1, [1, 3]), (("c", "u"), 16, None)]:
        held_back: list[int] = []
        share = LoopGuard(home[0], [home[1]], most, held_back.append).keep(Share(batch))
        assert share.indexes == kept
        assert held_back == ([] if kept is None else [4 - len(kept)])


@pytest.mark.parametrize("names", [["key"], ["keys"], ["ordering_key"], ["property:a"], ["property:a", "key", "keys"]])
def test_keys_are_those_that_messages_have(names: list[str]) -> None:
    picker = KeyPicker(names)
    assert list(picker.keys(made(MESSAGES))) == list(picker.keys(MESSAGES))
