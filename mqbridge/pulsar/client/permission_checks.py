"""Checks of this client's permissions to produce and to consume. They leave nothing behind in the cluster."""

from mqbridge.errors import ServerRefused, TopicTerminated
from mqbridge.pulsar.client.connection.authorization import PRODUCE, AccessDenied, explain_subscribe_denial, explain_topic_denial
from mqbridge.pulsar.client.connection.lookup import Lookup
from mqbridge.pulsar.client.producer.producer_settings import ProducerSettings
from mqbridge.pulsar.wire import client_commands
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand


async def check_produce_permission(lookup: Lookup, producer_id: int, topic: str, timeout: float) -> None:
    """Check the permission by opening and closing a producer of an existing topic.

    Raises AccessDenied without the permission, TopicTerminated for a terminated topic, ClusterError if the topic's broker is
    unreachable. Any other refusal is ignored, because it may be temporary. `timeout` is the deadline of each response in seconds.
    """
    connection = (await lookup.owner(topic)).connection
    command = ProducerSettings().command(topic, producer_id, name=None, epoch=0, topic_epoch=None)
    try:
        with explain_topic_denial("produce to", topic, connection.principal, PRODUCE):
            await connection.request(
                lambda request_id: client_commands.producer(request_id, command),
                BaseCommand.PRODUCER_SUCCESS,
                f"PRODUCER for {topic}",
                timeout,
            )
    except (AccessDenied, TopicTerminated):
        raise
    except ServerRefused:
        return
    await connection.request(
        lambda request_id: client_commands.close_producer(request_id, producer_id),
        BaseCommand.SUCCESS,
        f"closing the producer of {topic}",
        timeout,
    )


async def check_consume_permission(lookup: Lookup, consumer_id: int, topic: str, subscription: str, timeout: float) -> None:
    """Check the permission with a SUBSCRIBE that brokers always refuse: a shared one that reads the compacted topic.

    Brokers check the permission before they refuse this combination. So no subscription or consumer is created, even for a
    moment, and existing ones are not disturbed. Raises AccessDenied without the permission; ClusterError if the topic's broker is
    unreachable. Any other refusal is ignored: it is the expected one, or may be temporary.

    `timeout` is the deadline of each response in seconds.
    """
    connection = (await lookup.owner(topic)).connection
    command = pb.CommandSubscribe(
        topic=topic,
        subscription=subscription,
        subType=pb.CommandSubscribe.Shared,
        read_compacted=True,
        consumer_id=consumer_id,
        durable=False,  # if a broker accepts the combination nevertheless, no subscription remains
        force_topic_creation=False,
    )
    try:
        with explain_subscribe_denial(topic, subscription, connection.principal):
            await connection.request(
                lambda request_id: client_commands.subscribe(request_id, command),
                BaseCommand.SUCCESS,
                f"SUBSCRIBE {subscription} to {topic}",
                timeout,
            )
    except AccessDenied:
        raise
    except ServerRefused:
        return
    await connection.request(  # the broker has accepted the combination
        lambda request_id: client_commands.close_consumer(request_id, consumer_id),
        BaseCommand.SUCCESS,
        f"closing the consumer of {topic}",
        timeout,
    )
