"""Clusters that require TLS, client certificates and credentials: 5.3.3 with access control 2.0, 4.9.7 with 1.0.

Refusals are reported in one line, with the right exit code, and `check --connect` finds them first. The permissions in the table
of the documentation suffice. No message is lost when certificates and keys are replaced under load.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.message import Batch, Share
from mqbridge.rocketmq.adapter.config import RocketMQCluster
from mqbridge.rocketmq.adapter.registration import ADAPTER
from mqbridge.rocketmq.client.cluster_client import ClusterClient
from mqbridge.rocketmq.library.producer import Producer
from mqbridge.rocketmq.library.query import Query
from mqbridge.rocketmq.wire import properties
from mqbridge.rocketmq.wire.properties import Name
from tests.cli.conftest import Invoke, invoke
from tests.e2e.support import read
from tests.kit.conversation import wait_until
from tests.kit.gateway import GatewayProcess
from tests.kit.oracle import Oracle, message
from tests.kit.rocketmq import RocketMQ
from tests.kit.rocketmq_lock import ADMIN, APP, OPERATES, PUBLISHER, STRANGER, SUBSCRIBER, Rights, User
from tests.patience import SERVER_PATIENCE_S

__all__ = ["invoke"]

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400), pytest.mark.thorough]

QUEUES = 2
SIZE = 200
_numbers = itertools.count(1)


@pytest.fixture(params=["rocketmq_locked", "rocketmq_old_locked"], ids=["acl2", "acl1"])
def server(request: pytest.FixtureRequest) -> RocketMQ:
    found: RocketMQ = request.getfixturevalue(request.param)
    return found


def settings(server: RocketMQ, user: User = APP, **changes: Any) -> dict[str, Any]:
    """Return the settings of a cluster in a configuration, with paths as text."""
    assert server.lock is not None
    found = server.lock.settings(user)
    found["tls"] = {name: str(path) for name, path in found["tls"].items()}
    return {"system": "rocketmq", "name_servers": server.name_server, "heartbeat": "1s", "refresh": "500ms"} | found | changes


def config(source: dict[str, Any], target: dict[str, Any], topic: str, to: str, group: str = "") -> dict[str, Any]:
    group = group or f"g_{time.time_ns()}"
    return {
        "clusters": {"source": source, "target": target},
        "routes": [
            {
                "name": "r",
                "from": {"cluster": "source", "topic": topic, "group": group},
                "to": {"cluster": "target", "topic": to, "create": target["system"] == "memory"},
            }
        ],
    }


def write_config(folder: Path, content: dict[str, Any]) -> Path:
    path = folder / f"f{next(_numbers)}.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@contextlib.asynccontextmanager
async def opened(server: RocketMQ, user: User = ADMIN) -> AsyncIterator[Cluster]:
    """Connect the adapter to the cluster as this user."""
    assert server.lock is not None
    made = ADAPTER.make_cluster("c", ADAPTER.cluster_model(name_servers=server.name_server, **server.lock.settings(user)))
    await made.connect()
    try:
        yield made
    finally:
        await made.close()


# --- refused connections and credentials ----------------------------------------------------------------------------------


def without(name: str) -> Callable[[RocketMQ, dict[str, Any]], None]:
    return lambda _, cluster: cluster.pop(name)


def keys(**changes: str) -> Callable[[RocketMQ, dict[str, Any]], None]:
    return lambda _, cluster: cluster["auth"].update(changes)


def no_certificate(_: RocketMQ, cluster: dict[str, Any]) -> None:
    del cluster["tls"]["certificate"], cluster["tls"]["key"]


def no_authorities(_: RocketMQ, cluster: dict[str, Any]) -> None:
    del cluster["tls"]["authorities"]


def another_server_name(_: RocketMQ, cluster: dict[str, Any]) -> None:
    cluster["tls"]["server_name"] = "another.example"


def expired_certificate(server: RocketMQ, cluster: dict[str, Any]) -> None:
    assert server.lock is not None
    old = server.lock.authority.issue("expired", begins=timedelta(days=-2), ends=timedelta(days=-1))
    cluster["tls"].update(certificate=str(old.certificate), key=str(old.key))


REFUSED = {
    "wrong secret": (keys(secret_key="not-the-secret"), "refuses access key 'application'", "check auth.secret_key"),
    "unknown user": (keys(access_key="nobody-here"), "refuses access key 'nobody-here'", "no such user"),
    "no credentials": (without("auth"), "requires credentials", "auth.access_key"),
    "no TLS": (without("tls"), "ended", "switch on the option `tls`"),
    "no certificate": (no_certificate, "certificate", "tls.certificate"),
    "expired certificate": (expired_certificate, "certificate", "tls.certificate"),
    "unknown authority": (no_authorities, "signed by no authority", "tls.authorities"),
    "another name": (another_server_name, "its certificate is not for another.example", "tls.server_name"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_connection_is_reported_in_one_line(server: RocketMQ, invoke: Invoke, tmp_path: Path, case: str) -> None:
    change, *words = REFUSED[case]
    topic, good = server.take_topic(1), settings(server)
    bad = copy.deepcopy(good)
    change(server, bad)
    file = write_config(tmp_path, config(bad, {"system": "memory"}, topic, topic))
    answer = invoke("check", "--connect", file)
    assert answer.code == 3, answer
    assert all(word in answer.out + answer.err for word in words), answer
    assert APP.secret not in answer.out + answer.err
    assert "not-the-secret" not in answer.out + answer.err


@pytest.mark.parametrize("case", ["wrong secret", "no certificate"])
def test_a_gateway_whose_connection_is_refused_ends(server: RocketMQ, tmp_path: Path, case: str) -> None:
    change, *words = REFUSED[case]
    topic, bad = server.take_topic(1), settings(server)
    change(server, bad)
    with GatewayProcess(config(bad, {"system": "memory"}, topic, topic), tmp_path) as gateway:
        assert gateway.wait() == 3, gateway.log
        assert all(word in gateway.log for word in words), gateway.log


def test_a_security_token_is_sent(server: RocketMQ, invoke: Invoke, tmp_path: Path) -> None:
    """Brokers verify the token only as one of the signed fields; a cluster may check its content with a validator of its own."""
    topic, copy, cluster = server.take_topic(1), server.take_topic(1), settings(server)
    cluster["auth"]["security_token"] = "the-token"
    answer = invoke("check", "--connect", write_config(tmp_path, config(cluster, cluster, topic, copy)))
    assert answer.code == 0, answer


async def test_a_message_is_found_by_its_unique_key(server: RocketMQ) -> None:
    """Both broker versions leave out the field that marks such a query when they verify the signature, each in its own way."""
    assert server.lock is not None
    topic = await asyncio.to_thread(server.take_topic, 1)
    cluster = ADAPTER.cluster_model(name_servers=server.name_server, **server.lock.settings(APP))
    assert isinstance(cluster, RocketMQCluster)
    assert cluster.tls is not None
    assert cluster.auth is not None
    tls, credentials = cluster.tls.make("c"), cluster.auth.make()
    async with ClusterClient([server.name_server], tls=tls, credentials=credentials) as client:
        await Producer(client.producer("P", topic)).send(b"body", keys=["k"])
        async with asyncio.timeout(SERVER_PATIENCE_S):
            while not (found := await Query(client).by_key(topic, "k")):
                await asyncio.sleep(0.05)
        unique = dict(properties.decode(found[0].properties))[Name.UNIQ_KEY]
        found = await Query(client).by_unique_key(topic, unique)
    assert [record.body for record in found] == [b"body"]


def test_tls_at_a_server_without_tls_is_an_error(server: RocketMQ, invoke: Invoke, tmp_path: Path) -> None:
    """By default a server accepts connections with and without TLS; with TLS disabled, it closes a TLS connection."""
    assert server.lock is not None
    with RocketMQ(version=server.version, java_options=["-Dtls.server.mode=disabled"]) as plain:
        cluster = settings(server) | {"name_servers": plain.name_server}
        answer = invoke("check", "--connect", write_config(tmp_path, config(cluster, {"system": "memory"}, "T", "T")))
    assert answer.code == 3, answer
    assert "leave out the option `tls`" in answer.out + answer.err, answer


# --- permissions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("user", "words"),
    [
        (STRANGER, "access key 'stranger' may not consume as group"),
        (PUBLISHER, "access key 'publisher' may not consume as group"),
    ],
)
def test_a_missing_permission_to_consume_is_found_by_check(
    server: RocketMQ, invoke: Invoke, tmp_path: Path, user: User, words: str
) -> None:
    topic = server.take_topic(1)
    content = config(settings(server, user), {"system": "memory"}, topic, topic, "readers")
    answer = invoke("check", "--connect", write_config(tmp_path, content))
    assert answer.code == 3, answer
    assert f"{words} 'readers'" in answer.out + answer.err, answer
    with GatewayProcess(content, tmp_path) as gateway:
        wait_until(lambda: f"{words} 'readers'" in gateway.log)
        assert gateway.process.poll() is None, "without --fail-fast the route waits for the permission"


def test_a_permission_for_the_group_alone_is_not_enough(server: RocketMQ, invoke: Invoke, tmp_path: Path) -> None:
    topic, group = server.take_topic(1), f"g_{time.time_ns()}"
    user = User(f"half{next(_numbers)}-{topic}", "secret-of-half", Rights({}, {group: ["Sub", "Get"]}))
    add_user(server, user)
    content = config(settings(server, user), {"system": "memory"}, topic, topic, group)
    answer = invoke("check", "--connect", write_config(tmp_path, content))
    assert answer.code == 3, answer
    assert f"access key '{user.name}' may not consume topic '{topic}'" in answer.out + answer.err, answer


@pytest.mark.parametrize("user", [STRANGER, SUBSCRIBER])
def test_a_missing_permission_to_produce_is_found_by_check(server: RocketMQ, invoke: Invoke, tmp_path: Path, user: User) -> None:
    source, target = server.take_topic(1), server.take_topic(1)
    content = config(settings(server), settings(server, user), source, target)
    answer = invoke("check", "--connect", write_config(tmp_path, content))
    assert answer.code == 3, answer
    assert f"access key '{user.name}' may not produce to topic '{target}'" in answer.out + answer.err, answer


def test_checking_stores_nothing(server: RocketMQ, invoke: Invoke, tmp_path: Path) -> None:
    source, target = server.take_topic(1), server.take_topic(1)
    answer = invoke("check", "--connect", write_config(tmp_path, config(settings(server), settings(server), source, target)))
    assert answer.code == 0, answer
    server.settle()
    assert (server.message_count(source), server.message_count(target)) == (0, 0)


def test_creating_a_topic_needs_a_permission_of_its_own(server: RocketMQ, invoke: Invoke) -> None:
    with pytest.raises(Exception, match=r"access key 'application' may not (create|administer)"):
        asyncio.run(create(server, APP, f"made_{time.time_ns()}"))
    asyncio.run(create(server, OPERATES, f"made_{time.time_ns()}"))


async def create(server: RocketMQ, user: User, topic: str) -> None:
    async with opened(server, user) as cluster:
        await cluster.create(topic, 1)


async def test_the_documented_permissions_suffice(server: RocketMQ, tmp_path: Path) -> None:
    """One user may only consume the source topic with the group, the other may only produce to the target topic."""
    source, target, group = server.take_topic(QUEUES), server.take_topic(QUEUES), f"g_{time.time_ns()}"
    reader = User(
        f"reader{next(_numbers)}-{group}", "secret-of-reader", Rights({source: ["Sub", "Get"]}, {group: ["Sub", "Get"]})
    )
    writer = User(f"writer{next(_numbers)}-{group}", "secret-of-writer", Rights({target: ["Pub"]}, {}))
    for user in (reader, writer):
        await asyncio.to_thread(add_user, server, user)
    content = config(settings(server, reader), settings(server, writer), source, target, group)
    with GatewayProcess(content, tmp_path) as gateway:
        async with producing(server, source) as produce:
            counts = await produce(50)
        await asyncio.to_thread(gateway.wait_stored, sum(counts))
        assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log
    await check_stored(server, target, counts)


# --- replaced keys and certificates ---------------------------------------------------------------------------------------


async def test_replacing_keys_under_load_loses_no_message(server: RocketMQ, tmp_path: Path) -> None:
    source, target, group = server.take_topic(QUEUES), server.take_topic(QUEUES), f"g_{time.time_ns()}"
    user = User(f"rotating{next(_numbers)}-{group}", "secret-number-0", APP.rights)
    await asyncio.to_thread(add_user, server, user)
    secret = tmp_path / "secret"
    put(secret, user.secret)
    cluster = settings(server, user, auth={"access_key": user.name, "secret_key": {"file": str(secret)}})
    with GatewayProcess(config(cluster, cluster, source, target, group), tmp_path) as gateway:
        async with producing(server, source) as produce:
            counts = await produce(100)
            await asyncio.to_thread(gateway.wait_stored, 1)
            for number in range(1, 4):
                fresh = replace(user, secret=f"secret-number-{number}")
                more = asyncio.ensure_future(produce(300))
                if (
                    number % 2
                ):  # odd: the server gets the secret first, so signatures are refused for a moment; even: the file does
                    await asyncio.to_thread(add_user, server, fresh)
                    put(secret, fresh.secret)
                else:
                    put(secret, fresh.secret)
                    await asyncio.to_thread(add_user, server, fresh)
                counts = await more
                await asyncio.to_thread(gateway.wait_stored, sum(counts))
        assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log
        assert "secret-number" not in gateway.log
    await check_stored(server, target, counts)


async def test_replacing_certificates_under_load_loses_no_message(tmp_path: Path) -> None:
    """The gateway's first certificate expires, and the servers reload theirs; after a restart all connections use new ones."""
    with RocketMQ(locked=True) as server:
        assert server.lock is not None
        authority, source, target = server.lock.authority, server.take_topic(QUEUES), server.take_topic(QUEUES)
        first, over = authority.issue("gateway", ends=timedelta(seconds=20)), time.time() + 21
        cluster = settings(server)
        cluster["tls"] |= {"certificate": str(first.certificate), "key": str(first.key)}
        with GatewayProcess(config(cluster, cluster, source, target), tmp_path) as gateway:
            async with producing(server, source) as produce:
                counts = await produce(100)
                await asyncio.to_thread(gateway.wait_stored, sum(counts))
                before = server.certificates()
                more = asyncio.ensure_future(produce(500))
                authority.issue("gateway")
                authority.issue("server", ends=timedelta(days=60))
                await until(lambda: not {*server.certificates()} & {*before})
                counts = await more
                await until(lambda: time.time() > over)
            await asyncio.to_thread(server.kill_broker)
            await asyncio.to_thread(server.restart_broker)
            async with producing(server, source, counts) as produce:
                counts = await produce(100)
            await asyncio.to_thread(gateway.wait_stored, sum(counts))
            assert await asyncio.to_thread(gateway.terminate) == 0, gateway.log
        await check_stored(server, target, counts)


