"""Work through a topic by POP (5.x): no queues are divided, each message is hidden while it is worked on and acknowledged alone.

python examples/rocketmq/pop.py rocketmq://localhost:9876 orders my_group 10
"""

import argparse
import asyncio

from mqbridge import RocketMQClient


async def main(url: str, topic: str, group: str, count: str) -> None:
    """Handle `count` messages; the one with the payload `slow` takes longer than expected."""
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
