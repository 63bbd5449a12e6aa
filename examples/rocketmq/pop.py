"""Work through a topic by POP (5.x): no queues are divided, each message is hidden while it is worked on and acknowledged alone.

python examples/rocketmq/pop.py localhost:9876 orders my_group 10
"""

import argparse
import asyncio

from mqbridge.rocketmq.client.client import RocketmqClient
from mqbridge.rocketmq.client.nameservers import parse_name_servers
from mqbridge.rocketmq.client.pop import Popper
from mqbridge.rocketmq.client.subscription import everything


async def main(name_servers: str, topic: str, group: str, count: str) -> None:
    """Until so many are done. Each broker is asked by itself; the message `slow` takes longer than expected."""
    left = int(count)
    async with RocketmqClient(parse_name_servers(name_servers)) as client:
        popper = Popper(client, group, everything(topic), invisible_ms=10_000, poll_ms=1000)
        brokers = await popper.brokers()
        while left > 0:
            for popped in await asyncio.gather(*map(popper.pop, brokers)):
                done = []
                for record, receipt in popped.messages:
                    longer = record.body == b"slow"
                    done.append(await popper.change_invisible(receipt, 30_000) if longer else receipt)
                    print(record.body.decode())
                await popper.acknowledge(done)
                left -= len(done)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("name_servers", "topic", "group", "count"):
        parser.add_argument(name)
    asyncio.run(main(**vars(parser.parse_args())))
