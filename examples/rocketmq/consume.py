"""Consume as a member of a group, beside other members in Java or Python: they divide the queues and share the offsets.

What cannot be handled is sent back: it comes again later through the group's retry topic, at last to its dead letter topic.

python examples/rocketmq/consume.py localhost:9876 orders my_group 100
"""

import argparse
import asyncio

from mqbridge.errors import LaneRevoked
from mqbridge.rocketmq.client.client import RocketmqClient
from mqbridge.rocketmq.client.consumer import GroupConsumer, join
from mqbridge.rocketmq.client.nameservers import parse_name_servers
from mqbridge.rocketmq.client.sendback import SendBack
from mqbridge.rocketmq.client.spec import GroupSpec, StartOffset
from mqbridge.rocketmq.client.stream import QueueStream
from mqbridge.rocketmq.client.subscription import everything
from mqbridge.rocketmq.wire.record import Record


class Worker:
    """Reads all queues of a consumer until `count` messages are done."""

    def __init__(self, consumer: GroupConsumer, back: SendBack, count: int) -> None:
        self.consumer, self.back, self.left = consumer, back, count

    async def run(self) -> None:
        """A task for each queue that becomes ours."""
        async with asyncio.TaskGroup() as tasks:
            async for stream in self.consumer.streams():
                tasks.create_task(self.read(stream))

    async def read(self, stream: QueueStream) -> None:
        """One queue until it is taken away. What was not committed by then comes to its next owner."""
        try:
            while True:
                pulled = await stream.receive()
                for record in pulled.records:
                    if self.handle(record):
                        self.left -= 1
                    else:
                        await self.back.later(stream.queue, record, level=1)
                stream.commit(pulled.next)
                if self.left <= 0:
                    await self.consumer.close()  # commits, and gives the queues to the others
        except LaneRevoked:
            pass

    def handle(self, record: Record) -> bool:
        """Print it. The first time, what begins with `bad` is taken for a failure."""
        if record.body.startswith(b"bad") and record.reconsume_times == 0:
            return False
        print(f"{record.queue_id} {record.body.decode()}", flush=True)
        return True


async def main(name_servers: str, topic: str, group: str, count: str) -> None:
    """Until so many are done."""
    async with RocketmqClient(parse_name_servers(name_servers)) as client:
        consumer = await join(client, GroupSpec(group, (everything(topic),), start=StartOffset.EARLIEST))
        print("joined", flush=True)
        await Worker(consumer, SendBack(client, group), int(count)).run()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("name_servers", "topic", "group", "count"):
        parser.add_argument(name)
    asyncio.run(main(**vars(parser.parse_args())))
