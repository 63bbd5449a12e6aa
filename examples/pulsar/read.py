"""Read a topic, with partitions or without, from its beginning to its end, as readers: nothing of it is kept at the broker.

python examples/pulsar/read.py pulsar://localhost:6650 persistent://public/default/log
"""

import argparse
import asyncio

from mqbridge.pulsar.client.client import PulsarClient
from mqbridge.pulsar.client.pool import parse_service_url
from mqbridge.pulsar.client.subscription import reader
from mqbridge.pulsar.mapping.stored import decode
from mqbridge.pulsar.wire.ids import EARLIEST
from mqbridge.pulsar.wire.names import parse_topic


async def main(url: str, topic: str) -> None:
    """Everything that is there now."""
    client = PulsarClient(parse_service_url(url, tls=False))
    count = await client.partitions(topic)  # a reader is of one concrete topic: asking for another one would make it
    if count is None:
        print(f"there is no topic {topic}")
    elif count == 0:
        await read(client, topic)
    else:
        for number in range(count):
            await read(client, str(parse_topic(topic).partition(number)))
    await client.close()


async def read(client: PulsarClient, topic: str) -> None:
    """A partition, or a topic without."""
    consumer = await client.consumer(topic, reader(EARLIEST))
    total = 0
    while await consumer.has_more():
        total += len(decode(await consumer.receive()))
    print(f"{topic}: {total} messages, the last one at {await consumer.last_message()}")
    await consumer.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("url", "topic"):
        parser.add_argument(name)
    asyncio.run(main(**vars(parser.parse_args())))
