"""Edits: changed and unchanged fields, and edits in a route."""

from typing import Any

import pytest

from mqbridge.config.options.edit import EditRules
from mqbridge.config.templates import MESSAGE_WORDS, message_template_words
from mqbridge.errors import ConfigError
from mqbridge.message import Batch, Message, Partition, Share
from mqbridge.routing.edits import Edit
from mqbridge.routing.templates import Template
from tests.gateway.world import World, end, put, route, run

SOURCE = Partition("a", "orders_eu", "broker:1", 1)
MESSAGE = Message(
    b"x",
    (("user", "u1"), ("secret", "s"), ("x-a", "1"), ("user", "u2")),
    key="k",
    keys=("i1", "i2"),
    msg_type="paid",
    attributes=b"user=u1,secret=s",
    event_time=1700000000123,
    deliver_at=5,
    position=(7, 2),
)


def edited(message: Message = MESSAGE, **rules: Any) -> Message:
    edit = Edit(EditRules.model_validate(rules), {"topic": "orders_eu", "region": "eu"})
    [result] = edit.apply(Share(Batch.of([message], SOURCE))).messages
    return result


def changes(message: Message = MESSAGE, **rules: Any) -> dict[str, Any]:
    before = message.as_dict()
    return {name: value for name, value in edited(message, **rules).as_dict().items() if value != before[name]}


def test_properties_are_removed_renamed_and_set() -> None:
    assert changes(remove=["secret", "~x-.*"], rename={"user": "who"}, set={"region": "{region}", "who": "{property:user}!"}) == {
        "properties": (("who", "u1!"), ("region", "eu")),
        "attributes": None,
    }


def test_a_rename_keeps_the_order_and_every_value() -> None:
    assert edited(rename={"user": "who"}).properties == (("who", "u1"), ("secret", "s"), ("x-a", "1"), ("who", "u2"))


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"key": "{property:user}"}, {"key": "u1"}),
        ({"key": "{topic}/{partition}/{position}"}, {"key": "orders_eu/broker:1/7:2"}),
        ({"ordering_key": "{key}"}, {"ordering_key": b"k"}),
        ({"keys": ["{property:user}", "{property:none}", "{event_time}"]}, {"keys": ("u1", "1700000000123")}),
        ({"msg_type": "{cluster}.{msg_type}"}, {"msg_type": "a.paid", "attributes": None}),
        (
            {"clear": ["key", "keys", "event_time", "deliver_at"]},
            {"key": None, "keys": (), "event_time": None, "deliver_at": None},
        ),
        ({"clear": ["key"], "key": "{property:none}"}, {"key": None}),
        ({"clear": ["key"], "key": "{property:x-a}"}, {"key": "1"}),
        ({"set": {"a{b": "{{x}}"}}, {"properties": (*MESSAGE.properties, ("a{b", "{x}")), "attributes": None}),
    ],
    ids=str,
)
def test_fields(rules: dict[str, Any], expected: dict[str, Any]) -> None:
    assert changes(**rules) == expected


TYPED = Message(
    b"x",
    (("$msgType$", "paid"), ("$msgTime$", "202311142213"), ("a", "b")),
    msg_type="paid",
    attributes=b"$msgType$=paid,$msgTime$=202311142213,a=b",
    event_time=1700000000000,
)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"msg_type": "sold"}, (("$msgType$", "sold"), TYPED.properties[1], ("a", "b"))),
        ({"clear": ["msg_type"]}, TYPED.properties[1:]),
        ({"clear": ["event_time"]}, (TYPED.properties[0], ("a", "b"))),
        ({"msg_type": "sold", "set": {"$msgType$": "x"}}, (("$msgType$", "x"), *TYPED.properties[1:])),
        ({"msg_type": "sold", "rename": {"$msgType$": "was"}}, (("was", "paid"), *TYPED.properties[1:])),
    ],
    ids=str,
)
def test_a_property_with_the_type_or_time_changes_with_it(rules: dict[str, Any], expected: Any) -> None:
    changed = edited(TYPED, **rules)
    assert (changed.properties, changed.attributes) == (expected, None)


