"""The real servers behave as the tests assume: ready to store, back after a restart or kill, stopped at the end."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.kit.process import ClusterError, JavaProcess, accepts, free_ports
from tests.kit.pulsar import Pulsar
from tests.kit.rocketmq import RocketMQ
from tests.kit.tubemq import TubeMQ

pytestmark = pytest.mark.cluster


def is_gone(servers: list[JavaProcess], folder: Path) -> bool:
    """Return True if no process and no data are left."""
    return not any(Path(f"/proc/{server.pid}").exists() for server in servers) and not folder.exists()


def test_tubemq_serves_its_topics(tubemq: TubeMQ) -> None:
    topic = tubemq.take_topic(3)
    (deployed,) = tubemq.admin("admin_query_topic_deploy_info", topicName=topic)["data"]
    assert deployed["isSrvAcceptPublish"]
    assert deployed["isSrvAcceptSubscribe"]
    assert deployed["totalRunNumPartCount"] == 3
    assert accepts(tubemq.broker_port)
    assert tubemq.message_count(topic) == 0


def test_tubemq_topics_are_used_once_and_added_if_the_pool_is_empty(tubemq: TubeMQ) -> None:
    names = [tubemq.take_topic(5) for _ in range(5)]
    assert len(set(names)) == 5
    assert tubemq.topics[names[-1]] == 5


def test_the_error_of_a_rejected_tubemq_call_names_method_and_topic(tubemq: TubeMQ) -> None:
    topic = tubemq.take_topic()
    with pytest.raises(ClusterError, match=f"admin_add_new_topic_record.*{topic}"):
        tubemq.add_topic(topic)


def test_pulsar_stores_a_message(pulsar: Pulsar) -> None:
    topic = pulsar.take_topic()
    assert pulsar.send(topic, "first") != pulsar.send(topic, "second")
    stats = pulsar.admin("GET", f"{topic.replace('://', '/')}/internalStats")
    assert stats["numberOfEntries"] == 2


def test_pulsar_creates_partitions_and_namespaces(pulsar: Pulsar) -> None:
    namespace = pulsar.create_namespace("kit", "made")
    topic = pulsar.create_topic("orders", 4, namespace=namespace)
    assert topic == "persistent://kit/made/orders"
    assert pulsar.admin("GET", "persistent/kit/made/orders/partitions")["partitions"] == 4


def test_rocketmq_stores_messages(rocketmq: RocketMQ) -> None:
    topic = rocketmq.take_topic(3)
    assert rocketmq.queues(topic) == {"broker-a": 3}
    assert rocketmq.message_count(topic) == 0
    assert [rocketmq.send(topic, b"body", queue=2, properties={"TAGS": "a", "name": "grün"}) for _ in range(2)] == [0, 1]
    rocketmq.settle()
    assert rocketmq.message_count(topic) == 2
    assert rocketmq.queues("no_such_topic") == {}


def test_rocketmq_listens_on_loopback_only(rocketmq: RocketMQ) -> None:
    main = int(rocketmq.broker_address.rpartition(":")[2])
    for port in (int(rocketmq.name_server.rpartition(":")[2]), main, main - 2, main + 1):
        assert accepts(port)
        with socket.socket() as neighbour:
            neighbour.bind(("127.0.0.2", port))  # in use if somebody listened on all addresses


def test_rocketmq_tells_why_it_refuses(rocketmq: RocketMQ) -> None:
    topic = rocketmq.take_topic(1)
    with pytest.raises(ClusterError, match=f"broker-a refused a message for {topic}: 29"):
        rocketmq.send(topic, b"body", queue=1)


@pytest.mark.thorough
def test_tubemq_comes_back_after_kill_and_restart_and_leaves_nothing() -> None:
    with TubeMQ({"kept": 2}, pool={}) as cluster:
        first = [server.pid for server in cluster.servers]
        cluster.broker.kill()
        assert not accepts(cluster.broker_port)
        cluster.broker.start()
        cluster.master.kill()
        cluster.master.start()
        assert all(server.pid not in first for server in cluster.servers)
        cluster.restart()
        cluster.add_topic("later", 2)
        for topic in ("kept", "later"):
            (deployed,) = cluster.admin("admin_query_topic_deploy_info", topicName=topic)["data"]
            assert deployed["totalRunNumPartCount"] == 2
        assert cluster.broker.rss_bytes() > 0
        assert cluster.broker.cpu_s() > 0
        cluster.stop()
        assert is_gone(cluster.servers, cluster.folder)


@pytest.mark.thorough
def test_pulsar_keeps_its_data_over_kill_and_restart_and_leaves_nothing() -> None:
    with Pulsar() as cluster:
        topic = cluster.take_topic()
        cluster.send(topic, "before the kill")
        cluster.server.kill()
        cluster.server.start()
        cluster.send(topic, "before the restart")
        cluster.restart()
        cluster.send(topic, "after both")
        stats = cluster.admin("GET", f"{topic.replace('://', '/')}/internalStats")
        assert stats["numberOfEntries"] >= 3
        cluster.stop()
        assert is_gone(cluster.servers, cluster.folder)


@pytest.mark.thorough
def test_rocketmq_of_two_brokers_and_name_servers_keeps_its_data_over_kill_and_restart_and_leaves_nothing() -> None:
    with RocketMQ({"brokerClusterName": "twins"}, brokers=2, name_servers=2) as cluster:
        topic = cluster.create_topic("kept", 2)
        cluster.send(topic, b"to the first")
        cluster.send(topic, b"to the second", broker=1)
        cluster.kill_broker(1)
        assert cluster.queues(topic) == {"broker-a": 2}
        cluster.restart_broker(1)
        cluster.name_server_process.kill()
        cluster.name_server_process.start()
        for name_server in cluster.name_servers:
            assert cluster.queues(topic, name_server) == {"broker-a": 2, "broker-b": 2}
        cluster.settle()
        assert cluster.message_count(topic) == 2
        cluster.restart()
        cluster.send(topic, b"after all that")
        cluster.settle()
        assert cluster.message_count(topic) == 3
        cluster.kill()
        assert is_gone(cluster.servers, cluster.folder)


def test_the_error_of_a_failed_start_has_the_reason() -> None:
    wrong = Pulsar({"ledgerStorageClass": "noSuchStorage"})
    with pytest.raises(ClusterError, match=r"(?s)pulsar ended before it was ready.*noSuchStorage"), wrong:
        pass
    assert not wrong.folder.exists()


def test_free_ports_differ_and_are_free() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert not any(accepts(port) for port in ports)
