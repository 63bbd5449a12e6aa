"""Topics of the web side: lists, creation, growth, deletion, and what a listener does not permit."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from mqbridge.errors import ClusterError, Failure, Unreachable
from mqbridge.listener.topics import ONE_PARTITION
from mqbridge.message import Message
from mqbridge.pulsar.server.web import app
from mqbridge.pulsar.server.web.served import ConsumerView, ProducerView, SubscriptionView
from tests.pulsar.server.web_bench import ADVERTISED, BASE, WebBench, web_bench

CONSUMER = ConsumerView("c", "127.0.0.1:1", 10, 3, 0.0)


@pytest_asyncio.fixture(params=["backing", "own"])
async def web(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[WebBench]:
    async with web_bench(tmp_path, request.param) as bench:
        yield bench


async def test_topics_are_created_listed_and_deleted(web: WebBench) -> None:
    await web.call("PUT", "plain", status=204)
    await web.call("PUT", "parts/partitions", 3, status=204)
    assert await web.call("GET", "plain/partitions") == {"partitions": 0, "deleted": False}
    assert await web.call("GET", "parts/partitions") == {"partitions": 3, "deleted": False}
    assert await web.call("GET", "parts-partition-2/partitions") == {"partitions": 0, "deleted": False}
    names = ["persistent://public/default/parts-partition-0", "persistent://public/default/parts-partition-1"]
    names += ["persistent://public/default/parts-partition-2", "persistent://public/default/plain"]
    assert await web.call("GET", BASE) == names
    assert await web.call("GET", "/admin/v2/namespaces/public/default/topics?mode=ALL") == names
    assert await web.call("GET", f"{BASE}/partitioned") == ["persistent://public/default/parts"]
    assert await web.call("GET", "/admin/v2/non-persistent/public/default") == []
    await web.call("DELETE", "plain", status=204)
    await web.call("DELETE", "parts/partitions", status=204)
    assert await web.call("GET", BASE) == []
    assert await web.cluster.topics() == []


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", "plain", None, 409),
        ("PUT", "plain/partitions", 2, 409),
        ("PUT", "parts/partitions", 3, 409),
        ("PUT", "new/partitions", 0, 406),
        ("PUT", "new/partitions", 1_000_000, 406),
        ("PUT", "new/partitions", "x", 400),
        ("PUT", "new-partition-1", None, 412),
        ("PUT", "parts-partition-1", None, 409),
        ("POST", "parts/partitions", 1, 422),
        ("POST", "plain/partitions", 2, 409),
        ("POST", "missing/partitions", 2, 409),
        ("DELETE", "missing", None, 404),
        ("DELETE", "parts", None, 409),
        ("DELETE", "plain/partitions", None, 409),
        ("DELETE", "parts-partition-0", None, 412),
        ("GET", "missing/partitions", None, 404),
        ("GET", "plain-partition-0/partitions", None, 404),
        ("GET", "parts-partition-2/partitions", None, 404),
        ("GET", "parts/stats", None, 404),
        ("GET", "plain/partitioned-stats", None, 404),
        ("GET", "parts/lastMessageId", None, 404),
        ("PUT", "missing/unload", None, 404),
        ("POST", "plain/terminate", None, 501),
        ("GET", "plain/retention", None, 501),
        ("GET", "/admin/v2/persistent/other/default", None, 404),
        ("GET", "/admin/v2/persistent/public/def%20ault/x/stats", None, 412),
        ("GET", "a%2Fb/stats", None, 400),
        ("GET", "/admin/v2/non-persistent/public/default/x/stats", None, 412),
        ("GET", "/elsewhere", None, 404),
        ("PATCH", "/admin/v2/tenants", None, 501),
    ],
)
async def test_refusals_have_the_status_of_a_broker_and_a_reason(
    web: WebBench, method: str, path: str, body: object, status: int
) -> None:
    await web.call("PUT", "plain", status=204)
    await web.call("PUT", "parts/partitions", 2, status=204)
    assert await web.reason(method, path, body, status=status)


async def test_a_topic_grows(web: WebBench) -> None:
    await web.call("PUT", "parts/partitions", 2, status=204)
    await web.call("POST", "parts/partitions", 4, status=204)
    await web.call("POST", "parts/partitions", {"partitions": 5, "deleted": False}, status=204)
    assert (await web.call("GET", "parts/partitions"))["partitions"] == 5


async def test_asking_for_partitions_creates_a_topic_only_if_that_is_asked_for(web: WebBench) -> None:
    await web.reason("GET", "new/partitions?checkAllowAutoCreation=false", status=404)
    assert (await web.call("GET", "new/partitions?checkAllowAutoCreation=true"))["partitions"] == 2
    await web.reason("GET", "other-partition-0/partitions?checkAllowAutoCreation=true", status=404)


async def test_a_topic_with_clients_is_deleted_by_force_only(web: WebBench) -> None:
    await web.call("PUT", "plain", status=204)
    await web.call("PUT", "plain/subscription/s", status=204)
    web.broker.producing["plain", 0] = [ProducerView("p", "127.0.0.1:2", 5, 50, 0.0)]
    web.broker.consuming["plain", 0] = {"s": SubscriptionView("Shared", [CONSUMER, CONSUMER], True)}
    assert "3 connected" in await web.reason("DELETE", "plain", status=412)
    web.broker.schemas.by_topic["persistent://public/default/plain"] = []
    await web.call("DELETE", "plain?force=true", status=204)
    assert web.broker.closed == ["plain"]
    assert not web.broker.schemas.by_topic
    await web.call("PUT", "plain", status=204)
    assert await web.call("GET", "plain/subscriptions") == []


async def test_unloading_closes_the_clients(web: WebBench) -> None:
    await web.call("PUT", "parts/partitions", 2, status=204)
    await web.call("PUT", "parts/unload", status=204)
    assert web.broker.closed == ["parts"]


async def test_names_with_special_characters_are_found(web: WebBench) -> None:
    await web.call("PUT", "a%20b%3Fc%25d", status=204)
    assert await web.call("GET", "a+b%3Fc%25d/partitions") == {"partitions": 0, "deleted": False}
    assert await web.call("GET", BASE) == ["persistent://public/default/a b?c%d"]


async def test_a_body_has_a_limit(web: WebBench) -> None:
    response = await web.client.put(f"{BASE}/t/partitions", content=b" " * (64 << 10) + b"2")
    assert response.status_code == 413
    response = await web.client.put(f"{BASE}/t/partitions", content=b"[" * 60_000)
    assert response.status_code == 400
    assert await web.cluster.topics() == []


async def test_a_page_in_a_browser_changes_nothing(web: WebBench) -> None:
    response = await web.client.put(f"{BASE}/t", headers={"Origin": "http://page.example"})
    assert response.status_code == 403
    assert await web.cluster.topics() == []


async def test_a_cluster_that_does_not_answer_is_given_up(web: WebBench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def wait(_: str) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(app, "REQUEST_S", 0.05)
    monkeypatch.setattr(web.cluster, "describe", wait)
    assert "in time" in await web.reason("GET", "t/stats", status=503)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "parts/partitions", 5),
        ("DELETE", "parts/partitions", None),
        ("DELETE", "plain", None),
        ("PUT", "plain/unload", None),
        ("DELETE", "plain/subscription/s", None),
        ("POST", "plain/subscription/s/skip/1", None),
        ("POST", "plain/subscription/s/skip_all", None),
        ("POST", "plain/subscription/s/resetcursor/0", None),
        ("POST", "plain/subscription/s/resetcursor", "latest"),
        ("POST", "plain/subscription/s/expireMessages/0", None),
        ("POST", "plain/all_subscription/expireMessages/0", None),
        ("DELETE", "/admin/v2/schemas/public/default/plain/schema", None),
    ],
)
async def test_changes_need_manage(tmp_path: Path, method: str, path: str, body: object) -> None:
    async with web_bench(tmp_path, may_manage=False) as web:
        await web.call("PUT", "plain", status=204)
        await web.call("PUT", "parts/partitions", 3, status=204)
        await web.call("PUT", "plain/subscription/s", "earliest", status=204)
        assert "`manage: true`" in await web.reason(method, path, body, status=403)
        assert web.broker.closed == web.broker.disconnected == []
        assert (await web.call("GET", "parts/partitions"))["partitions"] == 3
        assert await web.committed("plain", "s") == {0: 0}


async def test_creation_needs_create(tmp_path: Path) -> None:
    async with web_bench(tmp_path, create_partitions=None) as web:
        await web.cluster.create("orders", 2)
        assert "`create`" in await web.reason("PUT", "new", status=403)
        assert "`create`" in await web.reason("PUT", "new/partitions", 2, status=403)
        assert "`create`" in await web.reason("PUT", "orders/subscription/s", status=403)
        await web.reason("GET", "new/partitions?checkAllowAutoCreation=true", status=404)
        await web.reason("GET", "/lookup/v2/topic/persistent/public/default/new", status=404)
        assert await web.cluster.topics() == ["orders"]


async def test_lookup_tells_the_advertised_address(web: WebBench) -> None:
    expected = {
        "brokerUrl": f"pulsar://{ADVERTISED}",
        "httpUrl": "http://web.example:8080",
        "nativeUrl": f"pulsar://{ADVERTISED}",
        "brokerUrlSsl": "",
    }
    for topic in ("any", "any-partition-3"):
        assert await web.call("GET", f"/lookup/v2/topic/persistent/public/default/{topic}") == expected
    await web.reason("GET", "/lookup/v2/topic/persistent/public/other/any", status=404)
    await web.reason("GET", "/lookup/v2/topic/non-persistent/public/default/any", status=412)


async def test_tenants_namespaces_and_clusters_follow_from_the_names_of_topics(web: WebBench) -> None:
    assert await web.call("GET", "/admin/v2/tenants") == ["public"]
    assert await web.call("GET", "/admin/v2/tenants/public") == {"adminRoles": [], "allowedClusters": ["log"]}
    await web.reason("GET", "/admin/v2/tenants/other", status=404)
    assert await web.call("GET", "/admin/v2/namespaces/public") == ["public/default"]
    assert (await web.call("GET", "/admin/v2/namespaces/public/default"))["replication_clusters"] == ["log"]
    await web.reason("GET", "/admin/v2/namespaces/public/other", status=404)
    assert await web.call("GET", "/admin/v2/clusters") == ["log"]
    assert (await web.call("GET", "/admin/v2/clusters/log"))["brokerServiceUrl"] == f"pulsar://{ADVERTISED}"
    await web.reason("GET", "/admin/v2/clusters/other", status=404)


async def test_a_template_may_have_namespaces_in_the_names_of_topics(tmp_path: Path) -> None:
    async with web_bench(tmp_path, template="persistent://public/{topic}") as web:
        assert await web.call("GET", "/admin/v2/tenants") == []
        await web.call("PUT", "/admin/v2/persistent/public/one/t", status=204)
        await web.call("PUT", "/admin/v2/persistent/public/two/t", status=204)
        assert await web.call("GET", "/admin/v2/namespaces/public") == ["public/one", "public/two"]
        assert await web.call("GET", "/admin/v2/persistent/public/two") == ["persistent://public/two/t"]


async def test_health_needs_the_cluster(web: WebBench, monkeypatch: pytest.MonkeyPatch) -> None:
    response = await web.client.get("/admin/v2/brokers/health")
    assert (response.status_code, response.text) == (200, "ok")
    assert await web.call("GET", "/admin/v2/brokers/log") == ["web.example:8080"]
    assert (await web.call("GET", "/admin/v2/brokers/leaderBroker"))["serviceUrl"] == "http://web.example:8080"

    async def fail(_: str) -> None:
        raise Unreachable("no connection to 127.0.0.1:1")

    monkeypatch.setattr(web.cluster, "describe", fail)
    assert "127.0.0.1:1" in await web.reason("GET", "/admin/v2/brokers/health", status=503)
    await web.reason("GET", "other/stats", status=503)


async def test_schemas(web: WebBench) -> None:
    path = "/admin/v2/schemas/public/default/orders/schema"
    await web.reason("GET", path, status=404)
    definition = '{"type":"record","name":"R","fields":[]}'
    body = {"type": "JSON", "schema": definition, "properties": {"k": "v"}}
    assert await web.call("POST", path, body) == {"version": {"version": 0}}
    expected = {"version": 0, "type": "JSON", "timestamp": 1, "data": definition, "properties": {"k": "v"}}
    assert await web.call("GET", path) == await web.call("GET", f"{path}/0") == expected
    await web.reason("GET", f"{path}/7", status=404)
    await web.reason("POST", path, {"type": "BOGUS"}, status=422)
    await web.reason("POST", path, [], status=422)
    assert await web.call("DELETE", path) == {"version": 0}
    await web.reason("GET", path, status=404)


async def test_messages_of_other_writers_do_not_matter_to_lists(web: WebBench) -> None:
    await web.cluster.create("orders", 2)
    await web.send("orders", Message(b"1"), partition=1)
    assert await web.call("GET", f"{BASE}/partitioned") == ["persistent://public/default/orders"]


async def test_of_two_that_create_a_topic_at_the_same_time_one_is_refused(web: WebBench) -> None:
    async def create(path: str, body: object = None) -> int:
        return int((await web.client.request("PUT", f"{BASE}/{path}", json=body)).status_code)

    for first, second in [(("a",), ("a",)), (("b/partitions", 2), ("b/partitions", 5)), (("c/partitions", 1), ("c",))]:
        assert sorted(await asyncio.gather(create(*first), create(*second))) == [204, 409]


async def test_a_topic_with_one_partition_is_a_partitioned_one_after_a_restart(tmp_path: Path) -> None:
    for round_ in range(2):
        async with web_bench(tmp_path, "own") as web:
            if not round_:
                await web.call("PUT", "parts/partitions", 1, status=204)
                await web.call("PUT", "plain", status=204)
                await web.call("PUT", "gone", status=204)
                await web.call("DELETE", "gone", status=204)
            assert await web.call("GET", "parts/partitions") == {"partitions": 1, "deleted": False}
            assert await web.call("GET", "plain/partitions") == {"partitions": 0, "deleted": False}
            assert set(web.store.notes("app", "log", ONE_PARTITION)) == {"plain"}, "the other is as topics are by default"
            if round_:
                await web.call("POST", "parts/partitions", 3, status=204)


async def test_a_topic_that_cannot_be_deleted_keeps_its_subscriptions(web: WebBench, monkeypatch: pytest.MonkeyPatch) -> None:
    await web.call("PUT", "t", status=204)
    await web.send("t", Message(b"1"), Message(b"2"))
    await web.call("PUT", "t/subscription/s", "earliest", status=204)

    async def refuse(topic: str) -> None:
        raise ClusterError(f"topic {topic} has members", Failure.FATAL)

    monkeypatch.setattr(web.cluster, "delete", refuse)
    await web.reason("DELETE", "t", status=412)
    assert await web.call("GET", "t/subscriptions") == ["s"]
    assert await web.committed("t", "s") == {0: 0}
