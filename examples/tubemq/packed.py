"""Send a thousand lines as one message in InLong's TDMsg format, then receive and unpack it.

python examples/tubemq/packed.py tubemq://localhost:8715 orders my_group
"""

import argparse
import asyncio
import time

from mqbridge import TubeMQClient
from mqbridge.tubemq.wire.tdmsg import Item, is_packed, pack, unpack


async def main(url: str, topic: str, group: str) -> None:
    """Send the packed message, and receive it."""
    async with TubeMQClient(url) as client:
        async with client.producer(topic) as producer:
            lines = [Item(b"line %d" % number, b"m=0&iname=example") for number in range(1000)]
            await producer.send(pack(lines, time.time_ns() // 1_000_000))

        async with client.consumer(topic, group) as consumer:
            async for message in consumer:
                consumer.acknowledge(message)
                body = message.payload or b""
                if is_packed(body):
                    break
            items = unpack(body).items
            print(f"{len(items)} lines in {len(body)} bytes, the last: {items[-1].data.decode()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="tubemq://HOST:PORT, or several Masters: tubemq://HOST:PORT,HOST:PORT")
    parser.add_argument("topic")
    parser.add_argument("group")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.url, arguments.topic, arguments.group))
