"""Consume as a member of a group, beside other members in Java or Python: they divide the queues and share the offsets.

A message that cannot be handled is sent back: it comes again later, and at last goes to the group's dead letters.

python examples/rocketmq/consume.py rocketmq://localhost:9876 orders my_group 100
"""

import argparse
import asyncio

from mqbridge import RocketMQClient
from mqbridge.library.received import ReceivedMessage


def handle(message: ReceivedMessage) -> None:
    """Print a message. One that begins with `bad` fails the first time."""
    payload = message.payload or b""
    if payload.startswith(b"bad") and message.delivery_count == 0:
        raise ValueError(payload)
    print(f"{message.partition} {payload.decode()}", flush=True)


async def main(url: str, topic: str, group: str, count: str) -> None:
    """Handle `count` messages."""
    left = int(count)
    async with RocketMQClient(url) as client, client.consumer(topic, group) as consumer:
        print("joined", flush=True)
        async for message in consumer:
            try:
                handle(message)
            except ValueError:
                consumer.negative_acknowledge(message, delay_s=1)
                continue
            consumer.acknowledge(message)
            left -= 1
            if not left:
                break


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("url", "topic", "group", "count"):
        parser.add_argument(name)
    asyncio.run(main(**vars(parser.parse_args())))
