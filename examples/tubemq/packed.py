"""Send several messages as one, in InLong's TDMsg format, and take them apart again.

python examples/tubemq/packed.py 127.0.0.1:8715 orders my_group
"""

import argparse
import asyncio
import time

from mqbridge.tubemq.client.client import TubeMQClient
from mqbridge.tubemq.client.messages import decode_all
from mqbridge.tubemq.wire.tdmsg import Item, is_packed, pack, unpack


async def main(masters: str, topic: str, group: str) -> None:
    """Send a thousand lines as one message and read them."""
    async with TubeMQClient(masters, heartbeat_s=1.0) as client:
        sender = await client.sender(topic)
        items = [Item(b"line %d" % n, b"m=0&iname=example") for n in range(1000)]
        await sender.send(next(iter(sender.route.partitions)), pack(items, time.time_ns() // 1_000_000))

        puller = await client.puller(group, [topic])
        delivery = await puller.pull(60.0)
        if delivery is None:
            raise SystemExit("nothing came for a minute")
        for message in decode_all(delivery.pack.messages):
            if is_packed(message.body):
                found = unpack(message.body)
                print(f"{len(found.items)} messages in {len(message.body)} bytes, the last: {found.items[-1].data.decode()}")
        delivery.confirm()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("masters", help="host:port, several separated by commas")
    parser.add_argument("topic")
    parser.add_argument("group")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.masters, arguments.topic, arguments.group))