def test_a_property_that_differs_from_the_type_stays() -> None:
    message = TYPED.replace(msg_type="other")
    assert edited(message, msg_type="sold").properties == TYPED.properties


@pytest.mark.parametrize(
    "rules",
    [
        {"remove": ["none", "~none.*"]},
        {"rename": {"none": "some"}},
        {"set": {"secret": "s"}},
        {"set": {"new": "{property:none}"}},
        {"key": "k"},
        {"key": "{property:none}"},
        {"msg_type": "paid"},
        {"clear": ["ordering_key"]},
        {"keys": ["{property:none}"]},
    ],
    ids=str,
)
def test_unchanged_messages_are_not_copied(rules: dict[str, Any]) -> None:
    edit = Edit(EditRules.model_validate(rules), {})
    messages = [MESSAGE, MESSAGE]
    share = Share(Batch.of(messages, SOURCE))
    assert edit.apply(share) is share


def test_only_changed_messages_are_copied() -> None:
    damaged = Message(b"?", (("secret", "s"),), defect="damaged")
    messages = [Message(b"1"), MESSAGE, damaged]
    result = Edit(EditRules.model_validate({"remove": ["secret"]}), {}).apply(Share(Batch.of(messages, SOURCE))).messages
    assert (result[0], result[2]) == (messages[0], damaged)
    assert result[1].property("secret") is None
    assert MESSAGE.property("secret") == "s"
    assert messages[1] is MESSAGE


def test_a_binary_key_in_a_template() -> None:
    assert edited(Message(b"x", key=b"ab"), set={"k": "{key}"}).properties == (("k", "ab"),)


def test_every_word_of_message_templates_has_a_value() -> None:
    message = Message(b"x", key="k", msg_type="m", event_time=5, position=(1,))
    rendered = {word: Template(f"{{{word}}}", {}).render(message, SOURCE) for word in MESSAGE_WORDS}
    assert all(rendered.values()), rendered


def test_words_of_templates() -> None:
    assert message_template_words("{property:a.b}{{}} {key}-{region}") == {"key", "region"}
    assert Template("{property:a: b}", {}).render(Message(b"", (("a: b", "v"),)), SOURCE) == "v"
    for wrong in ("{", "{}", "{property}", "{key!r}", "{key:x}", "{property:a{b}}"):
        with pytest.raises(ConfigError):
            message_template_words(wrong)


async def test_each_target_of_a_route_has_its_own_edits(world: World) -> None:
    world.a.create("orders_eu", 1)
    put(world.a, "orders_eu", 0, MESSAGE, Message(b"y"))
    plain = end("b/{topic}")
    changed = end("c/{topic}", edit={"set": {"region": "{region}", "from": "{partition}:{position}"}, "remove": ["secret"]})
    outcome = await run(world.config(route("r", "a/~orders_(?P<region>.+)", plain, changed)))
    assert outcome.clean
    [here] = world.b.topics["orders_eu"]
    [there] = world.c.topics["orders_eu"]
    assert [m.properties for m in here.messages] == [MESSAGE.properties, ()]
    assert there.messages[0].properties == (
        *(p for p in MESSAGE.properties if p[0] != "secret"),
        ("region", "eu"),
        ("from", "0:0"),
    )
    assert there.messages[1].properties == (("region", "eu"), ("from", "0:1"))
    assert [m.payload for m in there.messages] == [b"x", b"y"]


async def test_a_dead_letter_has_no_edits(world: World) -> None:
    world.a.create("t", 1)
    put(world.a, "t", 0, Message(b"1"), MESSAGE)
    world.b.create("t", 1)
    world.b.faults.refuse = lambda m: "marked" if m.property("mark") and m.property("secret") else None
    target = end("b/t", edit={"set": {"mark": "yes", "user": "all"}})
    assert (await run(world.config(route("r", "a/t", target, delivery={"dead_letter": end("c/dead")})))).clean
    [letter] = world.c.topics["dead"][0].messages
    assert [pair for pair in letter.properties if not pair[0].startswith("mqbridge.")] == list(MESSAGE.properties)
    assert letter.attributes == MESSAGE.attributes
    assert letter.property("mqbridge.dead.reason") == "marked"
