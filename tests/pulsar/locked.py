"""Routes at a Pulsar with access control: their configuration, a command that checks it, and messages that show losses."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import yaml

from mqbridge.adapter.outbound import Outbound, OutboundSpec
from mqbridge.message import Batch, Share
from mqbridge.net.tasks import cancel, spawn
from tests.e2e.support import opened, read
from tests.kit.oracle import Oracle, message
from tests.kit.pulsar import KEEPER
from tests.kit.pulsar_locked import ADMIN, LockedPulsar
from tests.patience import SERVER_PATIENCE_S

SIZE = 100
PARTITIONS = 2
PAUSE_S = 0.005
Settings = Mapping[str, Any]


class Mirror:
    """A route from one new topic of the server to another one; both clusters of the configuration are the same server."""

    def __init__(self, server: LockedPulsar) -> None:
        self._server = server
        name = uuid4().hex[:8]
        self.source, self.target = (server.create_topic(f"{kind}-{name}", PARTITIONS) for kind in ("source", "target"))
        server.keep(self.target)
        self.group = f"app-{name}"
        self.sent = 0
        """Messages of each partition."""

    def config(self, source: Settings, target: Settings, **delivery: Any) -> dict[str, Any]:
        """For `mqbridge run`, with these clusters."""
        return {
            "clusters": {"source": {"system": "pulsar", **source}, "target": {"system": "pulsar", **target}},
            "routes": [
                {
                    "name": "mirror",
                    "from": {"cluster": "source", "topic": self.source, "group": self.group},
                    "to": {"cluster": "target", "topic": self.target, "create": False},
                    "delivery": delivery,
                }
            ],
        }

    async def send(self, count: int) -> None:
        """So many messages more to each partition."""
        async with self._opened() as outbound:
            await self._send(outbound, count)

    @contextlib.asynccontextmanager
    async def sending(self) -> AsyncIterator[None]:
        """Messages all the while."""
        over = False
        async with self._opened() as outbound:

            async def send() -> None:
                while not over:
                    await self._send(outbound, 1)
                    await asyncio.sleep(PAUSE_S)

            task = spawn(send(), "test sending")
            try:
                yield
                over = True
                await task
            finally:
                await cancel(task)

    @contextlib.asynccontextmanager
    async def _opened(self) -> AsyncIterator[Outbound]:
        async with opened("pulsar", self._server.config_of(ADMIN)) as cluster:
            outbound = await cluster.outbound(OutboundSpec(self.source, stamp_origin=False))
            yield outbound
            await outbound.close()

    async def _send(self, outbound: Outbound, count: int) -> None:
        batches = [[message(p, n, SIZE) for n in range(self.sent, self.sent + count)] for p in range(PARTITIONS)]
        receipts = await asyncio.gather(*(outbound.send(p, Share(Batch.of(batch))) for p, batch in enumerate(batches)))
        assert not any(receipt.failures for receipt in receipts)
        self.sent += count

    async def judge(self) -> Oracle:
        """Read the whole target: nothing is lost, damaged, or out of order."""
        oracle = Oracle([self.sent] * PARTITIONS, SIZE)
        async for partition, messages in read("pulsar", self._server.config_of(ADMIN), self.target, KEEPER):
            oracle.see(partition, messages)
        oracle.assert_complete()
        return oracle


async def mqbridge(*arguments: str) -> tuple[int, str]:
    """Run a command; return its exit status and its output."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "mqbridge", *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), SERVER_PATIENCE_S)
    except TimeoutError:
        process.kill()
        raise
    assert process.returncode is not None
    return process.returncode, out.decode()


def write_config(config: Mapping[str, Any], folder: Path) -> str:
    """Write a configuration into a file and return its path."""
    path = folder / f"{uuid4().hex[:8]}.yaml"
    path.write_text(yaml.safe_dump(dict(config)))
    return str(path)
