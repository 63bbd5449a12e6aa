"""Whether the cluster lets us produce and consume, found out without leaving a trace there."""

from mqbridge.errors import ServerRefused
from mqbridge.pulsar.client.lookup import Lookup
from mqbridge.pulsar.client.publication import Publication
from mqbridge.pulsar.client.rights import PRODUCE, Denied, consuming, on_topic
from mqbridge.pulsar.wire import commands
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import BaseCommand


async def probe_producing(lookup: Lookup, producer_id: int, topic: str, timeout: float) -> None:
    """Open a producer of an existing topic, and close it. Raises Denied, and ClusterError where the topic cannot be reached.

    What else keeps the broker from letting it in may be otherwise when somebody really produces.
    """
    connection = (await lookup.owner(topic)).connection
    command = Publication().command(topic, producer_id, None, 0, None)
    try:
        with on_topic("produce to", topic, connection.principal, PRODUCE):
            await connection.request(
                lambda request_id: commands.producer(request_id, command),
                BaseCommand.PRODUCER_SUCCESS,
                f"PRODUCER for {topic}",
                timeout,
            )
    except Denied:
        raise
    except ServerRefused:
        return
    await connection.request(
        lambda request_id: commands.close_producer(request_id, producer_id),
        BaseCommand.SUCCESS,
        f"the close of the producer of {topic}",
        timeout,
    )


async def probe_consuming(lookup: Lookup, consumer_id: int, topic: str, subscription: str, timeout: float) -> None:
    """Ask for what no broker grants: to read the compacted topic from a shared subscription. It looks at rights first.

    So neither a subscription nor a consumer comes into being, even for a moment, and none that is there is disturbed. Raises
    Denied, and ClusterError where the topic cannot be reached.
    """
    connection = (await lookup.owner(topic)).connection
    command = pb.CommandSubscribe(
        topic=topic,
        subscription=subscription,
        subType=pb.CommandSubscribe.Shared,
        read_compacted=True,
        consumer_id=consumer_id,
        durable=False,
        force_topic_creation=False,
    )
    try:
        with consuming(topic, subscription, connection.principal):
            await connection.request(
                lambda request_id: commands.subscribe(request_id, command),
                BaseCommand.SUCCESS,
                f"SUBSCRIBE {subscription} to {topic}",
                timeout,
            )
    except Denied:
        raise
    except ServerRefused:
        return
    await connection.request(
        lambda request_id: commands.close_consumer(request_id, consumer_id),
        BaseCommand.SUCCESS,
        f"the close of the consumer of {topic}",
        timeout,
    )
