"""Finds where the batches of a stream end: asks the cluster, and puts what it says into the state.

Messages are never held here: what is measured are positions, and a sample is let go at once.
"""

import asyncio
import logging
import time
from collections import Counter

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows

from mqbridge.adapter.inbound import Start
from mqbridge.adapter.unit_ranges import position_after
from mqbridge.errors import ClusterError, GapError
from mqbridge.message import Position
from mqbridge.net.backoff import Backoff
from mqbridge.spark.mirror.targets import TargetKeeper
from mqbridge.spark.option_values import AtTime, Edge, Exact
from mqbridge.spark.source.admission import admit
from mqbridge.spark.source.cluster_queries import ClusterView
from mqbridge.spark.source.data_loss import WHAT_TO_DO, Kind, Loss
from mqbridge.spark.source.density_samples import Densities
from mqbridge.spark.source.offsets import Key, Offsets, spoken
from mqbridge.spark.source.retries import AWAY_S
from mqbridge.spark.source.settings import SourceSettings
from mqbridge.spark.source.state import SourceState

log = logging.getLogger(__name__)


class StreamPlanner:
    """Finds where batches end. Its coroutines run on the portal's loop, one at a time."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self.view = ClusterView(settings)
        self.state = SourceState(settings.topics.has, settings.metadata_s, settings.new_topics_s)
        self.lost: Counter[Kind] = Counter()
        """What was gone before it was read, where the options let it go."""
        self._densities = Densities(self.view)
        made = settings.makes_targets_of
        self._targets = None if made is None else TargetKeeper(made.route, made.clusters)
        self._answer: tuple[object, Offsets] | None = None
        """The last one, and what it was made of."""
        self._harmless: set[tuple[Key, Position]] = set()
        self._said: set[tuple[Key, Kind, Position]] = set()
        self._served_at = time.monotonic()

    async def freeze(self) -> None:
        """See `prepareForTriggerAvailableNow`."""
        await self._look({})
        self.state.froze()

    async def initial(self) -> Offsets:
        """See `initialOffset`."""
        if self.state.initial is None:
            await self._look({})
            edge = self._settings.starting
            await self.view.described([topic for topic in self.state.topics if all(topic != one for one, _ in self.state.held)])
            offsets = await self.view.positions(edge, self.state.read_now(), Start.EARLIEST)
            if isinstance(edge, AtTime):  # it may be behind what was the end a moment ago
                await self._look_at_bounds({})
            self.state.began(offsets, holds=_is_latest(edge))
        assert self.state.initial is not None  # noqa: S101 - it began
        return self.state.initial

    async def begins(self, start: Offsets, end: Offsets) -> Offsets:
        """Where a batch between these begins, also in partitions that `start` lacks. Raises ClusterError, GapError.

        Spark does not write down where the first batch began. When it is repeated, `start` is what this process has just said: a
        partition that is missing at the moment, or whose target is, would lose what that batch has of it.
        """
        lacking = end.keys() - start.keys()
        if not lacking or start != self.state.initial:
            return start  # what came while the query ran is read by the next batch
        gone = await self.view.gone(lacking)
        if gone and self._settings.fail_on_data_loss:
            raise GapError(f"{Loss(min(gone), Kind.VANISHED, end[min(gone)], None)}. {WHAT_TO_DO}")
        for key in sorted(gone):
            log.warning("going on with what there is: %s", Loss(key, Kind.VANISHED, end[key], None))
        held = await self.view.bounds(sorted({topic for topic, _ in lacking}))
        found = {key: held[key] for key in lacking if key in held}
        edge = self._settings.starting
        if isinstance(edge, Exact):
            edge = Exact({topic: given for topic, given in edge.topics.items() if any(topic == one for one, _ in found)})
        return {**start, **await self.view.positions(edge, found, Start.EARLIEST)}

    async def end(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """See `latestOffset`."""
        until = time.monotonic() + min(AWAY_S, self._settings.retry_s)
        while (found := await self._end(start, limit)) == start and (left_out := self.state.left_out()):
            if time.monotonic() >= until:  # a query that is to read what is there now does not end without it
                raise ClusterError(f"the targets of {spoken(min(left_out))} and {len(left_out) - 1} others could not be made")
            await asyncio.sleep(self._settings.metadata_s)
        return found

    async def _end(self, start: Offsets, limit: ReadLimit) -> Offsets:
        await self._look(start)
        if self.state.holds(start):
            return start
        is_due = time.monotonic() - self._served_at >= self._settings.max_delay_s
        question = (start, self.state.looks, limit, is_due)
        if self._answer is None or self._answer[0] != question:
            await self._face_losses(start)
            taken = await self._take(start, limit, is_due=is_due)
            self._answer = (question, self.state.end(start, taken))
        if self._answer[1] != start:
            self._served_at = time.monotonic()
        return self._answer[1]

    async def _look(self, start: Offsets) -> None:
        """Ask the cluster, unless it was asked a moment ago: Spark calls every 10 ms while there is nothing."""
        now = time.monotonic()
        if self.state.wants_topics(now):
            chosen = self.state.chosen  # an index is that of the beginning: it changes while a server is away
            self.state.topics_found(await self.view.topics(), now, await self.view.assigned() if chosen is None else chosen)
        if self.state.wants_bounds(now) or (self._settings.fail_on_data_loss and self.state.vanished(start)):
            await self._look_at_bounds(start)
            if self._targets is not None:
                self.state.waiting = await self._targets.waiting(self.state.read_now().keys() - start.keys())

    async def _look_at_bounds(self, start: Offsets) -> None:
        """Again while partitions are missing, if that fails the query: servers that restart are missing for a while."""
        topics = sorted(self.state.topics_to_ask(start))
        self.state.looked(await self.view.bounds(topics), time.monotonic())
        missing = self.state.vanished(start) if self._settings.fail_on_data_loss else set()
        backoff, until = Backoff(), time.monotonic() + min(AWAY_S, self._settings.retry_s)
        while self.state.vanished(start) & missing and time.monotonic() < until:
            log.warning("%s and %d others are not there, looking again", spoken(min(missing)), len(missing) - 1)
            await asyncio.sleep(backoff.delay())
            self.state.looked(await self.view.bounds(topics), time.monotonic())
        self.state.came_back(missing)

    async def _face_losses(self, start: Offsets) -> None:
        """Fail, or say once what is lost. Raises GapError."""
        for loss in self.state.losses(start):
            mark = (loss.key, loss.kind, loss.position)
            if mark in self._said or await self._is_harmless(loss):
                continue
            if self._settings.fail_on_data_loss:
                raise GapError(f"{loss}. {WHAT_TO_DO}")
            self._said.add(mark)
            self.lost[loss.kind] += 1
            log.warning("going on with what there is: %s (%d such so far)", loss, self.lost[loss.kind])

    async def _is_harmless(self, loss: Loss) -> bool:
        """Whether nothing lay between the position and what is held first: the cluster is asked once for each."""
        mark = (loss.key, loss.position)
        if mark not in self._harmless and await self.view.is_harmless(loss):
            self._harmless.add(mark)
        return mark in self._harmless

    async def _take(self, start: Offsets, limit: ReadLimit, *, is_due: bool) -> dict[Key, Position]:
        """What of the backlog the next batch takes, by where it ends."""
        backlog = self.state.backlog(start)
        rows, size = self._limits(limit)
        least = None if is_due or self.state.target is not None else self._settings.min_rows
        if not backlog or (rows is None and size is None and least is None):
            return {key: end for key, (_, end) in backlog.items()}
        unit_ranges = await self.view.measure(backlog)
        lags = await self._densities.lags(backlog, unit_ranges)
        if least is not None and sum(lag.rows for lag in lags.values()) < least:
            return {}
        units = admit(lags, rows, size)
        return {key: position_after(unit_ranges[key], units.get(key, 0), end) for key, (_, end) in backlog.items()}

    def _limits(self, limit: ReadLimit) -> tuple[int | None, int | None]:
        if isinstance(limit, ReadAllAvailable):
            return None, None
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self._settings.max_rows
        return rows, limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._settings.max_bytes


def _is_latest(edge: Edge) -> bool:
    """Whether where it is depends on when one asks."""
    if isinstance(edge, Exact):
        return any(one is Start.LATEST for positions in edge.topics.values() for one in positions.values())
    return edge is Start.LATEST