# --- helpers --------------------------------------------------------------------------------------------------------------


def put(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.rename(path)


def add_user(server: RocketMQ, user: User) -> None:
    """Add a user to the cluster, and wait until the broker accepts the user."""
    server.open_for(user)
    server.wait_admitted(user)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SERVER_PATIENCE_S):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.05)


Produce = Callable[[int], Any]


@contextlib.asynccontextmanager
async def producing(server: RocketMQ, topic: str, sent: list[int] | None = None) -> AsyncIterator[Produce]:
    """Yield a function that sends `count` more messages to every queue, and returns the number of messages of each queue."""
    counts = sent or [0] * QUEUES
    async with opened(server) as cluster:
        outbound = await cluster.outbound(OutboundSpec(topic, stamp_origin=False))

        async def produce(count: int) -> list[int]:
            for _ in range(count):
                for queue in range(QUEUES):
                    receipt = await outbound.send(queue, Share(Batch.of([message(queue, counts[queue], SIZE)])))
                    assert not receipt.failures
                    counts[queue] += 1
            return list(counts)

        yield produce
        await outbound.close()


async def check_stored(server: RocketMQ, topic: str, counts: list[int]) -> None:
    oracle = Oracle(counts, SIZE)
    found = {name: value for name, value in settings(server, ADMIN).items() if name != "system"}
    async for partition, messages in read("rocketmq", found, topic, f"judge_{time.time_ns()}"):
        oracle.see(partition, messages)
    oracle.assert_complete()
