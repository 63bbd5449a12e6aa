"""`Messages` of the compiled module: their views, parts, keys, loops and filters equal those of plain messages."""

from typing import Any

import pytest

from mqbridge.config.options.filter import FilterRules
from mqbridge.message import Batch, Message, Partition, Share
from mqbridge.native import compiled
from mqbridge.routing.filters import Filter
from mqbridge.routing.keys import KeyPicker
from mqbridge.routing.loops import LoopGuard

pytestmark = pytest.mark.skipif(compiled is None, reason="the compiled module is not installed")

MESSAGES = [
    Message(b"1", (("a", "x"), ("b", ""), ("a", "y")), "key", b"o", ("i", "j"), "t", b"a=1", 5, 6, 7, 8, (9,), "c|t|0|1", 2),
    Message(None, key=b"\xff", position=(1, 2, 3)),
    Message("é".encode(), (("größe", "ü"),), keys=("ä",), origin="other|t|0|1", hops=1),
    Message(b"raw", defect="it is damaged"),
]


def native_messages(messages: list[Any]) -> Any:
    assert compiled is not None
    return compiled.Messages.of(messages)


def batch(messages: Any) -> Batch:
    return Batch(Partition("c", "t", "0", 0), messages, count=len(messages), size=4, first=(0,), next=(len(messages),))


def test_views_have_the_attributes_of_messages() -> None:
    views = native_messages(MESSAGES)
    assert [view.as_dict() for view in views] == [message.as_dict() for message in MESSAGES]
    assert [repr(view) for view in views] == [repr(message) for message in MESSAGES]
    assert [view.property("a") for view in views] == ["x", None, None, None]
    changed = views[0].replace(key=None)
    assert type(changed) is Message
    assert changed.as_dict() == MESSAGES[0].replace(key=None).as_dict()


def test_parts_slices_and_mixed_lists_contain_the_chosen_messages() -> None:
    views = native_messages(MESSAGES)
    part = views.part([2, 0]).part([1, 0, 1])
    assert [view.payload for view in part] == [b"1", "é".encode(), b"1"]
    assert [view.payload for view in views[1:-1]] == [None, "é".encode()]
    mixed = native_messages([views[3], MESSAGES[1], part[0], views[2]])
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
def test_messages_with_values_of_other_types_are_left_to_the_plain_code(change: dict[str, Any]) -> None:
    assert native_messages([MESSAGES[0], MESSAGES[0].replace(**change)]) is None


def test_loops_are_found_without_decoding_messages() -> None:
    batch_of_all = batch(native_messages(MESSAGES))
    for home, max_hops, kept in [(("c", "t"), 16, [1, 2, 3]), (("c", "u"), 1, [1, 3]), (("c", "u"), 16, None)]:
        held_back: list[int] = []
        share = LoopGuard(home[0], [home[1]], max_hops, held_back.append).keep(Share(batch_of_all))
        assert share.indexes == kept
        assert held_back == ([] if kept is None else [4 - len(kept)])


@pytest.mark.parametrize("names", [["key"], ["keys"], ["ordering_key"], ["property:a"], ["property:a", "key", "keys"]])
def test_views_and_messages_have_the_same_keys(names: list[str]) -> None:
    picker = KeyPicker(names)
    assert list(picker.keys(native_messages(MESSAGES))) == list(picker.keys(MESSAGES))


TYPED = [
    Message(str(at).encode(), (("a", str(at % 3)),), msg_type=kind) for at, kind in enumerate(["t", "t", None, "ü", "", "t"])
]
DAMAGED = [Message(b"6", msg_type="t", defect="damaged"), Message(b"7", defect="damaged")]


def test_views_list_message_types_and_damaged_messages() -> None:
    views = native_messages(TYPED + DAMAGED)
    assert views.msg_types() == ["t", "t", None, "ü", "", "t", "t", None]
    assert views.damaged() == [6, 7]
    part = views.part([7, 3, 0])
    assert (part.msg_types(), part.damaged()) == ([None, "ü", "t"], [0])
    assert (views.part([]).msg_types(), views.part([]).damaged()) == ([], [])


@pytest.mark.parametrize(
    ("msg_types", "rules", "kept"),
    [
        (["t"], {}, [0, 1, 5]),
        (["t", "ü", ""], {"exclude": {"msg_type": {"equals": ""}}}, [0, 1, 3, 5]),
        ([], {"include": {"msg_type": {"present": False}}}, [2]),
        ([], {"include": [{"msg_type": {"pattern": "[tu]"}}, {"msg_type": {"equals": "ü"}}]}, [0, 1, 3, 5]),
        ([], {"exclude": {"msg_type": {"one_of": ["t", "none"]}}}, [2, 3, 4]),
        (["none"], {}, []),
        (["t"], {"include": {"properties": {"a": {"equals": "1"}}}}, [1]),
        ([], {"include": {"msg_type": {"equals": "t"}, "properties": {"a": {"equals": "2"}}}}, [5]),
        ([], {"exclude": [{"msg_type": {"equals": "t"}}, {"properties": {"a": {"equals": "2"}}}]}, [3, 4]),
        ([], {"exclude": {"msg_type": {"equals": "none"}}}, list(range(6))),
    ],
    ids=str,
)
def test_filters_keep_the_same_messages_of_views_and_of_messages(
    msg_types: list[str], rules: dict[str, Any], kept: list[int]
) -> None:
    """Damaged messages are always kept."""
    for messages, damaged in ((TYPED, []), (TYPED + DAMAGED, [6, 7])):
        for given in (messages, native_messages(messages)):
            left_out: list[int] = []
            message_filter = Filter(frozenset(msg_types), FilterRules.model_validate(rules), left_out.append)
            share = message_filter.keep(Batch.of(messages) if given is messages else batch(given))
            assert [message.payload for message in share.messages] == [messages[at].payload for at in kept + damaged]
            assert left_out == ([] if len(kept + damaged) == len(messages) else [len(messages) - len(kept + damaged)])
