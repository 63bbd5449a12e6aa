"""Send a message larger than the broker's limit in chunks, and receive it as one message.

python examples/pulsar/large_message.py pulsar://localhost:6650 files
"""

import argparse
import asyncio
import os

from mqbridge import PulsarClient


async def main(url: str, topic: str) -> None:
    """Send and receive 16 MiB; the default limit of a broker is 5 MiB."""
    content = os.urandom(16 << 20)
    async with PulsarClient(url) as client:
        async with client.producer(topic, chunking=True) as producer:
            receipt = await producer.send(content, key="file")
            print(f"stored at {receipt.message_id}")
        async with client.consumer(topic, "files") as consumer:
            message = await consumer.receive()
            same = message.payload == content
            print(f"received {len(message.payload or b'')} bytes, {'unchanged' if same else 'changed'}")
            consumer.acknowledge(message)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("url", "topic"):
        parser.add_argument(name)
    asyncio.run(main(**vars(parser.parse_args())))
