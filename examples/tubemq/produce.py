"""Send messages to TubeMQ: each awaited, all in flight together, and spread over whatever Brokers are well.

python examples/tubemq/produce.py 127.0.0.1:8715 orders
"""

import argparse
import asyncio

from mqbridge.tubemq.client.client import TubeMQClient
from mqbridge.tubemq.client.messages import TubeMessage, encode


async def main(masters: str, topic: str) -> None:
    """Send in three ways."""
    async with TubeMQClient(masters) as client:
        sender = await client.sender(topic)
        partitions = list(sender.route.partitions)

        data, flag = encode(TubeMessage(b"first", {"source": "example"}, msg_type="greeting"))
        result = await sender.send(partitions[0], data, flag, msg_type="greeting")
        print(f"stored as message {result.message_id} at offset {result.offset}")

        # In order within each partition, however many are under way.
        sent = [sender.send(partitions[n % len(partitions)], b"message %d" % n) for n in range(100)]
        await asyncio.gather(*sent)

        spread = await client.spread(topic)
        await asyncio.gather(*(spread.send(b"anywhere %d" % n) for n in range(100)))
        print(f"{sender.counters.stored} in order, {spread.sender.counters.stored} anywhere")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("masters", help="host:port, several separated by commas")
    parser.add_argument("topic")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.masters, arguments.topic))
