"""A listener over an embedded log, in a process of its own: `python -m tests.bench.listener_process '{...}'`.

Prints READY once it serves, and runs until it gets SIGTERM. `fill` messages are stored in `topic` before, without units.
"""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import sys
from pathlib import Path
from typing import Any

import uvloop

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.cli.process.event_loop import GC_THRESHOLDS
from mqbridge.groups.store import GroupStore
from mqbridge.listener.listener import Listener, ListenerSettings
from mqbridge.listener.server import load_servers
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store.settings import LogSettings
from mqbridge.message import Batch, Message, Share
from tests.kit.process import HOST

FILL_BATCH = 500
CLOSE_S = 10.0


async def fill(cluster: LogCluster, topic: str, messages: int, size: int, properties: int) -> None:
    """Store messages in a new topic of one partition, without units."""
    await cluster.create(topic, 1)
    outbound = await cluster.outbound(OutboundSpec(topic))
    pairs = tuple((f"property-{index}", f"value-{index}") for index in range(properties))
    for _ in range(messages // FILL_BATCH):
        receipt = await outbound.send(0, Share(Batch.of([Message(bytes(size), pairs) for _ in range(FILL_BATCH)])))
        assert not receipt.failures
    await outbound.close()


async def serve(given: dict[str, Any]) -> None:
    """Serve until SIGTERM."""
    folder = Path(given["folder"])
    cluster = LogCluster("store", LogSettings(path=str(folder / "log.db"), max_message_bytes="8MiB"))
    await cluster.connect()
    for topic in given.get("fill", ()):
        await fill(cluster, **topic)
    store = GroupStore(folder / "groups.db")
    served = load_servers()[given.get("system", "pulsar")]
    settings = ListenerSettings(
        name="bench",
        system=served.system,
        host=HOST,
        port=given["port"],
        web=None,
        advertise=None,
        cluster="store",
        topics=served.default_topics,
        owns_groups=True,
        group="{group}",
        parking="mqbridge-bench",
        create_partitions=1,
        manage=True,
        deduplicate=False,
        dead_letter_cluster="store",
        dead_letter_topic="mqbridge-dead-bench",
        connections=given.get("connections", 1000),
        in_flight_bytes=64 << 20,
        unacknowledged_bytes=given.get("unacknowledged_bytes", 256 << 20),
        unacknowledged_span=100_000,
    )
    listener = Listener(settings, served, cluster, cluster, store, "bench")
    listener.bind()
    await listener.start()
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    print("READY", flush=True)
    await stopped.wait()
    await listener.close(loop.time() + CLOSE_S)
    await store.close()
    await cluster.close()


if __name__ == "__main__":
    gc.set_threshold(*GC_THRESHOLDS)  # as in the process of a gateway
    uvloop.run(serve(json.loads(sys.argv[1])))
