"""Moves ranges from their source cluster into the targets of a route, several side by side."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from mqbridge.errors import ConfigError
from mqbridge.message import Batch
from mqbridge.net.budget import Budget
from mqbridge.net.tasks import cancel, spawn
from mqbridge.spark.cluster_ref import ClusterRef
from mqbridge.spark.ranges.rows import RangeRow
from mqbridge.spark.source.read import RangeReading
from mqbridge.spark.source.tasks import RangeTask
from mqbridge.spark.transfer.counts import Counts
from mqbridge.spark.transfer.spec import Replay, TargetsSpec
from mqbridge.spark.transfer.targets import FindCluster
from mqbridge.spark.transfer.transfer import Transfer

SIDE_BY_SIDE = 16
"""Ranges of one task that are moved at once: enough to hide the way to the clusters and back, few enough to hold in memory."""


@dataclass(frozen=True, slots=True)
class PumpRules:
    """What a range is read by; see the source's options of the same names."""

    fail_on_data_loss: bool
    retry_s: float


@dataclass(frozen=True, slots=True)
class Pump:
    """Picklable. `sources` has every cluster that a range may be of, by name; `job` is as `Transfer` has it."""

    spec: TargetsSpec
    sources: Mapping[str, ClusterRef]
    job: str

    @property
    def _rules(self) -> PumpRules:
        """A source is waited for as long as a target."""
        return PumpRules(self.spec.delivery.on_gap == "stop", self.spec.write_timeout_s)

    async def move(self, rows: Sequence[RangeRow], find_cluster: FindCluster, replay: Replay | None = None) -> Counts:
        """Store all of these. On an event loop only.

        Raises what reading and `Transfer.run` raise, as soon as the first range fails: the others are left in the middle.
        """
        budget, permits = Budget(self.spec.delivery.in_flight_bytes), asyncio.Semaphore(SIDE_BY_SIDE)

        async def move(row: RangeRow) -> Counts:
            async with permits:
                transfer = Transfer(self.spec, row.partition, self.job, find_cluster=find_cluster, replay=replay, budget=budget)
                async with aclosing(self._read(row, find_cluster)) as batches:
                    return await transfer.run(batches)

        tasks = [spawn(move(row), f"range of {row.partition}", quiet=True) for row in rows]
        try:
            return Counts.total(await asyncio.gather(*tasks))
        finally:
            await cancel(*tasks)

    async def _read(self, row: RangeRow, find_cluster: FindCluster) -> AsyncGenerator[Batch, None]:
        partition = row.partition
        task = RangeTask((partition.topic, partition.name), row.begin, row.end, row.is_part, partition.index)
        ref = self._source(partition.cluster)
        async with aclosing(RangeReading(self._rules, task, lambda: find_cluster(ref)).batches()) as batches:
            async for batch in batches:
                yield batch

    def _source(self, name: str) -> ClusterRef:
        try:
            return self.sources[name]
        except KeyError:
            raise ConfigError(
                f"ranges are of cluster {name!r}, which the sink does not know",
                hint="Give both the source and the sink the same `config`",
            ) from None
