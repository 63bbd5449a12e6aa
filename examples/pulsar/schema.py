"""Register an Avro schema with a topic and see its version on the messages. Bodies are bytes, in whatever encoding is yours.

python examples/pulsar/schema.py pulsar://localhost:6650 persistent://public/default/typed
"""

import argparse
import asyncio

from mqbridge.pulsar.client.client import PulsarClient
from mqbridge.pulsar.client.pool import parse_service_url
from mqbridge.pulsar.client.publication import Publication
from mqbridge.pulsar.client.subscription import Subscription
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata
from mqbridge.pulsar.wire.schemas import avro, version_number

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}


async def main(url: str, topic: str) -> None:
    """One message."""
    client = PulsarClient(parse_service_url(url, tls=False))
    producer = client.producer(topic, Publication(schema=avro(ORDER)))
    await producer.send(MessageMetadata(), b"\x0e")  # the record {"id": 7}
    consumer = await client.consumer(topic, Subscription("typed", schema=avro(ORDER)))
    entry = await consumer.receive()
    registered = await client.schema(topic, entry.metadata.schema_version)
    if registered is not None:
        print(
            f"version {version_number(registered.version)} of {registered.schema.name}: {registered.schema.definition.decode()}"
        )
    await consumer.close()
    await producer.close()
    await client.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("url", "topic"):
        parser.add_argument(name)
    asyncio.run(main(**vars(parser.parse_args())))
