"""Stores the batches of one source partition in its targets, and retries until everything is stored.

    iterator -> lane (buffers unacknowledged batches) -> the gateway's delivery -> targets

After a transient failure it is unknown which batches in flight are stored. The transfer therefore closes the outbounds (producers
to the targets), which cancels the sends that are not on the wire and waits for the others. After a pause the transfer opens the
targets again, finds the messages that they store (`resume`), and sends the others.

What happens to a request whose response was lost depends on the system:

- If the system fences other senders and drops duplicates, its outbound retries the send itself.
- Otherwise the outbound reports the failure at once (`OutboundSpec.resend_s`). A request that reached the broker before the
  connection ended is stored within milliseconds, so the transfer finds its messages after the pause. If a stalled broker stores
  them only after the search, they are stored twice, and both copies have the same origin.
- Messages without a source cannot be found in the target: all messages without a receipt are sent again.
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
from mqbridge.spark.transfer.counts import Counts
from mqbridge.spark.transfer.lane import IteratorLane
from mqbridge.spark.transfer.spec import Replay, TargetsSpec, TopicEnds
from mqbridge.spark.transfer.tally import Tally
from mqbridge.spark.transfer.targets import FindCluster, OpenRequest, OpenTargets, open_targets
from mqbridge.spark.transfer.writer_id import SourceJob

log = logging.getLogger(__name__)

FIRST_PAUSE_S, MAX_PAUSE_S = 2.0, 15.0
"""Pauses before the targets are opened again: long enough for the brokers to store all requests that reached them."""


class Transfer:
    """Stores one source partition in the targets of a spec.

    spec    the targets, the filter and the delivery settings
    source  the source partition, or NO_SOURCE for messages that were not received from any source
    job     the name of the job, the same in every attempt. Job, source and target form the writer's id (see `writer_id`)
    cluster identity of the source's cluster (`ClusterRef.identity`); "" if it is the name in `source`
    replay  where an earlier attempt may have stored some of the messages; None if this is the first attempt
    budget  limits the bytes in flight to the targets; the transfers of a task share one

    `find_cluster` provides the connected clusters.
    """

    def __init__(
        self,
        spec: TargetsSpec,
        source: Partition,
        job: str,
        *,
        cluster: str = "",
        find_cluster: FindCluster,
        budget: Budget,
        replay: Replay | None = None,
    ) -> None:
        self._spec, self._source = spec, source
        self._find_cluster, self._replay = find_cluster, replay
        self._job = SourceJob(job, cluster or source.cluster)
        self._budget = budget
        self._tally = Tally()
        """Counts each batch once, even if it is sent in several rounds."""
        self._counters = Counters()
        """Counters of the delivery over all rounds; only `dead` is used."""
        self._initial_ends: TopicEnds = {}
        """The end positions of the target partitions when they were opened for the first time."""
        self._failing_since: float | None = None
        """Loop time of the first failure since the last acknowledged batch; None before the first failure."""
        self._pauses = Backoff(FIRST_PAUSE_S, MAX_PAUSE_S)

    async def run(self, batches: AsyncIterator[Batch]) -> Counts:
        """Store all batches, and return the counts. The positions of the messages must ascend, except with NO_SOURCE.

        Raises the errors of the iterator; ClusterError or DeliveryError if a message cannot be stored; ConfigError for invalid
        targets. Closes everything before it returns.
        """
        lane = IteratorLane(self._source, batches, self._tally)
        try:
            while not lane.done.is_set():
                await self._deliver_or_pause(lane)
        finally:
            await lane.close()
        self._tally.count_dead(self._counters.dead)
        return self._tally.counts

    async def _deliver_or_pause(self, lane: IteratorLane) -> None:
        """Deliver until the lane is done. After a transient failure, pause and rewind the lane for the next round."""
        acknowledged_before = lane.acknowledged_batches
        try:
            await self._deliver(lane)
        except (ClusterError, DeliveryError) as error:
            # An error of the iterator is final: the iterator cannot be read again.
            if lane.error is error or error.failure not in (Failure.RETRY, Failure.REFRESH):
                raise
            now = asyncio.get_running_loop().time()
            if self._failing_since is None or lane.acknowledged_batches > acknowledged_before:
                self._failing_since = now
                self._pauses.reset()
            remaining_s = self._failing_since + self._spec.write_timeout_s - now
            if remaining_s <= 0:
                problem = f"nothing of {self._source} could be stored for {self._spec.write_timeout_s:g} s (writeTimeout)"
                raise DeliveryError(f"{problem}: {error}") from error
            pause_s = min(remaining_s, self._pauses.delay())
            log.warning("%s: delivery failed, opening the targets again in %.1f s: %s", self._source, pause_s, error)
            await asyncio.sleep(pause_s)
            lane.rewind()
            # From now on, target partitions may contain messages of this transfer, at or after the initial ends.
            self._replay = self._replay or Replay(self._initial_ends)

    async def _deliver(self, lane: IteratorLane) -> None:
        """Open the targets, deliver until the lane is done, and close the targets. Raises ClusterError, DeliveryError."""
        batch = await lane.peek()
        if batch is None:
            lane.done.set()
            return
        request = OpenRequest(self._spec, self._source, self._job, batch.first, self._replay)
        async with open_targets(request, self._find_cluster, self._tally) as opened:
            self._initial_ends = {**opened.initial_ends, **self._initial_ends}
            delivery = LaneDelivery(lane, opened.targets, self._settings(opened))
            stopper = spawn(_stop_when_done(lane, delivery), f"stopping the delivery of {self._source} when it is done")
            try:
                await delivery.run()
            finally:
                await cancel(stopper)
            if not lane.done.is_set():
                raise DeliveryError(f"{self._source}: the delivery ended without an error before all messages were stored")

    def _settings(self, opened: OpenTargets) -> LaneSettings:
        return LaneSettings(
            budget=self._budget,
            counters=self._counters,
            filter=self._spec.selection.make_filter(self._tally.count_filtered, self._spec.earlier_selection),
            dead_letters=opened.dead_letters,
        )


async def _stop_when_done(lane: IteratorLane, delivery: LaneDelivery) -> None:
    await lane.done.wait()
    delivery.stop()
