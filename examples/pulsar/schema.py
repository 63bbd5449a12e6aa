"""Register an Avro schema for a topic, and look up the schema of a received message.

The client registers and looks up schemas; the program encodes and decodes the payloads.

python examples/pulsar/schema.py pulsar://localhost:6650 typed
"""

import argparse
import asyncio

from mqbridge import PulsarClient
from mqbridge.pulsar.wire.schemas import avro, version_number

ORDER = avro({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})


async def main(url: str, topic: str) -> None:
    """Send and receive one order."""
    async with PulsarClient(url) as client:
        async with client.producer(topic, schema=ORDER) as producer:
            await producer.send(b"\x0e")  # the record {"id": 7}
        async with client.consumer(topic, "typed", schema=ORDER) as consumer:
            message = await consumer.receive()
            registered = await client.schema(topic, consumer.schema_version(message))
            if registered is not None:
                schema = registered.schema
                print(f"version {version_number(registered.version)} of {schema.name}: {schema.definition.decode()}")
            consumer.acknowledge(message)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("url", "topic"):
        parser.add_argument(name)
    asyncio.run(main(**vars(parser.parse_args())))
