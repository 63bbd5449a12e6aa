"""Growth of a topic on two real brokers takes nothing from a broker: neither queues with unread messages nor settings."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqbridge.errors import ClusterError, Failure
from tests.e2e.support import opened, read
from tests.kit import rocketmq_remoting as remoting
from tests.kit.conversation import wait_until
from tests.kit.gateway import GatewayProcess
from tests.kit.rocketmq import RocketMQ

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240), pytest.mark.thorough]

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[RocketMQ]:
    with RocketMQ(brokers=2, heap_mb=384) as kit:
        yield kit


class TestTopic:
    """A topic with different settings at each broker; each entry of `brokers` is for one broker, None without the topic."""

    __test__ = False

    def __init__(self, server: RocketMQ, *brokers: dict[str, Any] | None) -> None:
        self.server, self.name = server, f"uneven-{next(_numbers)}"
        for address, settings in zip(server.broker_addresses, brokers, strict=True):
            if settings is not None:
                self.configure(address, **settings)
        present = {name for name, settings in zip(server.broker_names, brokers, strict=True) if settings is not None}
        wait_until(lambda: set(server.queues(self.name)) == present)

    def configure(self, address: str, *, write: int, read: int | None = None, attributes: str = "", **settings: Any) -> None:
        remoting.create_topic(address, self.name, write, attributes, readQueueNums=write if read is None else read, **settings)

    @property
    def configs(self) -> list[dict[str, Any] | None]:
        """The settings at each broker."""
        return [remoting.topic_configs(address).get(self.name) for address in self.server.broker_addresses]

    @property
    def queues(self) -> list[tuple[int, int] | None]:
        """The numbers of readable and writable queues at each broker."""
        return [None if each is None else (each["readQueueNums"], each["writeQueueNums"]) for each in self.configs]

    def send(self, count: int) -> set[bytes]:
        """Store one message in each of the first queues of the first broker, and return the payloads."""
        payloads = {b"unread %d" % queue for queue in range(count)}
        for queue in range(count):
            self.server.send(self.name, b"unread %d" % queue, queue=queue)
        self.server.settle()
        return payloads


def settings_of(server: RocketMQ) -> dict[str, Any]:
    return {"name_servers": [server.name_server], "request_timeout": "3s"}


async def grow(server: RocketMQ, topic: str, partitions: int) -> None:
    async with opened("rocketmq", settings_of(server)) as cluster:
        await cluster.create(topic, partitions)


async def payloads(server: RocketMQ, topic: str) -> set[bytes | None]:
    found = set()
    async for _, messages in read("rocketmq", settings_of(server), topic, f"judge-{next(_numbers)}"):
        found |= {message.payload for message in messages}
    return found


async def test_a_topic_of_one_broker_grows_there_and_keeps_its_queues_with_unread_messages(server: RocketMQ) -> None:
    topic = TestTopic(server, {"write": 8}, None)
    unread = topic.send(8)
    await grow(server, topic.name, 10)
    assert topic.queues == [(10, 10), None]
    assert await payloads(server, topic.name) == unread


async def test_queues_that_are_only_readable_and_queues_above_the_average_are_kept(server: RocketMQ) -> None:
    topic = TestTopic(server, {"write": 8}, {"write": 2})
    unread = topic.send(8)
    topic.configure(server.broker_addresses[0], write=4, read=8)  # the first step of shrinking it: four queues are only read
    await grow(server, topic.name, 9)
    assert topic.queues == [(8, 5), (5, 5)]
    assert await payloads(server, topic.name) == unread
    await grow(server, topic.name, 20)
    assert topic.queues == [(10, 10), (10, 10)]


async def test_every_other_setting_of_each_broker_is_kept(server: RocketMQ) -> None:
    topic = TestTopic(
        server,
        {"write": 3, "attributes": "+message.type=FIFO", "order": True, "topicFilterType": "MULTI_TAG", "topicSysFlag": 2},
        {"write": 1, "read": 2, "attributes": "+message.type=DELAY", "perm": 7},
    )
    before = topic.configs
    await grow(server, topic.name, 8)
    assert topic.configs == [None if each is None else each | {"readQueueNums": 4, "writeQueueNums": 4} for each in before], (
        "only the numbers of queues change"
    )


async def test_only_brokers_that_need_more_queues_are_changed(server: RocketMQ) -> None:
    topic = TestTopic(server, {"write": 6}, {"write": 1})
    versions = [remoting.topic_configs(address)["dataVersion"] for address in server.broker_addresses]
    await grow(server, topic.name, 7)
    assert [remoting.topic_configs(address)["dataVersion"] for address in server.broker_addresses] == versions
    await grow(server, topic.name, 8)
    assert remoting.topic_configs(server.broker_addresses[0])["dataVersion"] == versions[0]
    assert topic.queues == [(6, 6), (2, 2)]


async def test_a_topic_is_not_grown_while_a_broker_does_not_permit_writing(server: RocketMQ) -> None:
    """Other queues would take the places of those that may not be written for a while."""
    topic = TestTopic(server, {"write": 4, "perm": 4}, {"write": 4})
    with pytest.raises(ClusterError, match="do not permit writing"):
        await grow(server, topic.name, 6)
    assert topic.queues == [(4, 4), (4, 4)]
    closed = TestTopic(server, {"write": 4, "perm": 4}, {"write": 4, "perm": 4})
    with pytest.raises(ClusterError, match="writ"):
        await grow(server, closed.name, 6)
    assert closed.queues == [(4, 4), (4, 4)]


async def test_clients_that_grow_a_topic_at_the_same_time_reach_the_largest_number(server: RocketMQ) -> None:
    numbers = (5, 12, 9, 16, 7)
    existing, created = TestTopic(server, {"write": 3}, {"write": 2}), f"created-{next(_numbers)}"
    for name in (existing.name, created):
        await asyncio.gather(*(grow(server, name, number) for number in numbers))
        # The name server hears of the last changes after their clients have returned.
        await asyncio.to_thread(wait_until, lambda name=name: server.queues(name) == {"broker-a": 8, "broker-b": 8})


async def test_nothing_is_changed_while_a_broker_of_the_topic_does_not_respond(server: RocketMQ) -> None:
    topic, elsewhere = TestTopic(server, {"write": 2}, {"write": 2}), TestTopic(server, {"write": 2}, None)
    async with opened("rocketmq", settings_of(server)) as cluster:
        server.brokers[1].freeze()
        try:
            with pytest.raises(ClusterError, match=r"is not changed.*broker-b") as caught:
                await cluster.create(topic.name, 8)
            await cluster.create(elsewhere.name, 4)
        finally:
            server.brokers[1].thaw()
    assert caught.value.failure is Failure.RETRY
    assert topic.queues == [(2, 2), (2, 2)]
    assert elsewhere.queues == [(4, 4), None]


async def test_a_topic_does_not_grow_while_a_broker_that_the_client_has_seen_in_its_route_is_away(
    server: RocketMQ, tmp_path: Path
) -> None:
    topic = TestTopic(server, {"write": 2}, {"write": 2})
    async with opened("rocketmq", settings_of(server)) as cluster:
        assert await cluster.describe(topic.name) is not None
        server.kill_broker(1)
        try:
            await asyncio.to_thread(wait_until, lambda: set(server.queues(topic.name)) == {"broker-a"})
            with pytest.raises(ClusterError, match=r"broker-b have no registered master") as caught:
                await cluster.create(topic.name, 6)
        finally:
            await asyncio.to_thread(server.restart_broker, 1)
        await cluster.create(topic.name, 6)
    assert caught.value.failure is Failure.RETRY
    assert topic.queues == [(3, 3), (3, 3)]


async def test_a_route_grows_its_target_without_hiding_unread_messages(server: RocketMQ, tmp_path: Path) -> None:
    topic = TestTopic(server, {"write": 8}, None)
    unread = topic.send(8)
    path = tmp_path / "source.db"
    async with opened("log", {"path": str(path)}) as source:
        await source.create("orders", 10)
    config = {
        "clusters": {
            "source": {"system": "log", "path": str(path)},
            "target": {"system": "rocketmq", **settings_of(server), "brokers": server.broker_names},
        },
        "routes": [
            {
                "name": "r",
                "from": {"cluster": "source", "topic": "orders", "group": "g"},
                "to": {"cluster": "target", "topic": topic.name},
            }
        ],
    }
    with GatewayProcess(config, tmp_path, "--until-idle", "1") as gateway:
        assert await asyncio.to_thread(gateway.wait) == 0, gateway.log
    assert topic.queues == [(10, 10), None]
    assert await payloads(server, topic.name) == unread
