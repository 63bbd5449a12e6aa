"""Consume with POP (RocketMQ 5): members share all queues, and each message is acknowledged individually.

A received message is invisible to other members for a time. It is delivered again if it is not acknowledged in that time.

python examples/rocketmq/pop.py rocketmq://localhost:9876 orders my_group 10
"""

import argparse
import asyncio

from mqbridge import RocketMQClient


async def main(url: str, topic: str, group: str, count: str) -> None:
    """Process `count` messages. The payload `slow` takes longer, so its invisible time is extended."""
    async with RocketMQClient(url) as client, client.pop_consumer(topic, group, invisible_s=10, poll_s=1) as consumer:
        for _ in range(int(count)):
            message = await consumer.receive()
            if message.payload == b"slow":
                await consumer.extend(message, invisible_s=30)
            print((message.payload or b"").decode())
            consumer.acknowledge(message)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("url", "topic", "group", "count"):
        parser.add_argument(name)
    asyncio.run(main(**vars(parser.parse_args())))
