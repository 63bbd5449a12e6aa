"""Read a topic as a member of a group, one pack after the other, until nothing came for a while.

python examples/tubemq/pull.py 127.0.0.1:8715 orders my_group
"""

import argparse
import asyncio

from mqbridge.tubemq.client.client import TubeMQClient
from mqbridge.tubemq.client.messages import decode_all


async def main(masters: str, topics: list[str], group: str, patience_s: float) -> None:
    """Print what comes."""
    # Partitions are handed out in answers to heartbeats: a person who waits wants them often.
    async with TubeMQClient(masters, heartbeat_s=1.0) as client:
        puller = await client.puller(group, topics)
        count = 0
        while (delivery := await puller.pull(patience_s)) is not None:
            for message in decode_all(delivery.pack.messages):
                count += 1
                print(delivery.partition.ref.name, message.msg_type or "-", message.body.decode(errors="replace"))
            delivery.confirm()
        print(f"{count} messages")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("masters", help="host:port, several separated by commas")
    parser.add_argument("topics", help="one or several, separated by commas")
    parser.add_argument("group")
    parser.add_argument("--patience", type=float, default=20.0, help="seconds without a message before it ends")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.masters, arguments.topics.split(","), arguments.group, arguments.patience))
