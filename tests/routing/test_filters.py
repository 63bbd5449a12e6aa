"""Filters: each condition, and a filter in a route."""

from typing import Any

import pytest

from mqbridge.config.options.filter import FilterRules
from mqbridge.message import Batch, Message
from mqbridge.routing.filters import Filter, make_filter
from tests.gateway.world import World, committed, end, everything, put, route, run

PLAIN = Message(b"plain")
PAID = Message(b"paid", (("region", "eu"), ("host", "web-1"), ("region", "us")), key="o-1", keys=("x", "y"), msg_type="paid")
OPEN = Message(b"open", (("region", ""), ("note", "ü=,")), key=b"o-2", msg_type="open")
BINARY = Message(b"binary", key=b"\xff\x00", msg_type="")
DAMAGED = Message(b"damaged", defect="its checksum does not match")
ALL = [PLAIN, PAID, OPEN, BINARY, DAMAGED]


def kept(msg_types: set[str] | None = None, **rules: Any) -> list[str]:
    """Return the payloads that pass, without the damaged one, which always passes."""
    made = make_filter(frozenset(msg_types or ()), FilterRules.model_validate(rules), [].append)
    assert made is not None
    found = made.keep(Batch.of(ALL)).messages
    assert found[-1] is DAMAGED
    return [(message.payload or b"").decode() for message in found[:-1]]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"msg_type": {"equals": "paid"}}, ["paid"]),
        ({"msg_type": {"equals": ""}}, ["binary"]),
        ({"msg_type": {"one_of": ["paid", "open", "none"]}}, ["paid", "open"]),
        ({"msg_type": {"pattern": "p.*|o.*"}}, ["paid", "open"]),
        ({"msg_type": {"pattern": "p"}}, []),
        ({"msg_type": {"present": True}}, ["paid", "open", "binary"]),
        ({"msg_type": {"present": False}}, ["plain"]),
        ({"key": {"equals": "o-1"}}, ["paid"]),
        ({"key": {"equals": "y"}}, ["paid"]),
        ({"key": {"one_of": ["o-2", "z"]}}, ["open"]),
        ({"key": {"pattern": r"o-\d"}}, ["paid", "open"]),
        ({"key": {"present": True}}, ["paid", "open", "binary"]),
        ({"key": {"present": False}}, ["plain"]),
        ({"properties": {"region": {"present": True}}}, ["paid", "open"]),
        ({"properties": {"region": {"present": False}}}, ["plain", "binary"]),
        ({"properties": {"region": {"equals": "us"}}}, ["paid"]),
        ({"properties": {"region": {"equals": ""}}}, ["open"]),
        ({"properties": {"region": {"one_of": ["", "eu"]}}}, ["paid", "open"]),
        ({"properties": {"host": {"pattern": "web-[0-9]+"}}}, ["paid"]),
        ({"properties": {"note": {"equals": "ü=,"}}}, ["open"]),
        ({"properties": {"region": {"equals": "eu"}, "host": {"pattern": "db-.*"}}}, []),
        ({"msg_type": {"equals": "paid"}, "key": {"present": True}, "properties": {"host": {"present": True}}}, ["paid"]),
    ],
    ids=str,
)
def test_a_condition(condition: dict[str, Any], expected: list[str]) -> None:
    assert kept(include=condition) == expected
    left = [name for name in ("plain", "paid", "open", "binary") if name not in expected]
    assert kept(exclude=[condition]) == left


def test_one_include_is_enough_and_one_exclude_too() -> None:
    include = [{"msg_type": {"equals": "paid"}}, {"key": {"present": False}}, {"msg_type": {"equals": "open"}}]
    assert kept(include=include) == ["plain", "paid", "open"]
    exclude = [{"properties": {"host": {"equals": "web-1"}}}, {"key": {"equals": "none"}}]
    assert kept(include=include, exclude=exclude) == ["plain", "open"]


def test_types_of_the_source_and_rules_must_both_hold() -> None:
    assert kept({"paid", "open"}) == ["paid", "open"]
    assert kept({"paid", "open"}, include={"key": {"equals": "o-2"}}) == ["open"]
    assert kept({"paid", "open"}, exclude={"key": {"equals": "o-2"}}) == ["paid"]


def test_no_filter_is_made_without_rules() -> None:
    assert make_filter(frozenset(), FilterRules(), [].append) is None


async def test_in_a_route(world: World) -> None:
    world.a.create("t", 2)
    for n in range(200):
        put(world.a, "t", n % 2, Message(b"%d" % n, (("n", str(n % 5)),), msg_type="even" if n % 2 == 0 else "odd"))
    put(world.a, "t", 0, Message(b"7777", defect="damaged"))
    rules = {"include": {"properties": {"n": {"one_of": ["1", "2"]}}}, "exclude": {"msg_type": {"equals": "odd"}}}
    outcome = await run(world.config(route("r", "a/t", "b/t", "c/t", filter=rules, delivery={"dead_letter": end("b/dead")})))
    want = [n for n in range(200) if n % 5 in {1, 2} and n % 2 == 0]
    assert everything(world.b, "t") == everything(world.c, "t") == want
    assert everything(world.b, "dead") == [7777, 7777]  # one for each target
    [result] = outcome.routes
    assert (result.counters.received, result.counters.filtered, result.counters.acknowledged) == (201, 200 - len(want), 201)
    assert committed(world.a, "g-r") == 201


def test_a_filter_does_not_copy_messages() -> None:
    assert Filter(frozenset({"paid"}), FilterRules(), [].append).keep(Batch.of(ALL)).messages[0] is PAID


@pytest.mark.parametrize("kind", ["include", "exclude"])
@pytest.mark.parametrize("condition", ["msg_type", "key", "properties"])
def test_a_message_passes_if_a_pattern_cannot_be_tried_on_its_text(
    kind: str, condition: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Such a pattern could stop the gateway for hours."""
    pattern = {"pattern": ".*a.*a.*a.*b"}
    rule = {condition: {"name": pattern} if condition == "properties" else pattern}
    made = make_filter(frozenset(), FilterRules.model_validate({kind: rule}), [].append)
    assert made is not None
    long, short = (
        Message(b"", (("name", text),), key=text, msg_type=text)
        for text in ("a" * 1_000_000, "aab" if kind == "include" else "aaab")
    )
    assert list(made.keep(Batch.of([long, short])).messages) == [long]
    assert "is not tried on a text of 1000000 characters" in caplog.text
