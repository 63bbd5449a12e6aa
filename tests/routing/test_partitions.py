"""The target partition of messages by each rule, and errors about partitions without a target partition."""

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, cast
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.adapter.outbound import Outbound
from mqbridge.adapter.receipt import Receipt
from mqbridge.adapter.topics import Topic
from mqbridge.config.options.partition_rule import PartitionRule
from mqbridge.errors import ConfigError
from mqbridge.message import Batch, Message, Partition, Share
from mqbridge.routing.partitions import Partitioner, partitions_needed, unassignable_partitions
from tests.gateway.world import World, end, everything, fill, put, route, run, stored

KEYED = [Message(b"%d" % n, (("user", f"u{n % 3}"),), key=f"k{n % 5}", keys=(f"i{n % 2}", "x")) for n in range(30)]


class FakeOutbound:
    """The part of an outbound that partition rules use."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions

    def withdraw(self, sends: "Collection[asyncio.Future[Receipt]]") -> None:
        """Do nothing: every send is on the wire at once."""

    def partition_of(self, key: bytes) -> int:
        return crc32(key) % self.partitions

    def send(self, *_: Any) -> "asyncio.Future[Receipt]":
        raise AssertionError("rules send nothing")


def rule(by: str, **more: Any) -> PartitionRule:
    return PartitionRule.model_validate({"by": by, **more})


def partitioner(rule: PartitionRule, partitions: int) -> tuple[Partitioner, FakeOutbound]:
    fake = FakeOutbound(partitions)
    return Partitioner(rule, cast("Outbound", fake)), fake


def batch(index: int, messages: Sequence[Message] = (), name: str | None = None) -> Batch:
    partition = Partition("a", "t", name or str(index), index)
    return Batch(partition, messages, count=len(messages), size=0, first=(0,), next=(len(messages),))


def target_partitions(made: Partitioner, messages: Sequence[Message], index: int = 0) -> dict[bytes, int]:
    return {m.payload or b"": target for target, share in divide(made, index, messages) for m in share}


def divide(
    made: Partitioner, index: int, messages: Sequence[Message], name: str | None = None
) -> list[tuple[int, list[Message]]]:
    return [(target, list(share.messages)) for target, share in made.divide(Share(batch(index, messages, name)))]


def test_modulo_and_identity_keep_a_partition_together() -> None:
    modulo, fake = partitioner(rule("modulo"), 3)
    assert [divide(modulo, index, KEYED) for index in (0, 4, 8)] == [[(0, KEYED)], [(1, KEYED)], [(2, KEYED)]]
    fake.partitions = 9
    assert divide(modulo, 8, KEYED) == [(8, KEYED)]
    identity, _ = partitioner(rule("identity"), 3)
    assert divide(identity, 2, KEYED) == [(2, KEYED)]


def test_a_table_can_name_partitions_or_give_their_index() -> None:
    made, _ = partitioner(rule("table", table={"broker:0": 4, "1": 2}), 5)
    assert divide(made, 0, KEYED, "broker:0") == [(4, KEYED)]
    assert divide(made, 1, KEYED, "broker:1") == [(2, KEYED)]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("key", lambda m: m.key),
        ("ordering_key", lambda m: m.ordering_key),
        ("keys", lambda m: m.keys[0]),
        ("property:user", lambda m: m.property("user")),
        (["property:none", "keys", "key"], lambda m: m.keys[0]),
    ],
)
def test_key_names_select_the_key(key: Any, expected: Any) -> None:
    made, fake = partitioner(rule("key", key=key), 7)
    want = {m.payload: 3 if expected(m) is None else fake.partition_of(expected(m).encode()) for m in KEYED}
    assert target_partitions(made, KEYED, index=10) == want


def test_binary_and_ordering_keys() -> None:
    made, fake = partitioner(rule("key", key=["ordering_key", "key"]), 7)
    messages = [Message(b"1", key=b"\xff\x00"), Message(b"2", ordering_key=b"\xfe"), Message(b"3")]
    assert target_partitions(made, messages, 9) == {
        b"1": fake.partition_of(b"\xff\x00"),
        b"2": fake.partition_of(b"\xfe"),
        b"3": 2,
    }


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.booleans()), max_size=40), st.integers(1, 6), st.integers(0, 9))
def test_by_key_every_message_is_kept_in_the_order_of_its_key(keys: list[tuple[str, bool]], count: int, index: int) -> None:
    messages = [Message(b"%d" % n, key=key if has else None) for n, (key, has) in enumerate(keys)]
    made, _ = partitioner(rule("key"), count)
    shares = divide(made, index, messages) if messages else []
    assert sorted((m.payload or b"" for _, share in shares for m in share), key=int) == [m.payload for m in messages]
    for _, share in shares:
        assert [int(m.payload or b"") for m in share] == sorted(int(m.payload or b"") for m in share)
    for key in "abcde":
        assert len({target for target, share in shares for m in share if m.key == key}) <= 1


def test_round_robin_takes_turns() -> None:
    made, fake = partitioner(rule("round_robin"), 3)
    assert [divide(made, 0, KEYED)[0][0] for _ in range(4)] == [1, 2, 0, 1]
    fake.partitions = 4
    assert {divide(made, 0, KEYED)[0][0] for _ in range(4)} == {0, 1, 2, 3}


def test_unassignable_partitions_are_named() -> None:
    topic = Topic("t", ("b:0", "b:1", "b:2"))
    assert unassignable_partitions(rule("modulo"), topic, 1) == {}
    assert unassignable_partitions(rule("identity"), topic, 2) == {
        "b:2": "`by: identity` needs target partition 2, but the target has 2 partitions (0 to 1)"
    }
    assert unassignable_partitions(rule("table", table={"b:0": 0, "1": 7}), topic, 3) == {
        "b:1": "the table of `partitions` contains target partition 7, but the target has 3 partitions (0 to 2)",
        "b:2": "the table of `partitions` does not contain this source partition",
    }
    assert partitions_needed(rule("table", table={"b:0": 0, "1": 7}), topic) == 8
    spread = Topic("t", ("a:0", "b:0", "b:1"), indexes=(0, 1, 3))
    assert partitions_needed(rule("identity"), spread) == 4
    assert partitions_needed(rule("modulo"), spread) == 3


# --- in a route -----------------------------------------------------------------------------------------------------------


async def test_identity_needs_as_many_partitions(world: World) -> None:
    fill(world.a, "t", 4, 100)
    world.b.create("t", 2)
    target = end("b/t", partitions={"by": "identity"})
    with pytest.raises(ConfigError) as caught:
        await run(world.config(route("r", "a/t", target | {"create": False})))
    assert str(caught.value) == (
        "route 'r': target b/t has no partition for partition '2' of source a/t: `by: identity` needs target partition 2, but "
        "the target has 2 partitions (0 to 1). Grow the target topic to 4 partitions, set `create: true`, or use `by: modulo`"
    )
    assert len(world.b.topics["t"]) == 2
    assert (await run(world.config(route("r", "a/t", target)))).clean
    assert stored(world.b, "t") == stored(world.a, "t")


async def test_a_table_must_contain_every_partition(world: World) -> None:
    fill(world.a, "t", 3, 90)
    target = end("b/t", partitions={"by": "table", "table": {"0": 1, "2": 0}})
    with pytest.raises(ConfigError) as caught:
        await run(world.config(route("r", "a/t", target)))
    assert str(caught.value) == (
        "route 'r': target b/t has no partition for partition '1' of source a/t: the table of `partitions` does not contain this "
        "source partition. Add '1' to the table of `partitions`, or use `by: modulo`"
    )
    target["partitions"]["table"]["1"] = 3
    assert (await run(world.config(route("r", "a/t", target)))).clean
    here, there = stored(world.a, "t"), stored(world.b, "t")
    assert there == [here[2], here[0], [], here[1]]


async def test_by_default_a_smaller_target_is_shared(world: World) -> None:
    fill(world.a, "t", 4, 100)
    world.b.create("t", 2)
    assert (await run(world.config(route("r", "a/t", end("b/t", create=False))))).clean
    assert [sorted(map(int, part)) for part in stored(world.b, "t")] == [list(range(0, 100, 2)), list(range(1, 100, 2))]


async def test_edits_come_before_the_choice_of_a_partition(world: World) -> None:
    world.a.create("t", 1)
    put(world.a, "t", 0, *(Message(b"%d" % n, (("user", f"u{n % 4}"),)) for n in range(40)))
    world.b.create("t", 5)
    target = end("b/t", partitions={"by": "key"}, edit={"key": "{property:user}"})
    assert (await run(world.config(route("r", "a/t", target)))).clean
    assert everything(world.b, "t") == list(range(40))
    for number, partition in enumerate(world.b.topics["t"]):
        assert all(crc32(str(m.key).encode()) % 5 == number for m in partition.messages)
