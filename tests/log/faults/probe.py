"""Reads a log in a fresh process while another one works on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from mqbridge.errors import MqbridgeError
from mqbridge.log.adapter.cluster import LogCluster
from mqbridge.log.store.settings import LogSettings
from tests.log.faults import units
from tests.log.faults.children import Died, Hang, call
from tests.log.faults.history import PartitionId
from tests.log.faults.inspection import Observation, Reading, read_partitions
from tests.log.faults.scene import Stage

PROBE_S = 20.0

ProbeResult = dict[PartitionId, Reading] | str
"""The partitions, or the error of the log."""


def probe(stage: Stage, topics: Mapping[int, int], prepare: Callable[[], object]) -> ProbeResult:
    """Open the log in a fresh process, and read all partitions; `prepare` runs in the process first."""

    async def read() -> ProbeResult:
        units.install()
        seen = Observation()
        cluster = LogCluster("log", LogSettings(path=stage.path, retention=None, busy_timeout="1s"))
        try:
            await cluster.connect()
            await read_partitions(cluster, topics, seen)
        except MqbridgeError as error:
            return f"{type(error).__name__}: {error}"
        finally:
            await cluster.close()
        return seen.readings["read"]

    def observe() -> ProbeResult:
        prepare()
        return asyncio.run(read())

    try:
        return call(observe, stage.folder / "probe-errors.txt", PROBE_S)
    except (Hang, Died) as error:
        return str(error)
