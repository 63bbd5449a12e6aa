"""Registration: access modes, the next owner after a close or a migration, and registrations without a response."""

import asyncio

import pytest

from mqbridge.errors import ClusterError, Failure
from mqbridge.pulsar.client.cluster_client import ClusterClient
from mqbridge.pulsar.client.connection.service_url import parse_service_url
from mqbridge.pulsar.client.consumer.subscription import Subscription
from mqbridge.pulsar.client.producer.producer_settings import ProducerSettings
from mqbridge.pulsar.wire import ids
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand, MessageMetadata
from mqbridge.pulsar.wire.schemas import STRING
from tests.patience import PATIENCE_S
from tests.pulsar.client.broker import URL, Broker, found, in_turn, scripted_client, silent, until

TOPIC = "persistent://public/default/t"
Migrated = pb.CommandTopicMigrated


def registered(link, frame, **fields):
    asked = frame.command.producer
    answer = pb.CommandProducerSuccess(request_id=asked.request_id, producer_name="mine", **fields)
    link.send(producer_success=answer)


def answering(**fields):
    return lambda link, frame: registered(link, frame, **fields)


async def test_producer_command_contains_all_settings(broker: Broker, client):
    broker.on[BaseCommand.PRODUCER] = answering(schema_version=bytes(8), topic_epoch=4)
    settings = ProducerSettings(
        "mine", access=pb.Exclusive, schema=STRING, properties=(("a", "b"),), initial_subscription="first"
    )
    producer = client.producer(TOPIC, settings)
    await producer.send(MessageMetadata(), b"x")
    asked = broker.asked[BaseCommand.PRODUCER][0]
    assert (asked.producer_access_mode, asked.schema.type, asked.initial_subscription_name) == (
        pb.Exclusive,
        pb.Schema.String,
        "first",
    )
    assert [(pair.key, pair.value) for pair in asked.metadata] == [("a", "b")]
    assert not asked.HasField("topic_epoch")
    assert (producer.topic_epoch, producer.schema_version) == (4, bytes(8))
    broker.link.drop()
    await until(lambda: producer.registrations == 2)
    assert broker.asked[BaseCommand.PRODUCER][1].topic_epoch == 4, "so that a fenced producer is known as one"
    await producer.close()


async def test_waiting_for_exclusive_access_has_no_deadline(broker: Broker):
    waiting: list = []

    def not_yet(link, frame):
        waiting.append(frame)
        registered(link, frame, producer_ready=False)

    broker.on[BaseCommand.PRODUCER] = not_yet
    client = scripted_client(operation=0.2, request=0.05)
    producer = client.producer(TOPIC, ProducerSettings("mine", access=pb.WaitForExclusive))
    sent = producer.send(MessageMetadata(), b"x")
    await until(lambda: producer.awaits_exclusive_access)
    await asyncio.sleep(0.5)
    assert not sent.done()
    registered(broker.link, waiting[0], topic_epoch=1, last_sequence_id=6)
    await asyncio.wait_for(sent, PATIENCE_S)
    assert (producer.topic_epoch, producer.last_sequence_id, producer.awaits_exclusive_access) == (1, 6, False)
    assert len(broker.asked[BaseCommand.PRODUCER]) == 1
    await producer.close()
    await client.close()


@pytest.mark.parametrize("how", ["lost", "closed", "closed at once", "refused"])
async def test_a_producer_registers_again_if_its_wait_for_access_fails(broker: Broker, client, how):
    def not_yet(link, frame):
        registered(link, frame, producer_ready=False)
        if how == "lost":
            link.loop.call_later(0.01, link.drop)
        elif how.startswith("closed"):
            command = pb.CommandCloseProducer(producer_id=frame.command.producer.producer_id, request_id=ids.NO_REQUEST)
            if how == "closed at once":
                link.send(close_producer=command)
            else:
                link.loop.call_later(0.01, lambda: link.send(close_producer=command))
        else:
            link.loop.call_later(0.01, lambda: link.error(frame.command.producer.request_id, pb.MetadataError))

    broker.on[BaseCommand.PRODUCER] = in_turn(not_yet, answering())
    producer = client.producer(TOPIC, ProducerSettings("mine", access=pb.WaitForExclusive))
    await asyncio.wait_for(producer.send(MessageMetadata(), b"x"), PATIENCE_S)
    assert len(broker.asked[BaseCommand.PRODUCER]) == 2
    await producer.close()


