"""Send a message that is larger than the broker takes, in chunks, and receive it whole.

python examples/pulsar/large_message.py pulsar://localhost:6650 persistent://public/default/files
"""

import argparse
import asyncio
import os

from mqbridge.pulsar.client.client import PulsarClient
from mqbridge.pulsar.client.pool import parse_service_url
from mqbridge.pulsar.client.publication import Publication
from mqbridge.pulsar.client.subscription import Subscription
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata


async def main(url: str, topic: str) -> None:
    """16 MiB, where the usual limit is 5."""
    client = PulsarClient(parse_service_url(url, tls=False))
    consumer = await client.consumer(topic, Subscription("files"))
    producer = client.producer(topic, Publication(chunking=True))
    content = os.urandom(16 << 20)
    receipt = await producer.send(MessageMetadata(partition_key="file"), content)
    print(f"stored from {receipt.first_chunk} to {(receipt.ledger, receipt.entry)}")
    entry = await consumer.receive()
    print(f"received {len(entry.payload)} bytes, {'the same' if entry.payload == content else 'others'}")
    consumer.acknowledge_up_to(entry.place)
    await consumer.close()
    await producer.close()
    await client.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("url", "topic"):
        parser.add_argument(name)
    asyncio.run(main(**vars(parser.parse_args())))
