"""Work through a topic with others, on a shared subscription: acknowledge what is done, have the rest delivered again.

python examples/pulsar/consume.py pulsar://localhost:6650 persistent://public/default/orders 10
"""

import argparse
import asyncio

from mqbridge.pulsar.client.client import PulsarClient
from mqbridge.pulsar.client.pool import parse_service_url
from mqbridge.pulsar.client.subscription import Subscription, Types
from mqbridge.pulsar.client.topic_consumer import open_topic_consumer
from mqbridge.pulsar.mapping.stored import decode
from mqbridge.pulsar.wire.entry import Entry

MOST_DELIVERIES = 3


def handle(entry: Entry) -> bool:
    """Print the messages of an entry, on its second delivery; the first time is taken for a failure."""
    if entry.redelivery_count == 0:
        return False
    for message in decode(entry):
        print(f"{message.key}: {message.payload!r}")
    return True


async def main(url: str, topic: str, count: str) -> None:
    """Until so many messages are done."""
    client = PulsarClient(parse_service_url(url, tls=False))
    consumer = await open_topic_consumer(client, topic, Subscription("workers", Types.Shared))
    left = int(count)
    while left > 0:
        owner, entry = await consumer.receive()
        if handle(entry):
            owner.acknowledge(entry.place)
            left -= entry.count
        elif entry.redelivery_count >= MOST_DELIVERIES:
            print(f"given up: {entry.place}")
            owner.acknowledge(entry.place)
            left -= entry.count
        else:
            owner.negative_acknowledge(entry.place, delay_s=0.2)
    for each in consumer.consumers.values():
        await each.confirm_acks()
    await consumer.close()
    await client.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("url", "topic", "count"):
        parser.add_argument(name)
    asyncio.run(main(**vars(parser.parse_args())))
