"""Producers, as the Master knows them."""

import pytest

from mqbridge.tubemq.server import producers
from mqbridge.tubemq.server.broker import BROKER_ID
from mqbridge.tubemq.wire.pb import master_pb2
from tests.tubemq.server.serving import TOPIC, serving, until


async def test_the_brokers_are_told_when_they_are_not_known() -> None:
    async with serving() as served:
        client = await served.connect("p")
        registered = await client.register_producer()
        assert list(registered.brokerInfos) == [f"{BROKER_ID}:127.0.0.1:{served.listener.port.port}"]
        assert not (await client.publish(TOPIC, brokerCheckSum=registered.brokerCheckSum)).brokerInfos
        assert (await client.publish(TOPIC, brokerCheckSum=-1)).brokerInfos == registered.brokerInfos


async def test_clients_are_told_the_address_that_is_advertised() -> None:
    async with serving(advertise="app.example:8715") as served:
        client = await served.connect("p")
        assert list((await client.register_producer()).brokerInfos) == [f"{BROKER_ID}:app.example:8715"]


async def test_a_topic_is_created_when_it_is_published() -> None:
    async with serving(create_partitions=3) as served:
        client = await served.connect("p")
        assert list((await client.publish("new")).topicInfos) == [f"new#{BROKER_ID}:3:1#8388608"]


async def test_the_limit_of_messages_is_told_once() -> None:
    async with serving() as served:
        client = await served.connect("p")
        config = (await client.register_producer(appdConfig=master_pb2.ApprovedClientConfig(configId=-2))).appdConfig
        assert config.maxMsgSize == 8 << 20
        again = (await client.publish(TOPIC, appdConfig=master_pb2.ApprovedClientConfig(configId=config.configId))).appdConfig
        assert (again.configId, again.HasField("maxMsgSize")) == (config.configId, False)


@pytest.mark.parametrize("client_id", [" ", "a#b", "a@b", "x" * 1025])
async def test_ids_that_break_subscriptions_are_refused(client_id: str) -> None:
    async with serving() as served:
        client = await served.connect(client_id)
        assert (await client.register_producer()).errCode == 400
        assert (await client.publish(TOPIC)).errCode == 400


async def test_producers_are_known_until_they_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served:
        client = await served.connect("p")
        await client.publish(TOPIC)
        assert served.server.counts.producers == 1
        (described,) = served.server.describe()["producers"]
        assert (described["name"], described["topics"]) == ("p", 1)
        await client.connection.close()
        await until(lambda: not served.server.producers.known)
        other = await served.connect("q")
        await other.register_producer()
        monkeypatch.setattr(producers, "LEASE_S", -1.0)
        await other.publish(TOPIC)
        served.server.producers._forget_gone()
        assert not served.server.producers.known
