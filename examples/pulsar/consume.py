"""Consume with a shared subscription, and request redelivery of messages whose processing failed.

python examples/pulsar/consume.py pulsar://localhost:6650 orders 10
"""

import argparse
import asyncio

from mqbridge import PulsarClient
from mqbridge.library.received import ReceivedMessage

MAX_REDELIVERIES = 3


async def main(url: str, topic: str, count: str) -> None:
    """Process `count` messages. A message that fails again after MAX_REDELIVERIES is acknowledged anyway."""
    async with PulsarClient(url) as client, client.consumer(topic, "workers", mode="shared") as consumer:
        done = 0
        while done < int(count):
            message = await consumer.receive()
            if handle(message) or message.delivery_count >= MAX_REDELIVERIES:
                consumer.acknowledge(message)
                done += 1
            else:
                consumer.negative_acknowledge(message, delay_s=0.2)


def handle(message: ReceivedMessage) -> bool:
    """Process a message and return True on success. This example fails on the first delivery of every message."""
    if message.delivery_count == 0:
        return False
    print(f"{message.key}: {message.payload!r}")
    return True


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("url", "topic", "count"):
        parser.add_argument(name)
    asyncio.run(main(**vars(parser.parse_args())))