@pytest.mark.parametrize("error", [pb.PersistenceError, pb.TopicTerminatedError])
async def test_a_late_send_error_of_an_earlier_registration_does_not_end_the_wait_for_access(broker: Broker, client, error):
    """It can arrive if the broker did not confirm in time that it closed the earlier registration."""
    waiting: list = []

    def not_yet(link, frame):
        waiting.append(frame)
        registered(link, frame, producer_ready=False)

    def fail(link, code):
        link.send(send_error=pb.CommandSendError(producer_id=0, sequence_id=0, error=code, message="no"))

    broker.on[BaseCommand.PRODUCER] = in_turn(answering(), not_yet, answering())
    broker.on[BaseCommand.SEND] = silent
    producer = client.producer(TOPIC, ProducerSettings("mine", access=pb.WaitForExclusive))
    sent = producer.send(MessageMetadata(), b"x")
    await until(lambda: broker.asked[BaseCommand.SEND])
    fail(broker.link, pb.PersistenceError)
    await until(lambda: producer.awaits_exclusive_access)
    fail(broker.link, error)
    broker.on[BaseCommand.SEND] = broker.store
    registered(broker.link, waiting[0])
    await asyncio.wait_for(sent, PATIENCE_S)
    assert producer.registrations == 2
    await producer.close()


async def test_a_producer_closed_while_waiting_for_access_is_closed_at_the_broker(broker: Broker, client):
    broker.on[BaseCommand.PRODUCER] = answering(producer_ready=False)
    producer = client.producer(TOPIC, ProducerSettings("mine", access=pb.WaitForExclusive))
    await until(lambda: producer.awaits_exclusive_access)
    await producer.close(0.01)
    assert len(broker.asked[BaseCommand.CLOSE_PRODUCER]) == 1
    with pytest.raises(ClusterError, match="closed"):
        await producer.opened()


async def test_a_fenced_producer_does_not_reconnect(broker: Broker, client):
    def fenced(link, frame):
        link.error(frame.command.producer.request_id, pb.ProducerFenced)

    broker.on[BaseCommand.PRODUCER] = in_turn(answering(topic_epoch=0), fenced)
    broker.on[BaseCommand.SEND] = silent
    producer = client.producer(TOPIC, ProducerSettings("mine", access=pb.Exclusive))
    sent = producer.send(MessageMetadata(), b"x")
    await producer.opened()
    broker.link.send(close_producer=pb.CommandCloseProducer(producer_id=0, request_id=ids.NO_REQUEST))
    with pytest.raises(ClusterError, match="ProducerFenced") as caught:
        await asyncio.wait_for(sent, PATIENCE_S)
    assert caught.value.failure is Failure.FATAL
    assert len(broker.asked[BaseCommand.PRODUCER]) == 2
    await producer.close()


# --- where to go ------------------------------------------------------------------------------------------------------


async def test_the_owner_named_in_a_close_command_is_used(broker: Broker, client):
    producer = client.producer(TOPIC)
    consumer = await client.consumer(TOPIC, Subscription("s"))
    await producer.opened()
    url = "pulsar://next:6650"
    assigned = {"request_id": ids.NO_REQUEST, "assignedBrokerServiceUrl": url}
    broker.link.send(close_producer=pb.CommandCloseProducer(producer_id=0, **assigned))
    await until(lambda: producer.registrations == 2)
    broker.links[0].send(close_consumer=pb.CommandCloseConsumer(consumer_id=1, **assigned))
    await until(lambda: consumer.registrations == 2)
    assert [link.address for link in broker.links] == ["broker", "next"]
    assert len(broker.asked[BaseCommand.LOOKUP]) == 2, "not looked up again"
    broker.link.drop()
    await until(lambda: producer.registrations == consumer.registrations == 3)
    assert len(broker.asked[BaseCommand.LOOKUP]) == 4, "the named broker is tried once"
    await producer.close()
    await consumer.close()


async def test_lookups_name_the_listener_and_assignments_are_not_used(broker: Broker):
    """A close command names the next owner by the address of the internal listener, which cannot be reached."""
    client = ClusterClient(parse_service_url(URL, tls=False), listener_name="outside")
    producer = client.producer(TOPIC)
    await producer.opened()
    assigned = {"request_id": ids.NO_REQUEST, "assignedBrokerServiceUrl": "pulsar://inside:6650"}
    broker.link.send(close_producer=pb.CommandCloseProducer(producer_id=0, **assigned))
    await until(lambda: producer.registrations == 2)
    assert [link.address for link in broker.links] == ["broker"]
    assert [asked.advertised_listener_name for asked in broker.asked[BaseCommand.LOOKUP]] == ["outside", "outside"]
    await producer.close()
    await client.close()


async def test_an_assigned_broker_behind_a_proxy_is_reached_through_it(broker: Broker, client):
    broker.on[BaseCommand.LOOKUP] = lambda link, frame: found(link, frame, "pulsar://inner:1", proxy_through_service_url=True)
    producer = client.producer(TOPIC)
    await producer.opened()
    command = pb.CommandCloseProducer(producer_id=0, request_id=ids.NO_REQUEST, assignedBrokerServiceUrl="pulsar://inner2:1")
    broker.link.send(close_producer=command)
    await until(lambda: producer.registrations == 2)
    assert {link.address for link in broker.links} == {"broker"}
    assert [asked.proxy_to_broker_url for asked in broker.asked[BaseCommand.CONNECT]] == ["", "inner:1", "inner2:1"]
    await producer.close()


