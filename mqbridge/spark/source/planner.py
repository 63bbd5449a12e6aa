"""Plans the batches of a stream: requests metadata from the cluster, stores it in `SourceState`, and finds where a batch ends.

The planner stores positions, not messages.
"""

import asyncio
import logging
import time
from collections import Counter

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from mqbridge.adapter.inbound import Start
from mqbridge.adapter.tools.unit_ranges import position_after
from mqbridge.errors import ClusterError, GapError
from mqbridge.message import Position
from mqbridge.net.backoff import Backoff
from mqbridge.spark.mirror.targets import NewTargetCreator
from mqbridge.spark.option_values import AtTimestamp, ExplicitOffsets, OffsetSpec
from mqbridge.spark.source.admission import admit
from mqbridge.spark.source.cluster_queries import MISSING_TEXT, ClusterQueries
from mqbridge.spark.source.data_loss import DATA_LOSS_HINT, Loss, LossKind
from mqbridge.spark.source.density_samples import DensityEstimator
from mqbridge.spark.source.offsets import Offsets, PartitionKey, describe_partition
from mqbridge.spark.source.retries import RESTART_TIMEOUT_S
from mqbridge.spark.source.settings import SourceSettings
from mqbridge.spark.source.state import SourceState

log = logging.getLogger(__name__)


