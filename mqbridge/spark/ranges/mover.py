"""Moves the messages of ranges from their source cluster into the targets of a route, several ranges concurrently."""

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
from mqbridge.spark.source.read import RangeReader
from mqbridge.spark.source.tasks import RangeTask
from mqbridge.spark.transfer.counts import Counts
from mqbridge.spark.transfer.spec import Replay, TargetsSpec
from mqbridge.spark.transfer.targets import FindCluster
from mqbridge.spark.transfer.transfer import Transfer

MAX_CONCURRENT_RANGES = 16
"""How many ranges one task moves at the same time: enough to hide the latency of the clusters, few enough to limit the memory."""
BATCH_BYTES = 1 << 20
"""Reserved for a batch before it is read and its size is known: the adapters end a batch at this size, or earlier."""


@dataclass(frozen=True, slots=True)
class RouteReadRules:
    """The `ReadRules` of a `RangeReader`, taken from a route instead of the source's options."""

    fail_on_data_loss: bool
    retry_s: float


@dataclass(frozen=True, slots=True)
class Pump:
    """Moves the messages of the ranges of one task (`mqbridge spark mirror --through pump`). Picklable.

    spec     where the messages are stored
    sources  every cluster that a range may come from, by name
    job      the name of the job, the same in every attempt. Job and source form the producer name, see `Transfer`
    """

    spec: TargetsSpec
    sources: Mapping[str, ClusterRef]
    job: str

    @property
    def _read_rules(self) -> RouteReadRules:
        """A gap is an error with `on_gap: stop`, else it is skipped. Reads are retried as long as writes (`writeTimeout`)."""
        return RouteReadRules(self.spec.delivery.on_gap == "stop", self.spec.write_timeout_s)

    async def move(self, rows: Sequence[RangeRow], find_cluster: FindCluster, replay: Replay | None = None) -> Counts:
        """Store the messages of all ranges, and return their counts. Must run on an event loop.

        `replay` says where an earlier attempt may have stored some of the messages; None: this is the first attempt. Raises
        the errors of `RangeReader.batches` and `Transfer.run`. The first range that fails cancels the others.
        """
        delivery, range_slots = self.spec.delivery, asyncio.Semaphore(MAX_CONCURRENT_RANGES)
        send_budget, read_budget = Budget(delivery.sending_bytes), Budget(delivery.read_ahead_bytes)

        async def move_range(row: RangeRow) -> Counts:
            async with range_slots:
                transfer = Transfer(
                    self.spec,
                    row.partition,
                    self.job,
                    cluster=self._source_cluster(row.partition.cluster).identity,
                    find_cluster=find_cluster,
                    replay=replay,
                    budget=send_budget,
                )
                async with aclosing(self._read(row, find_cluster, read_budget)) as batches:
                    return await transfer.run(batches)

        tasks = [spawn(move_range(row), f"range of {row.partition}", log_errors=False) for row in rows]
        try:
            return Counts.total(await asyncio.gather(*tasks))
        finally:
            await cancel(*tasks)

    async def _read(self, row: RangeRow, find_cluster: FindCluster, budget: Budget) -> AsyncGenerator[Batch, None]:
        """Yield the batches of a range. Raises the errors of `RangeReader.batches`; ConfigError for an unknown cluster.

        A batch counts against the budget, which all ranges of the task share, until the next one is requested: then the delivery
        has counted it.
        """
        partition = row.partition
        task = RangeTask((partition.topic, partition.name), row.begin, row.end, is_part=row.is_part, index=partition.index)
        ref = self._source_cluster(partition.cluster)
        # At most a quarter: several ranges are read at once. Less for a small range, so that many of them are read at once.
        expected_bytes = min(BATCH_BYTES, row.estimated_bytes or BATCH_BYTES, budget.limit // 4)
        async with aclosing(RangeReader(self._read_rules, task, lambda: find_cluster(ref)).batches()) as batches:
            while True:
                await budget.reserve(counted_bytes := expected_bytes)
                try:
                    batch = await anext(batches, None)
                    if batch is None:
                        return
                    budget.release(expected_bytes - batch.held_bytes)  # negative if the batch is larger than expected
                    counted_bytes = batch.held_bytes
                    yield batch
                    del batch  # the delivery owns it now
                finally:
                    budget.release(counted_bytes)

    def _source_cluster(self, name: str) -> ClusterRef:
        try:
            return self.sources[name]
        except KeyError:
            raise ConfigError(
                f"the ranges come from cluster {name!r}, which the sink's configuration does not contain",
                hint="Give both the source and the sink the same `config`",
            ) from None
