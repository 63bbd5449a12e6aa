"""What `mqbridge check --connect` says about a listener."""

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mqbridge.adapter.registry import load_adapters
from mqbridge.config.load import from_dict
from mqbridge.gateway.clusters import connected_clusters
from mqbridge.gateway.listener_check import ListenerFindings, check_listener
from mqbridge.listener.server import MadeTopic
from mqbridge.listener.topics import FixedNames
from tests.gateway.world import ADAPTERS, World, fill, set_capabilities
from tests.kit.line_server import SERVERS


async def findings(world: World, *, without: str = "", config: dict[str, Any] | None = None, **options: Any) -> ListenerFindings:
    one = {"name": "app", "system": "lines", "cluster": "a", "listen": "127.0.0.1:0"} | options
    whole = from_dict(world.config(listeners=[one]) | (config or {}), adapters=ADAPTERS, servers=SERVERS)
    async with connected_clusters(whole, ADAPTERS) as clusters:
        clusters.pop(without, None)
        return await check_listener(whole.listeners[0], whole, clusters, ADAPTERS, SERVERS)


async def test_a_listener_that_can_start_has_no_errors_and_says_what_is_refused(world: World) -> None:
    fill(world.a, "orders", 2, 0)
    fill(world.a, "mqbridge-dead-app", 1, 0)
    found = await findings(world)
    assert (found.address, found.errors, found.warnings) == ("127.0.0.1:0", [], [])
    assert "clients see 1 topics: lines/orders" in found.notes
    assert "deleting topics and groups, resetting groups and skipping messages are refused (manage: false)" in found.notes
    assert any("share partitions as failover only: exclusive, shared, key_shared works among" in note for note in found.notes)
    assert sorted(world.a.topics) == ["mqbridge-dead-app", "orders"]


async def test_a_cluster_that_was_not_reached_is_an_error(world: World) -> None:
    assert (await findings(world, without="a")).errors == ["cluster 'a' is not reached"]
    letters = {"dead_letter": {"cluster": "b"}}
    assert (await findings(world, without="b", sends=letters)).errors == ["cluster 'b' is not reached"]


async def test_topics_that_cannot_be_created_are_named(world: World) -> None:
    world.a.faults.create_error = "no permission"
    found = await findings(world)
    assert found.errors == ["the dead-letter topic a/mqbridge-dead-app: no permission"]
    assert found.warnings == ["topics that clients use and that do not exist cannot be created: no permission"]
    assert (await findings(world, create=False)).warnings == []


async def test_what_the_cluster_lacks_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"max_message_bytes": 1000, "stable_positions": False}
    set_capabilities(monkeypatch, delete_topics=False, list_topics=False, create_topics=False, **limits)
    found = await findings(world, manage=True)
    assert found.warnings == ["topics cannot be created in this cluster: those that clients use must exist (write create: false)"]
    for note in (
        "topics cannot be listed: refused are lists of topics, and subscriptions by a pattern",
        "topics cannot be deleted in this cluster: refused, although `manage` is true",
        "messages of at most 1,000 bytes are accepted",
        "a message that is delivered again may have another id",
    ):
        assert note in found.notes


