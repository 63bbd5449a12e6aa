"""A program that makes one attempt of a task to store a source partition in a Pulsar topic. Tests kill it.

python -m tests.spark.transfer_program SERVICE_URL ADMIN_URL TOPIC MESSAGES again|first
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.registry import load_adapters
from mqbridge.config.options.target import Target
from mqbridge.message import Batch, Message, Partition
from mqbridge.net.budget import Budget
from mqbridge.spark.cluster_ref import ClusterRef
from mqbridge.spark.transfer.spec import Replay, TargetsSpec
from mqbridge.spark.transfer.transfer import Transfer
from tests.spark.load import NUMBER, make_payload

SOURCE = Partition("there", "orders", "0", 0)
BATCH = 100
SIZE = 1024


def message(number: int) -> Message:
    """Return the message at position `number` of the source."""
    return Message(make_payload(0, number, SIZE), ((NUMBER, str(number)),), position=(number,))


async def batches(count: int) -> AsyncIterator[Batch]:
    """Yield the batches of the task's range, which has `count` messages."""
    for begin in range(0, count, BATCH):
        yield Batch.of([message(number) for number in range(begin, min(begin + BATCH, count))], SOURCE)


async def attempt(service_url: str, admin_url: str, topic: str, count: int, replay: Replay | None) -> None:
    """Store the whole range, and print how much this attempt stored and found stored."""
    adapter = load_adapters()["pulsar"]
    ref = ClusterRef("here", "pulsar", adapter.cluster_model(service_url=service_url, admin_url=admin_url))  # type: ignore[call-arg]
    cluster = ref.make_cluster()
    await cluster.connect()

    @asynccontextmanager
    async def find(_: Any) -> AsyncIterator[Cluster]:
        yield cluster

    spec = TargetsSpec("job", {"here": ref}, (Target(cluster="here", topic=topic),))
    budget = Budget(spec.delivery.sending_bytes)
    counts = await Transfer(spec, SOURCE, "job", find_cluster=find, replay=replay, budget=budget).run(batches(count))
    print(f"stored {counts.stored}, found {counts.skipped}")
    await cluster.close()


if __name__ == "__main__":
    asyncio.run(attempt(*sys.argv[1:4], int(sys.argv[4]), Replay() if sys.argv[5] == "again" else None))
