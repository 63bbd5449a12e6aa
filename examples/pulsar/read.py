"""Read a topic without partitions from its beginning to its end, as a reader: nothing of it is kept at the broker.

python examples/pulsar/read.py pulsar://localhost:6650 persistent://public/default/log
"""

import asyncio
import sys

from mqbridge.pulsar.client.client import PulsarClient
from mqbridge.pulsar.client.pool import parse_service_url
from mqbridge.pulsar.client.subscription import reader
from mqbridge.pulsar.mapping.stored import decode
from mqbridge.pulsar.wire.ids import EARLIEST


async def main(url: str, topic: str) -> None:
    """Everything that is there now."""
    client = PulsarClient(parse_service_url(url, tls=False))
    consumer = await client.consumer(topic, reader(EARLIEST))
    total = 0
    while await consumer.has_more():
        total += len(decode(await consumer.receive()))
    print(f"{total} messages, the last one at {await consumer.last_message()}")
    await consumer.close()
    await client.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