async def test_addresses_that_are_in_use_or_open_are_warnings(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = await findings(world, listen=f"127.0.0.1:{port}", web="0.0.0.0:0", open=True)
    in_use, is_open = found.warnings
    assert in_use.startswith(f"cannot listen on 127.0.0.1:{port} now: Address already in use")
    assert is_open == "everybody who can reach 0.0.0.0:0 may read and write all topics: listeners do not authenticate"


async def test_own_groups_say_where_they_are_kept(world: World, tmp_path: Path) -> None:
    found = await findings(world, groups="own", config={"state": str(tmp_path / "s.db")})
    assert f"groups are kept in {tmp_path}/s.db.groups by this gateway alone: another one would deliver all again" in found.notes
    assert not any("share partitions" in note for note in found.notes)


async def test_one_group_of_several_topics_is_a_warning_where_groups_are_uniform(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ADAPTERS, "memory", replace(ADAPTERS["memory"], uniform_groups=True))
    (warning,) = (await findings(world, group="app-{group}")).warnings
    assert "use each subscription for one topic only, or write {group}-{topic}" in warning
    assert (await findings(world)).warnings == []


MADE = (
    MadeTopic("again/g", "nothing comes again"),
    MadeTopic("half-0", "transactions are refused", is_internal=True),
)
NAMES = FixedNames(lambda name: f"fixed-{name[6:]}" if name.startswith("again/") else None, lambda _: None)


async def test_topics_that_the_listener_needs_and_cannot_create_are_warnings(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SERVERS, "lines", replace(SERVERS["lines"], made_topics=MADE, fixed_names=NAMES))
    assert (await findings(world)).warnings == []
    world.a.faults.create_error = "no permission"
    found = await findings(world, create=False)
    assert found.warnings == [
        "topics such as fixed-g cannot be created: nothing comes again: no permission",
        "topics such as mqbridge-app-half-0 cannot be created: transactions are refused: no permission",
    ]
    set_capabilities(monkeypatch, create_topics=False, delay=True)
    fill(world.a, "fixed-g", 1, 0)
    (warning,) = (await findings(world, create=False)).warnings
    assert warning.startswith("topics such as mqbridge-app-half-0 cannot be created: transactions are refused: topics cannot be")


async def test_topics_in_which_messages_wait_and_that_cannot_be_created_are_a_warning(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SERVERS, "pulsar", replace(SERVERS["lines"], system="pulsar"))  # units are known of this system only
    world.a.faults.create_error = "no permission"
    assert (await findings(world, system="pulsar", create=False)).warnings == [
        "topics such as mqbridge-app-2h cannot be created: messages cannot wait for their time: no permission"
    ]
    set_capabilities(monkeypatch, delay=True)
    assert (await findings(world, system="pulsar", create=False)).warnings == []


async def test_a_retention_in_which_messages_may_not_wait_is_a_warning(tmp_path: Path) -> None:
    def checked(retention: str) -> dict[str, Any]:
        cluster = {"system": "log", "path": str(tmp_path / "log.db"), "retention": retention}
        one = {"name": "app", "system": "rocketmq", "cluster": "store", "listen": "127.0.0.1:0"}
        return {"clusters": {"store": cluster}, "listeners": [one], "http": {"enabled": False}}

    async def warnings(retention: str) -> list[str]:
        whole = from_dict(checked(retention))
        async with connected_clusters(whole) as clusters:
            return (await check_listener(whole.listeners[0], whole, clusters, load_adapters())).warnings

    assert await warnings("7d") == []
    (warning,) = await warnings("1h")
    assert warning.startswith("messages wait up to 2h in topic mqbridge-app-2h: mqbridge-app-2h keeps messages for only 1 hours")


async def test_a_listener_for_rocketmq_clients_says_nothing_of_subscriptions(tmp_path: Path) -> None:
    cluster = {"system": "log", "path": str(tmp_path / "log.db")}
    one = {"name": "app", "system": "rocketmq", "cluster": "store", "listen": "127.0.0.1:0"}
    whole = from_dict({"clusters": {"store": cluster}, "listeners": [one], "http": {"enabled": False}})
    async with connected_clusters(whole) as clusters:
        await clusters["store"].create("%retry%g", 1)
        found = await check_listener(whole.listeners[0], whole, clusters, load_adapters())
    assert (found.errors, found.warnings) == ([], [])
    assert not [note for note in found.notes if "share partitions" in note]
    assert "clients see 1 topics: %RETRY%g" in found.notes


async def test_a_listener_for_tubemq_clients_says_nothing_of_messages_that_wait(tmp_path: Path) -> None:
    cluster = {"system": "log", "path": str(tmp_path / "log.db"), "retention": "1h"}
    one = {"name": "app", "system": "tubemq", "cluster": "store", "listen": "127.0.0.1:0"}
    whole = from_dict({"clusters": {"store": cluster}, "listeners": [one], "http": {"enabled": False}})
    async with connected_clusters(whole) as clusters:
        await clusters["store"].create("orders", 1)
        found = await check_listener(whole.listeners[0], whole, clusters, load_adapters())
    assert (found.errors, found.warnings) == ([], [])
    assert "clients see 1 topics: orders" in found.notes
