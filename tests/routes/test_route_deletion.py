"""The topic of a target is deleted while a route runs: the route opens its targets again, and waits while it cannot."""

import pytest

from mqbridge.errors import ClusterError
from tests.gateway.world import World, committed, end, everything, fill, named, put, route, running, until


async def test_a_deleted_target_is_created_again(world: World) -> None:
    fill(world.a, "t", 2, 100)
    async with running(world.config(route("r", "a/t", "b/t"), route("other", "a/t", "c/t"))) as gateway:
        await until(lambda: committed(world.a, "g-r") == committed(world.a, "g-other") == 100)
        other = named(gateway, "other").state.membership
        world.b.delete("t")
        fill(world.a, "t", 2, 50, first=100)
        await until(lambda: committed(world.a, "g-r") == committed(world.a, "g-other") == 150)
        assert named(gateway, "other").state.membership is other
        assert named(gateway, "r").state.error is None
    assert everything(world.b, "t") == list(range(100, 150))


async def test_without_create_a_route_waits_for_a_deleted_target(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The new topic has fewer partitions than the old one."""
    fill(world.a, "t", 2, 100)
    world.b.create("t", 3)
    async with running(world.config(route("r", "a/t", end("b/t", create=False)))) as gateway:
        state = named(gateway, "r").state
        await until(lambda: committed(world.a, "g-r") == 100)
        world.b.delete("t")
        put(world.a, "t", 0, b"100")
        await until(
            lambda: not state.endpoints.is_open and state.memberships == 1 and "was deleted or changed" in str(state.retry_reason)
        )
        assert committed(world.a, "g-r") == 100
        assert isinstance(state.retry_reason, ClusterError)
        assert "topic 't' does not exist any more: create it again" in caplog.text
        assert not state.is_joined
        assert state.error is None
        world.b.create("t", 1)
        await until(lambda: committed(world.a, "g-r") == 101)
        assert state.target_partitions == {"t": {"b/t": 1}}
        assert state.retry_reason is None
    assert everything(world.b, "t") == [100]


async def test_later_partitions_are_still_read_from_their_beginning(world: World) -> None:
    """The configured start is for the partitions at the first start, not for those when the targets are opened again."""
    fill(world.a, "t", 1, 10)
    source = {"start": "latest", "refresh": "100ms"}
    async with running(world.config(route("r", "a/t", "b/t", source_=source))) as gateway:
        await until(lambda: named(gateway, "r").state.is_joined)
        world.b.delete("t")
        world.a.create("t", 2)
        put(world.a, "t", 1, b"10")
        await until(lambda: "t" in world.b.topics and everything(world.b, "t") == [10])


async def test_a_deleted_dead_letter_topic_is_created_again(world: World) -> None:
    fill(world.a, "t", 1, 1)
    world.b.faults.refuse = lambda message: None if message.payload == b"1" else "no"
    letters = {"cluster": "c", "topic": "dead", "create": True}
    async with running(world.config(route("r", "a/t", "b/t", delivery={"dead_letter": letters}))):
        await until(lambda: committed(world.a, "g-r") == 1)
        world.c.delete("dead")
        put(world.a, "t", 0, b"2")
        await until(lambda: committed(world.a, "g-r") == 2)
    assert everything(world.c, "dead") == [2]
