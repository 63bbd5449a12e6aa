"""Send a message, then receive it as a member of a group.

python examples/rocketmq/hello.py rocketmq://localhost:9876 orders my_group
"""

import argparse
import asyncio

from mqbridge import RocketMQClient


async def main(url: str, topic: str, group: str) -> None:
    """Send and receive one message."""
    async with RocketMQClient(url) as client:
        async with client.producer(topic) as producer:
            receipt = await producer.send(b"hello", key="customer-7", properties={"a": "b"})
            print(f"stored in partition {receipt.partition}")
        async with client.consumer(topic, group) as consumer:
            message = await consumer.receive()
            print(f"received {message.payload!r} with key {message.key!r}")
            consumer.acknowledge(message)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("url", "topic", "group"):
        parser.add_argument(name)
    asyncio.run(main(**vars(parser.parse_args())))
