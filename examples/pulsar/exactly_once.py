"""Send numbered messages so that a restart repeats none: the broker deduplicates by producer name and sequence id.

The topic's namespace needs deduplication (`pulsar-admin namespaces set-deduplication -e tenant/namespace`).

python examples/pulsar/exactly_once.py pulsar://localhost:6650 persistent://tenant/namespace/numbers
"""

import argparse
import asyncio

from mqbridge.pulsar.client.client import PulsarClient
from mqbridge.pulsar.client.pool import parse_service_url
from mqbridge.pulsar.client.publication import Publication
from mqbridge.pulsar.wire.pb import PulsarApi_pb2 as pb
from mqbridge.pulsar.wire.pb.PulsarApi_pb2 import MessageMetadata

NUMBERS = range(100)


async def main(url: str, topic: str) -> None:
    """Go on where the last run ended; a second instance waits until this one is gone."""
    client = PulsarClient(parse_service_url(url, tls=False))
    producer = client.producer(topic, Publication("numbers", access=pb.WaitForExclusive))
    await producer.opened()
    todo = NUMBERS[producer.last_sequence_id + 1 :]
    await asyncio.gather(*[producer.send(MessageMetadata(), b"%d" % number, sequence_id=number) for number in todo])
    print(f"{len(todo)} sent, {producer.duplicates} of them stored before")
    await producer.close()
    await client.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("url", "topic"):
        parser.add_argument(name)
    asyncio.run(main(**vars(parser.parse_args())))
