"""Receive only messages of certain types; the Brokers filter them.

python examples/tubemq/filtered.py tubemq://localhost:8715 orders my_group --types paid,refunded --count 10
"""

import argparse
import asyncio

from mqbridge import TubeMQClient


async def main(url: str, topic: str, group: str, types: list[str], count: int) -> None:
    """Print `count` messages that have one of the types."""
    # 303: also read messages that are only in the Broker's memory. By default filtered consumers read files, up to 20 s late.
    async with (
        TubeMQClient(url) as client,
        client.consumer(topic, group, msg_types=types, query_priority=303) as consumer,
    ):
        for _ in range(count):
            message = await consumer.receive()
            print(message.msg_type, message.payload)
            consumer.acknowledge(message)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="tubemq://HOST:PORT, or several Masters: tubemq://HOST:PORT,HOST:PORT")
    parser.add_argument("topic")
    parser.add_argument("group")
    parser.add_argument("--types", required=True, help="message types, separated by commas")
    parser.add_argument("--count", type=int, default=10)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.url, arguments.topic, arguments.group, arguments.types.split(","), arguments.count))
