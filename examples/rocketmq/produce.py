"""Send messages in every way: waited for, many at once, in order by key, as a batch, delayed, one-way.

python examples/rocketmq/produce.py localhost:9876 orders
"""

import argparse
import asyncio

from mqbridge.rocketmq.client.client import RocketmqClient
from mqbridge.rocketmq.client.nameservers import parse_name_servers
from mqbridge.rocketmq.client.outgoing import OutgoingMessage


async def main(name_servers: str, topic: str) -> None:
    """112 messages."""
    async with RocketmqClient(parse_name_servers(name_servers)) as client:
        producer = client.producer("example_producers", topic)

        stored = await producer.send(OutgoingMessage(b"hello", tags="greeting", keys=["order-1"], properties={"a": "b"}))
        print(f"stored in {stored.queue.broker}:{stored.queue.id} at offset {stored.offset}")

        # Those of one customer stay in one queue, in order; the queues are the ones that Java would choose.
        keyed = [OutgoingMessage(b"order %d" % n, tags="order", sharding_key=f"customer-{n % 3}") for n in range(100)]
        places = await asyncio.gather(*map(producer.post, keyed))
        print(f"{len(places)} orders of 3 customers in {len({place.queue for place in places})} queues")

        batch = await producer.send_all([OutgoingMessage(b"line %d" % n, tags="line") for n in range(9)])
        print(f"a batch of {len(batch.message_id.split(','))}")

        await producer.send(OutgoingMessage(b"later", tags="delayed", delay_level=1))
        await producer.send_oneway(OutgoingMessage(b"perhaps", tags="one-way"))
        await producer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("name_servers", "topic"):
        parser.add_argument(name)
    asyncio.run(main(**vars(parser.parse_args())))
