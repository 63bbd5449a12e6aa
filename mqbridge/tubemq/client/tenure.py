"""How long a partition is ours: taken at its Broker, taken again when that has forgotten us, given back or lost."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from mqbridge.errors import ClusterError, GapError, LaneRevoked, MqbridgeError, ProtocolError
from mqbridge.tubemq.client.pack import CONFIRMED, Outstanding
from mqbridge.tubemq.client.partition_calls import PartitionCalls
from mqbridge.tubemq.client.progress import Progress
from mqbridge.tubemq.client.stats import ReadCounters
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.pb.broker_pb2 import RegisterResponseB2C

log = logging.getLogger(__name__)

CONFIRM_WAIT_S = 3.0
"""How long a partition that is taken away waits for the pack that is out (the Java clients' default)."""
MASTER_TIMEOUT_S = 30.0
"""After this long without a heartbeat a Master has given our partitions away."""
FORGOTTEN_PAUSE_S = 1.0
"""Between looks at whether the Master answers again."""


class Lease(Protocol):
    """What is known of the Master."""

    seen_at: float
    """Loop time of its last good answer."""


class Tenure:
    """`ended` says why it is over; `dropped` is called when it is."""

    def __init__(
        self,
        calls: PartitionCalls,
        progress: Progress,
        outstanding: Outstanding,
        counters: ReadCounters,
        lease: Lease,
        dropped: Callable[[], None],
    ) -> None:
        self.registered = False
        self.ended: MqbridgeError | None = None
        self.max_offset = 0
        self._calls, self._progress, self._outstanding, self._counters = calls, progress, outstanding, counters
        self._lease, self._dropped = lease, dropped
        self.over = asyncio.Event()
        """It was taken away or given back."""
        self._loop = asyncio.get_running_loop()

    # --- taking -----------------------------------------------------------------------------------------------------

    async def take_at(self, read_status: int, offset: int | None) -> RegisterResponseB2C:
        """Take it at `offset`, whether the Broker still holds that or not; without one, where the group stands."""
        answer = await self._calls.take_patiently(read_status, offset)
        self._begin(answer, None)
        return answer

    async def take_exactly(self, read_status: int, offset: int) -> None:
        """Take it at `offset`; when the Broker no longer holds that, the first read is a gap."""
        answer = await self._calls.take_patiently(read_status, offset)
        if answer.currOffset < offset:
            log.warning(
                "%s starts at offset %d, the last that its Broker knows, and not at %d", self._calls, answer.currOffset, offset
            )
        self._begin(answer, offset)

    async def take_again(self) -> None:
        """The Broker has forgotten us: it restarted, or did not hear of us for too long.

        A Broker that is stopped in order counts what it handed out last as consumed. Unless that was a pack which we have
        confirmed, reading must go on where we know, by an offset of our own.
        And unless the Master still counts on us, the partition may be another's by now.
        """
        if self._loop.time() - self._lease.seen_at > MASTER_TIMEOUT_S:
            await self.pause(FORGOTTEN_PAUSE_S)
            return
        progress = self._progress
        offset = progress.safe if progress.doubt or progress.rewind or self._outstanding.unread else None
        answer = await self._calls.take(0, offset)
        progress.expected = offset
        try:
            progress.check(answer.currOffset)
        except GapError as error:
            self.ended = self.ended or error
        self._begin(answer, None)
        if self.revoked:  # it was given back meanwhile
            await self.give_back()

    def _begin(self, answer: RegisterResponseB2C, asked: int | None) -> None:
        self._counters.registrations += 1
        self.registered = True
        self.max_offset = answer.maxOffset
        self._progress.begin(answer.currOffset, asked)
        self._outstanding.forget()

    def failed(self, code: int) -> None:
        """The Broker said in a heartbeat that it does not count this partition as ours."""
        if code == codes.DUPLICATE_PARTITION:
            self.end(LaneRevoked(f"{self._calls} was lost: another consumer of the group has it"))
        else:
            self.registered = False

    # --- ending -----------------------------------------------------------------------------------------------------

    @property
    def revoked(self) -> bool:
        """Whether it was taken away or given back."""
        return isinstance(self.ended, LaneRevoked)

    def end(self, why: MqbridgeError) -> None:
        """It is over, and nothing is left to give back."""
        self.ended = self.ended or why
        self.over.set()
        self._outstanding.quiet.set()
        self._dropped()

    async def release(self) -> None:
        """Give the partition back: a confirmed pack is committed, one that is out will be delivered again."""
        if not self.revoked:
            self.ended = LaneRevoked(f"{self._calls} was given back")
        self.over.set()
        await self.give_back()

    async def revoke(self) -> None:
        """It was taken away: wait a moment for the pack that is out, then give the partition back."""
        self.ended = self.ended or LaneRevoked(f"{self._calls} now belongs to another consumer")
        self.over.set()
        try:
            async with asyncio.timeout(CONFIRM_WAIT_S):
                await self._outstanding.quiet.wait()
        except TimeoutError:
            log.info("%s: the pack that is out was not confirmed in time and will be delivered again", self._calls)
        await self.give_back()

    async def give_back(self) -> None:
        """Unregister at the Broker, once."""
        if self.registered:
            self.registered = False
            consumed = self._outstanding.state == CONFIRMED
            self._outstanding.forget()
            try:
                await self._calls.give_back(consumed=consumed)
            except (ClusterError, ProtocolError) as error:
                log.info("%s could not be given back, its Broker will notice: %s", self._calls, error)
        self._outstanding.quiet.set()
        self._dropped()

    async def pause(self, seconds: float) -> None:
        """Sleep; when it ends meanwhile, raise why."""
        if seconds <= 0:
            return
        try:
            async with asyncio.timeout(seconds):
                await self.over.wait()
        except TimeoutError:
            return
        if self.ended is not None:
            raise self.ended