class StreamPlanner:
    """Plans the batches of one query. Its coroutines run on the background event loop, one at a time."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self.queries = ClusterQueries(settings)
        self.state = SourceState(settings.topics.includes, settings.metadata_s, settings.new_topics_s)
        self.loss_counts: Counter[LossKind] = Counter()
        """Number of data losses that failOnDataLoss=false accepted, by kind."""
        self._density_estimator = DensityEstimator(self.queries)
        route = settings.target_route
        self._target_creator = None if route is None else NewTargetCreator(route.route, route.clusters, route.graph)
        self._last_end: tuple[object, Offsets] | None = None
        """The inputs and the result of the last search for the end of a batch. The same inputs give the same result."""
        self._harmless_losses: set[tuple[PartitionKey, Position]] = set()
        """Suspected losses for which the cluster confirmed that no message was lost."""
        self._reported_losses: set[tuple[PartitionKey, LossKind, Position]] = set()
        """Accepted losses that were logged, by partition, kind and required position."""
        self._last_batch_time = time.monotonic()
        """Monotonic time of the last planned batch that was not empty; before that, the time when the planner was created.

        A batch that `minOffsetsPerTrigger` delays is overdue `maxTriggerDelay` after this time.
        """

    async def freeze(self) -> None:
        """Let a query with availableNow end at the current ends of the partitions (`SourceState.target`).

        Raises ClusterError, ConfigError.
        """
        await self._refresh({})
        self.state.freeze_target()

    async def initial_offsets(self) -> Offsets:
        """Return where a new query begins; the same result in each call. Raises ClusterError, ConfigError."""
        if self.state.initial is None:
            await self._refresh({})
            starting = self._settings.starting
            topics_with_bounds = {topic for topic, _ in self.state.bounds}
            # A topic without bounds may be missing: `describe` then raises ClusterError (FATAL).
            await self.queries.describe([topic for topic in self.state.topics if topic not in topics_with_bounds])
            offsets = await self.queries.positions(starting, self.state.bounds_to_read(), default=Start.EARLIEST)
            if isinstance(starting, AtTimestamp):  # a position may be after the known ends: a message arrived since
                await self._refresh_bounds({})
            # A query that begins with the latest messages runs an empty first batch, which writes these offsets into the
            # checkpoint: after a restart, latest would be a later position.
            self.state.begin(offsets, with_empty_batch=_contains_latest(starting))
        assert self.state.initial is not None  # noqa: S101 - set by `begin`
        return self.state.initial

    async def begin_offsets(self, start: Offsets, end: Offsets) -> Offsets:
        """Return where the batch from `start` to `end` begins: `start`, except in a repeated first batch.

        Spark does not store where the first batch began, so after a restart, `start` is a new result of `initial_offsets`. It
        lacks partitions that do not exist now, and deferred ones, whose target topics do not exist. The first batch may have
        read these partitions before the restart, so this method adds the positions where they begin.

        Raises ClusterError, GapError.
        """
        lacking = end.keys() - start.keys()
        if not lacking or start != self.state.initial:
            return start  # `end` contains new partitions with their first position: the next batch begins to read them
        missing = await self.queries.missing_after_wait(lacking)
        if missing and self._settings.fail_on_data_loss:
            raise GapError(f"{Loss(min(missing), LossKind.MISSING, position=end[min(missing)], bounds=None)}. {DATA_LOSS_HINT}")
        for key in sorted(missing):
            loss = Loss(key, LossKind.MISSING, position=end[key], bounds=None)
            log.warning("data loss, reading continues with the stored messages: %s", loss)
        bounds = await self.queries.bounds(sorted({topic for topic, _ in lacking}))
        lacking_bounds = {key: bounds[key] for key in lacking if key in bounds}
        starting = self._settings.starting
        if isinstance(starting, ExplicitOffsets):
            lacking_topics = {topic for topic, _ in lacking_bounds}
            starting = ExplicitOffsets({topic: starting.topics[topic] for topic in starting.topics if topic in lacking_topics})
        return {**start, **await self.queries.positions(starting, lacking_bounds, default=Start.EARLIEST)}

    async def end_offsets(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """Return the end of the next batch, or `start` if there is nothing to read. Raises ClusterError, ConfigError, GapError.

        A query with availableNow must not end before all partitions of its frozen end (`state.target`) are read. So it waits
        while some of them are deferred: `deferred_targets` returns these, and is empty for other queries.
        """
        timeout_s = min(RESTART_TIMEOUT_S, self._settings.retry_s)
        deadline = time.monotonic() + timeout_s
        while (end := await self._find_end(start, limit)) == start and (deferred := self.state.deferred_targets()):
            if time.monotonic() >= deadline:
                others = f" and {len(deferred) - 1} other partitions" if len(deferred) > 1 else ""
                partitions = f"{describe_partition(min(deferred))}{others}"
                problem = f"the targets of {partitions} could not be created within {timeout_s:g} s"
                raise ClusterError(f"{problem}; the log has the reasons")
            await asyncio.sleep(self._settings.metadata_s)
        return end

    async def _find_end(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """Return the end of the next batch with the partitions that are known now, or `start` if the batch would be empty.

        Computes the end again only if an input changed.
        """
        await self._refresh(start)
        if self.state.take_empty_batch(start):  # the first batch, if `initial_offsets` requested an empty one
            return start
        # An overdue batch is planned even with fewer messages than `minOffsetsPerTrigger`.
        is_overdue = time.monotonic() - self._last_batch_time >= self._settings.max_delay_s
        inputs = (start, self.state.bounds_version, limit, is_overdue)
        if self._last_end is None or self._last_end[0] != inputs:
            await self._handle_losses(start)
            read_until = await self._limit_backlog(start, limit, is_overdue=is_overdue)
            self._last_end = (inputs, self.state.end_offsets(start, read_until))
        if self._last_end[1] != start:
            self._last_batch_time = time.monotonic()
        return self._last_end[1]

    async def _refresh(self, start: Offsets) -> None:
        """Look up topics and bounds if they are too old or partitions are missing, then create targets for new partitions.

        Not in each call, because Spark asks for an end every 10 ms while there is nothing to read.
        """
        now = time.monotonic()
        if self.state.needs_topics(now):
            # The partitions of the option `assign` are resolved only once: indexes of partitions change while a server is down.
            assigned = self.state.assigned
            topics = await self.queries.topics()
            self.state.set_topics(topics, now, await self.queries.assigned_partitions() if assigned is None else assigned)
        if self.state.needs_bounds(now) or (self._settings.fail_on_data_loss and self.state.missing(start)):
            await self._refresh_bounds(start)
            if self._target_creator is not None:
                self.state.deferred = await self._target_creator.create(self.state.bounds_to_read().keys() - start.keys())

    async def _refresh_bounds(self, start: Offsets) -> None:
        """Look up the bounds, and wait for missing partitions if they would fail the query.

        The partitions of a restarting server are missing for a while.
        """
        topics = sorted(self.state.topics_for_bounds(start))
        self.state.set_bounds(await self.queries.bounds(topics), time.monotonic())
        awaited: set[PartitionKey] = set()
        backoff, deadline = Backoff(), time.monotonic() + min(RESTART_TIMEOUT_S, self._settings.retry_s)
        while self._settings.fail_on_data_loss and (missing := self.state.missing(start)) and time.monotonic() < deadline:
            awaited |= missing  # in a rolling restart, other partitions may go missing during the wait
            example, rest_s = describe_partition(min(missing)), deadline - time.monotonic()
            log.warning(MISSING_TEXT, self._settings.cluster.name, len(missing), example, rest_s)
            await asyncio.sleep(backoff.delay())
            self.state.set_bounds(await self.queries.bounds(topics), time.monotonic())
        self.state.extend_target(awaited)  # a frozen target lacks the partitions that were missing when it was frozen

    async def _handle_losses(self, start: Offsets) -> None:
        """Raise GapError for a data loss, or log each loss once if the options accept it."""
        for loss in self.state.losses(start):
            identity = (loss.key, loss.kind, loss.position)
            if identity in self._reported_losses or await self._is_harmless(loss):
                continue
            if self._settings.fail_on_data_loss:
                raise GapError(f"{loss}. {DATA_LOSS_HINT}")
            self._reported_losses.add(identity)
            self.loss_counts[loss.kind] += 1
            count = self.loss_counts[loss.kind]
            log.warning("data loss, reading continues with the stored messages: %s (%d losses of this kind so far)", loss, count)

    async def _is_harmless(self, loss: Loss) -> bool:
        """Return whether no message was lost. The cluster is not asked again about a harmless loss."""
        identity = (loss.key, loss.position)
        if identity not in self._harmless_losses and await self.queries.is_harmless(loss):
            self._harmless_losses.add(identity)
        return identity in self._harmless_losses

    async def _limit_backlog(self, start: Offsets, limit: ReadLimit, *, is_overdue: bool) -> dict[PartitionKey, Position]:
        """Return where the next batch ends in each partition with a backlog, within the limits.

        Empty if there are fewer messages than `minOffsetsPerTrigger`, and the batch is not overdue.
        """
        backlog = self.state.backlog(start)
        max_rows, max_bytes = self._max_rows_and_bytes(limit)
        has_target = self.state.target is not None  # then the last batch must not wait for messages beyond the target
        min_rows = None if is_overdue or has_target else self._settings.min_rows
        if not backlog or (max_rows is None and max_bytes is None and min_rows is None):
            return {key: end for key, (_, end) in backlog.items()}
        unit_ranges = await self.queries.measure(backlog)
        lags = await self._density_estimator.lags(backlog, unit_ranges)
        if min_rows is not None and sum(lag.rows for lag in lags.values()) < min_rows:
            return {}
        units = admit(lags, max_rows, max_bytes)
        return {key: position_after(unit_ranges[key], units.get(key, 0), end) for key, (_, end) in backlog.items()}

    def _max_rows_and_bytes(self, limit: ReadLimit) -> tuple[int | None, int | None]:
        """Return the maximum messages and bytes of a batch: Spark's limit, else the limit of the option; None without limit."""
        if isinstance(limit, ReadAllAvailable):
            return None, None
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self._settings.max_rows
        return max_rows, limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._settings.max_bytes


def _contains_latest(offsets: OffsetSpec) -> bool:
    """Return whether any partition begins at latest, so that the result depends on the time of the request."""
    if isinstance(offsets, ExplicitOffsets):
        return any(Start.LATEST in positions.values() for positions in offsets.topics.values())
    return offsets is Start.LATEST