@pytest.mark.parametrize("url", ["pulsar://gone:6650", "nonsense://", "pulsar://a,b"])
async def test_an_unreachable_assigned_broker_causes_a_lookup(broker: Broker, client, url):
    broker.unreachable = {"gone"}
    producer = client.producer(TOPIC)
    await producer.opened()
    command = pb.CommandCloseProducer(producer_id=0, request_id=ids.NO_REQUEST, assignedBrokerServiceUrl=url)
    broker.link.send(close_producer=command)
    await until(lambda: producer.registrations == 2)
    assert len(broker.asked[BaseCommand.LOOKUP]) == 2
    await producer.close()


async def test_a_migrated_topic_is_looked_up_in_its_new_cluster_from_then_on(broker: Broker, client):
    """The consumer continues in the new cluster, although the ids of the entries there are smaller."""

    async def deliver(ledger: int) -> tuple[int, int]:
        broker.link.message(1, ledger, 0, b"x")
        return (await asyncio.wait_for(consumer.receive(), PATIENCE_S)).id

    producer = client.producer(TOPIC)
    consumer = await client.consumer(TOPIC, Subscription("s"))
    await producer.opened()
    assert await deliver(50) == (50, 0)
    broker.on[BaseCommand.LOOKUP] = lambda link, frame: found(link, frame, "pulsar://green-2:6650")
    blue, url = broker.link, "pulsar://green-1:6650"
    broker.on[BaseCommand.SEND] = silent
    sent = producer.send(MessageMetadata(), b"x")
    await until(lambda: broker.asked[BaseCommand.SEND])
    broker.on[BaseCommand.SEND] = broker.store
    blue.send(topicMigrated=Migrated(resource_id=0, resource_type=Migrated.Producer, brokerServiceUrl=url))
    blue.send(close_producer=pb.CommandCloseProducer(producer_id=0, request_id=ids.NO_REQUEST))
    await asyncio.wait_for(sent, PATIENCE_S)
    blue.send(topicMigrated=Migrated(resource_id=1, resource_type=Migrated.Consumer, brokerServiceUrl=url))
    blue.send(close_consumer=pb.CommandCloseConsumer(consumer_id=1, request_id=ids.NO_REQUEST))
    await until(lambda: consumer.registrations == 2)
    assert [link.address for link in broker.links] == ["broker", "green-1", "green-2"]
    assert await deliver(2) == (2, 0)
    broker.link.drop()
    await until(lambda: producer.registrations == consumer.registrations == 3)
    assert [link.address for link in broker.links][3:] == ["green-2"]
    assert await deliver(3) == (3, 0)
    await producer.close()
    await consumer.close()


async def test_a_migration_to_an_unusable_address_is_ignored(broker: Broker, client):
    producer = client.producer(TOPIC)
    await producer.opened()
    broker.link.send(topicMigrated=Migrated(resource_id=0, resource_type=Migrated.Producer))
    broker.link.send(close_producer=pb.CommandCloseProducer(producer_id=0, request_id=ids.NO_REQUEST))
    await until(lambda: producer.registrations == 2)
    assert [link.address for link in broker.links] == ["broker"]
    await producer.close()


# --- no answer --------------------------------------------------------------------------------------------------------


async def test_a_registration_without_a_response_is_closed_before_the_next(broker: Broker):
    broker.on[BaseCommand.PRODUCER] = in_turn(silent, broker._producer)
    client = scripted_client(request=0.05)
    producer = client.producer(TOPIC)
    await producer.opened()
    assert len(broker.asked[BaseCommand.CLOSE_PRODUCER]) == 1
    assert [asked.epoch for asked in broker.asked[BaseCommand.PRODUCER]] == [0, 1]
    await producer.close()
    await client.close()


async def test_a_producer_closed_while_registering_is_closed_at_the_broker(broker: Broker, client):
    broker.on[BaseCommand.PRODUCER] = silent
    producer = client.producer(TOPIC)
    await until(lambda: broker.asked[BaseCommand.PRODUCER])
    await producer.close(0.01)
    assert len(broker.asked[BaseCommand.CLOSE_PRODUCER]) == 1


async def test_a_consumer_whose_opening_is_cancelled_is_closed(broker: Broker, client):
    broker.on[BaseCommand.SUBSCRIBE] = silent
    opening = asyncio.ensure_future(client.consumer(TOPIC, Subscription("s")))
    await until(lambda: broker.asked[BaseCommand.SUBSCRIBE])
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert len(broker.asked[BaseCommand.CLOSE_CONSUMER]) == 1
