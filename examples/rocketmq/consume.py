"""Consume as a member of a group. Members in Java and Python divide the queues and share the offsets.

A message whose processing fails is sent back to the broker. It is delivered again later, and after too many failures the broker
moves it to the group's dead letters.

python examples/rocketmq/consume.py rocketmq://localhost:9876 orders my_group 100
"""

import argparse
import asyncio

from mqbridge import RocketMQClient
from mqbridge.library.received import ReceivedMessage


def handle(message: ReceivedMessage) -> None:
    """Print a message. A payload that begins with `bad` raises ValueError on its first delivery."""
    payload = message.payload or b""
    if payload.startswith(b"bad") and message.delivery_count == 0:
        raise ValueError(payload)
    print(f"{message.partition} {payload.decode()}", flush=True)


async def main(url: str, topic: str, group: str, count: str) -> None:
    """Process `count` messages."""
    remaining = int(count)
    async with RocketMQClient(url) as client, client.consumer(topic, group) as consumer:
        print("joined", flush=True)
        async for message in consumer:
            try:
                handle(message)
            except ValueError:
                consumer.negative_acknowledge(message, delay_s=1)
                continue
            consumer.acknowledge(message)
            remaining -= 1
            if not remaining:
                break


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("url", "topic", "group", "count"):
        parser.add_argument(name)
    asyncio.run(main(**vars(parser.parse_args())))
