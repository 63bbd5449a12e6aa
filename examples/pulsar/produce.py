"""Send messages to all partitions of a topic, batched, and print where they were stored.

python examples/pulsar/produce.py pulsar://localhost:6650 persistent://public/default/orders
"""

import argparse
import asyncio

from mqbridge.pulsar.client.batching import Batching
from mqbridge.pulsar.client.client import PulsarClient
from mqbridge.pulsar.client.pool import parse_service_url
from mqbridge.pulsar.client.publication import Publication
from mqbridge.pulsar.client.topic_producer import open_topic_producer
from mqbridge.pulsar.wire.compression import NAMES


async def main(url: str, topic: str) -> None:
    """Ten orders of three customers; a customer's orders stay in one partition, in order."""
    client = PulsarClient(parse_service_url(url, tls=False))
    publication = Publication(codec=NAMES["zstd"])
    producer = await open_topic_producer(client, topic, publication, batching=Batching(max_delay_s=0.005))
    sent = [
        producer.send(b"order %d" % number, key=f"customer-{number % 3}", properties=(("source", "example"),))
        for number in range(10)
    ]
    for placed in await asyncio.gather(*sent):
        print(f"stored at {placed.ledger}:{placed.entry}, message {placed.batch_index} of its batch")
    await producer.close()
    await client.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("url", "topic"):
        parser.add_argument(name)
    asyncio.run(main(**vars(parser.parse_args())))
