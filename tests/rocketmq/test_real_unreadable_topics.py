"""Topics without the permission to read, as dead-letter topics of old brokers, at real brokers: what says so, and the way out."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pytest
import pytest_asyncio

from mqbridge.adapter import reading
from mqbridge.errors import ClusterError, Failure
from mqbridge.rocketmq.client.admin.read_permission import permit_reading
from mqbridge.rocketmq.library.client import RocketMQClient
from mqbridge.rocketmq.wire.bodies.routes import Perm
from mqbridge.spark.source.single_requests import describe_topic
from tests.cli.conftest import Invoke, invoke
from tests.e2e.support import opened
from tests.kit.gateway import GatewayProcess
from tests.kit.rocketmq import RocketMQ
from tests.patience import SERVER_PATIENCE_S

__all__ = ["invoke"]

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]
WHY = "as old brokers create dead-letter topics"


async def create_dead_letters(server: RocketMQ) -> str:
    """Create a dead-letter topic as old brokers do, with a message; return its name."""
    topic = f"%DLQ%g-{uuid4().hex[:8]}"
    async with RocketMQClient(f"rocketmq://{server.name_server}") as client:
        await client.admin.create_topic(topic, 1, perm=Perm.WRITE)
        async with client.producer(topic) as producer:
            await producer.send(b"dead", key="k")
    return topic


@pytest_asyncio.fixture
async def letters(rocketmq: RocketMQ) -> str:
    return await create_dead_letters(rocketmq)


@pytest_asyncio.fixture
async def client(rocketmq: RocketMQ) -> AsyncIterator[RocketMQClient]:
    async with RocketMQClient(f"rocketmq://{rocketmq.name_server}") as client:
        yield client


def gateway_config(server: RocketMQ, topic: str, folder: Path) -> dict[str, Any]:
    return {
        "clusters": {
            "rocket": {"system": "rocketmq", "name_servers": server.name_server},
            "target": {"system": "log", "path": str(folder / "target.db")},
        },
        "routes": [
            {
                "name": "r",
                "from": {"cluster": "rocket", "topic": topic, "group": f"q-{uuid4().hex[:8]}"},
                "to": {"cluster": "target", "topic": "letters", "create": True},
            }
        ],
    }


async def test_a_route_waits_for_a_topic_that_nobody_may_read_until_it_is_permitted(
    rocketmq: RocketMQ, letters: str, client: RocketMQClient, tmp_path: Path
) -> None:
    with GatewayProcess(gateway_config(rocketmq, letters, tmp_path), tmp_path) as gateway:
        async with asyncio.timeout(SERVER_PATIENCE_S):
            while WHY not in gateway.log:
                await asyncio.sleep(0.1)
        assert "cannot be created" not in gateway.log
        assert await permit_reading(client.admin, letters) == ["broker-a"]
        await asyncio.to_thread(gateway.wait_stored, 1)
    async with opened("log", {"path": str(tmp_path / "target.db")}) as target:
        assert (await target.bounds("letters"))["0"].next == (1,)


def test_check_says_that_nobody_may_read_the_source(rocketmq: RocketMQ, letters: str, invoke: Invoke, tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_bytes(orjson.dumps(gateway_config(rocketmq, letters, tmp_path)))
    checked = invoke("check", file, "--connect")
    output = " ".join((checked.out + checked.err).split())
    assert checked.code == 3
    assert f"nobody may read topic {letters} (its permission is 2, without read, at broker broker-a)" in output
    assert f"`mqbridge topics '{letters}' --permit-reading`" in output
    assert "cannot be created" not in output


def test_commands_say_that_nobody_may_read_a_topic_until_it_is_permitted(
    rocketmq: RocketMQ, letters: str, invoke: Invoke
) -> None:
    at = ("--at", f"rocketmq://{rocketmq.name_server}")
    for command in (
        ("peek", letters),
        ("offsets", letters),
        ("offsets", letters, "-G", "new", "--reset", "earliest", "--create", "--yes"),
        ("groups", letters),
        ("consume", "-t", letters, "-e"),
        ("consume", "-t", letters, "-G", "new", "-e"),
    ):
        answer = invoke(*command, *at)
        assert (answer.code, WHY in answer.err, answer.out) == (3, True, ""), command
    described = invoke("topics", letters, *at)
    assert (described.code, WHY in described.err, "write" in described.out) == (0, True, True)

    permitted = invoke("topics", letters, "--permit-reading", *at)
    assert (permitted.code, f"reading {letters} is permitted now at broker-a" in permitted.err) == (0, True)
    assert "read and write" in permitted.out
    again = invoke("topics", letters, "--permit-reading", *at)
    assert (again.code, "was permitted already" in again.err) == (0, True)
    (message,) = invoke("peek", letters, "--json", *at).out.splitlines()
    assert orjson.loads(message)["key"] == "k"
    assert invoke("topics", "--permit-reading", *at).code == 2
    assert invoke("topics", "nothing", "--permit-reading", *at).code == 3


def test_only_rocketmq_has_topics_with_a_permission_to_read(invoke: Invoke, tmp_path: Path) -> None:
    answer = invoke("topics", "t", "--permit-reading", "--at", f"log://{tmp_path}/a.db")
    assert (answer.code, "have no permission to read of their own" in answer.err) == (2, True)


async def test_spark_and_readers_refuse_a_topic_that_nobody_may_read(
    rocketmq: RocketMQ, letters: str, client: RocketMQClient, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened("rocketmq", {"name_servers": rocketmq.name_server}) as cluster:
        with pytest.raises(ClusterError, match=WHY):
            await describe_topic(cluster, letters)
        with pytest.raises(ClusterError, match=WHY) as refused:
            await reading.read(cluster, letters, "broker-a:0", (0,)).asend(None)
        assert refused.value.failure is Failure.RETRY
    with pytest.raises(ClusterError, match=WHY):
        await client.reader(letters)
    async with client.consumer(letters, "g1"), client.pop_consumer(letters, "g2"):
        assert caplog.text.count(WHY) == 2


async def test_a_consumer_begins_when_its_topic_may_be_read(rocketmq: RocketMQ, letters: str, client: RocketMQClient) -> None:
    async with client.consumer(letters, f"g-{uuid4().hex[:8]}") as consumer, client.pop_consumer(letters, "g-pop") as popper:
        await permit_reading(client.admin, letters)
        assert (await consumer.receive(SERVER_PATIENCE_S)).payload == b"dead"
        assert (await popper.receive(SERVER_PATIENCE_S)).payload == b"dead"


@pytest.mark.parametrize("server", ["rocketmq", "rocketmq_old"])
async def test_reading_is_permitted_without_other_changes(server: str, request: pytest.FixtureRequest) -> None:
    cluster: RocketMQ = request.getfixturevalue(server)
    topic = await create_dead_letters(cluster)
    async with RocketMQClient(f"rocketmq://{cluster.name_server}") as client:
        before = (await client.admin.topic_config(topic))["broker-a"]
        assert await permit_reading(client.admin, topic) == ["broker-a"]
        after = (await client.admin.topic_config(topic))["broker-a"]
        assert (before.perm, after.perm) == (Perm.WRITE, Perm.READ_WRITE)
        assert (after.read_queues, after.write_queues) == (before.read_queues, before.write_queues)
        assert await permit_reading(client.admin, topic) == []
        async with client.reader(topic) as reader:
            assert (await reader.receive(SERVER_PATIENCE_S)).payload == b"dead"


@pytest.mark.parametrize("server", ["rocketmq", "rocketmq_old"])
async def test_brokers_of_today_permit_reading_of_dead_letters(server: str, request: pytest.FixtureRequest) -> None:
    cluster: RocketMQ = request.getfixturevalue(server)
    topic, group = cluster.take_topic(1), f"g-{uuid4().hex[:8]}"
    async with RocketMQClient(f"rocketmq://{cluster.name_server}") as client:
        async with client.producer(topic) as producer:
            await producer.send(b"poison")
        async with client.consumer(topic, group) as consumer:
            assert await consumer.dead_letter(await consumer.receive(SERVER_PATIENCE_S))
        async with client.reader(f"%DLQ%{group}") as reader:
            assert (await reader.receive(SERVER_PATIENCE_S)).payload == b"poison"


async def test_dead_letters_are_put_back_into_the_topic_that_they_came_from(
    rocketmq: RocketMQ, client: RocketMQClient, tmp_path: Path
) -> None:
    """As the how-to says, for a group that reads two topics."""
    topic, other, group = rocketmq.take_topic(1), rocketmq.take_topic(1), f"g-{uuid4().hex[:8]}"
    for name, payload in ((topic, b"poison"), (other, b"not this one")):
        async with client.producer(name) as producer:
            await producer.send(payload, key="k", msg_type="paid", properties={"own": "1"})
    async with client.consumer([topic, other], group) as consumer:
        for _ in range(2):
            assert await consumer.dead_letter(await consumer.receive(SERVER_PATIENCE_S))
        await consumer.flush()
    source = {"cluster": "rocket", "topic": f"%DLQ%{group}", "group": "redrive", "options": {"sql": f"RETRY_TOPIC = '{topic}'"}}
    config = {
        "clusters": {"rocket": {"system": "rocketmq", "name_servers": rocketmq.name_server}},
        "routes": [{"name": "redrive", "from": source, "to": {"cluster": "rocket", "topic": topic, "create": False}}],
    }
    with GatewayProcess(config, tmp_path, "--until-idle", "3") as gateway:
        assert await asyncio.to_thread(gateway.wait) == 0, gateway.log
    async with client.consumer([topic, other], group) as consumer:
        again = await consumer.receive(SERVER_PATIENCE_S)
        assert (again.topic, again.payload, again.key, again.msg_type) == (topic, b"poison", "k", "paid")
        assert (again.property("own"), again.delivery_count) == ("1", 0)
        with pytest.raises(TimeoutError):
            await consumer.receive(1.0)
