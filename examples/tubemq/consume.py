"""Receive messages of one or more topics as a member of a group; stop when none has arrived for a while.

python examples/tubemq/consume.py tubemq://localhost:8715 orders my_group
"""

import argparse
import asyncio

from mqbridge import TubeMQClient


async def main(url: str, topics: list[str], group: str, patience_s: float) -> None:
    """Print each message until none arrives for `patience_s` seconds."""
    count = 0
    async with TubeMQClient(url) as client, client.consumer(topics, group) as consumer:
        while True:
            try:
                message = await consumer.receive(timeout=patience_s)
            except TimeoutError:
                break
            count += 1
            print(message.partition, message.msg_type or "-", (message.payload or b"").decode(errors="replace"))
            consumer.acknowledge(message)
    print(f"{count} messages")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="tubemq://HOST:PORT, or several Masters: tubemq://HOST:PORT,HOST:PORT")
    parser.add_argument("topics", help="one or several, separated by commas")
    parser.add_argument("group")
    parser.add_argument("--patience", type=float, default=20.0, help="stop after this many seconds without a message")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.url, arguments.topics.split(","), arguments.group, arguments.patience))
