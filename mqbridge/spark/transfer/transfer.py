"""Moves batches of one source partition into its targets, until everything is stored.

    iterator -> lane -> the gateway's delivery -> targets
                 |  kept until it is acknowledged

After a failure that may pass nobody knows what of the batches in flight is stored. So the outbounds are closed, which takes back
what is not on its way and waits for the rest. After a pause they are opened anew, say what they hold of the source (`stored`),
and get the rest.

What becomes of a request whose answer is lost depends on the system:

- One that keeps other senders out and drops what it is sent twice lets its outbound send again by itself.
- All others report the failure at once (`OutboundSpec.resend_s`). A request that a broker got before its connection ended is
  stored within milliseconds, so it is seen behind the pause. One that a stalled broker stores later than that, when it was asked
  already, is stored twice: its origin still tells.
- Messages without a source have no identity: what has no receipt is sent again.
"""

import asyncio
import logging
from collections.abc import AsyncIterator

from mqbridge.delivery.counters import Counters
from mqbridge.delivery.lane import LaneDelivery
from mqbridge.delivery.settings import LaneSettings
from mqbridge.errors import ClusterError, DeliveryError, Failure
from mqbridge.message import Batch, Partition
from mqbridge.net.backoff import Backoff
from mqbridge.net.budget import Budget
from mqbridge.net.tasks import cancel, spawn
from mqbridge.routing.filters import make_filter
from mqbridge.spark.transfer.counts import Counts
from mqbridge.spark.transfer.lane import IteratorLane
from mqbridge.spark.transfer.spec import Ends, Replay, TargetsSpec
from mqbridge.spark.transfer.tally import Tally
from mqbridge.spark.transfer.targets import FindCluster, Opening, OpenTargets, open_targets

log = logging.getLogger(__name__)

FIRST_PAUSE_S, MOST_PAUSE_S = 2.0, 15.0
"""Before targets are opened anew. Not less: a request that was on its way is to be stored before they are asked."""


class Transfer:
    """One source partition into the targets of a spec.

    `job` is the stable name of the job: with the source it makes the sender's name under which targets drop what is sent twice.
    `replay` is given when some of it may have been sent before. Several transfers of a task share one `budget`.
    """

    def __init__(
        self,
        spec: TargetsSpec,
        source: Partition,
        job: str,
        *,
        find_cluster: FindCluster,
        replay: Replay | None = None,
        budget: Budget | None = None,
    ) -> None:
        self._spec, self._source, self._job, self._find_cluster, self._replay = spec, source, job, find_cluster, replay
        self._budget = Budget(spec.delivery.in_flight_bytes) if budget is None else budget
        self._tally = Tally()
        self._counters = Counters()
        self._began: Ends = {}
        """The ends of the targets when they were first opened."""
        self._failing_since: float | None = None
        self._pauses = Backoff(FIRST_PAUSE_S, MOST_PAUSE_S)

    async def run(self, batches: AsyncIterator[Batch]) -> Counts:
        """Store all of it. The batches are of the source, and ascend; those of NO_SOURCE have no order and no identity.

        Raises what the iterator raises; ClusterError or DeliveryError when something is not stored, ConfigError for targets that
        cannot be. Nothing is open afterwards.
        """
        lane = IteratorLane(self._source, batches, self._tally)
        try:
            while not lane.done.is_set():
                await self._attempt(lane)
        finally:
            await lane.close()
        self._tally.dead(self._counters.dead)
        return self._tally.counts

    async def _attempt(self, lane: IteratorLane) -> None:
        """Deliver to the end, or to a failure that may pass, and the pause behind it."""
        before = lane.acknowledged
        try:
            await self._deliver(lane)
        except (ClusterError, DeliveryError) as error:
            if lane.error is error or error.failure not in (Failure.RETRY, Failure.REFRESH):
                raise
            now = asyncio.get_running_loop().time()
            if self._failing_since is None or lane.acknowledged > before:
                self._failing_since = now
                self._pauses.reset()
            left = self._failing_since + self._spec.write_timeout_s - now
            if left <= 0:
                problem = f"nothing of {self._source} could be stored for {self._spec.write_timeout_s:g} s (writeTimeout)"
                raise DeliveryError(f"{problem}: {error}") from error
            pause = min(left, self._pauses.delay())
            log.warning("%s: opening the targets anew in %.1f s: %s", self._source, pause, error)
            await asyncio.sleep(pause)
            lane.rewind()
            self._replay = self._replay or Replay(self._began)

    async def _deliver(self, lane: IteratorLane) -> None:
        first = await lane.first()
        if first is None:
            lane.done.set()
            return
        opening = Opening(self._spec, self._source, self._job, first.first, self._replay)
        async with open_targets(opening, self._find_cluster, self._tally) as opened:
            self._began = {**opened.began, **self._began}
            delivery = LaneDelivery(lane, opened.targets, self._settings(opened))
            end = spawn(_stop_at_the_end(lane, delivery), f"the end of {self._source}")
            try:
                await delivery.run()
            finally:
                await cancel(end)
            if not lane.done.is_set():
                raise DeliveryError(f"{self._source}: the delivery ended before everything was stored")

    def _settings(self, opened: OpenTargets) -> LaneSettings:
        return LaneSettings(
            budget=self._budget,
            counters=self._counters,
            filter=make_filter(self._spec.msg_types, self._spec.filter, self._tally.filtered),
            dead_letters=opened.dead_letters,
        )


async def _stop_at_the_end(lane: IteratorLane, delivery: LaneDelivery) -> None:
    await lane.done.wait()
    delivery.stop()
