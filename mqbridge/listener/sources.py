"""Where a feed reads one partition of one group: a lane of a membership, or a reader whose group the gateway keeps itself."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from mqbridge.adapter.inbound import CountsReadAhead, InboundLane, KeepsPrefixes, ask_caught_up
from mqbridge.adapter.reader import PartitionReader
from mqbridge.errors import ClusterError, Failure, LaneRevoked
from mqbridge.message import Batch, Partition, Position
from mqbridge.net.backoff import Backoff

log = logging.getLogger(__name__)


class FeedSource(Protocol):
    """One partition of a group, in order."""

    partition: Partition
    is_individual: bool
    """True if messages are acknowledged one by one, and what is acknowledged is never delivered again."""
    needs_contents: bool
    """True if batches have to keep their received form until they are acknowledged as a whole: its bytes count so long."""
    lost: asyncio.Event
    """Set when the partition does not belong to this gateway any more."""

    @property
    def caught_up(self) -> bool:
        """True if the source had no more messages at the last look."""

    async def receive(self) -> Batch:
        """Wait for the next batch; cancelling loses none. Raises LaneRevoked, GapError, ClusterError."""

    def acknowledge(self, batch: Batch, count: int) -> None:
        """Acknowledge the first `count` messages of the batch, and all batches before it (not if `is_individual`)."""

    def acknowledge_some(self, batch: Batch, indexes: Sequence[int], *, is_last: bool) -> None:
        """Acknowledge these messages of the batch (if `is_individual`); `is_last`: all of its messages are acknowledged now."""

    async def seek(self, position: Position) -> None:
        """Continue at this position. Raises LaneRevoked, ClusterError."""

    async def release(self, deadline: float | None = None) -> None:
        """End the source; messages that are not acknowledged are delivered again later."""


class LaneSource:
    """A lane: the group is one of the backing cluster, which keeps its position."""

    def __init__(self, lane: InboundLane, *, individual_ack: bool, needs_contents: bool) -> None:
        """`needs_contents` is True for adapters that find in the received form what they acknowledge."""
        self._lane = lane
        self._counted = lane.counted if isinstance(lane, CountsReadAhead) else None
        self._keep_prefixes = lane.keep_prefixes if isinstance(lane, KeepsPrefixes) else None
        self.partition, self.lost = lane.partition, lane.revoked
        self.is_individual, self.needs_contents = individual_ack, needs_contents

    @property
    def caught_up(self) -> bool:
        """See `InboundLane.caught_up`."""
        return self._lane.caught_up

    async def confirm_caught_up(self) -> bool:
        """See `ConfirmsEnd`; a lane that cannot ask its source knows what it has learned by reading."""
        return await ask_caught_up(self._lane)

    async def receive(self) -> Batch:
        """Receive the lane's next batch, which the feed counts from now on: it may not receive the next one for long."""
        batch = await self._lane.receive()
        if self._counted is not None:
            self._counted(batch)
        return batch

    def acknowledge(self, batch: Batch, count: int) -> None:
        """Acknowledge a prefix of the batch, or all of it."""
        if count == batch.count:
            self._lane.acknowledge(batch)
        else:
            self._lane.acknowledge(batch, range(count))

    def keep_prefixes(self, batch: Batch) -> None:
        """See `mqbridge.adapter.inbound.KeepsPrefixes`; most lanes need nothing for it."""
        if self._keep_prefixes is not None:
            self._keep_prefixes(batch)

    def acknowledge_some(self, batch: Batch, indexes: Sequence[int], *, is_last: bool) -> None:
        """Acknowledge single messages; the last ones without indexes, so that the lane lets the batch go."""
        self._lane.acknowledge(batch, None if is_last else indexes)

    async def seek(self, position: Position) -> None:
        """Move the group to this position."""
        await self._lane.seek(position)

    async def release(self, deadline: float | None = None) -> None:
        """Commit, and release the partition."""
        await self._lane.release(deadline)


class ReaderSource:
    """A reader by position: the group is the gateway's own, and `groups` keeps its position."""

    is_individual = needs_contents = False

    def __init__(
        self, partition: Partition, open_reader: Callable[[Position], Awaitable[PartitionReader]], begin: Position
    ) -> None:
        """`open_reader` opens a reader at a position; a reader that has failed is replaced by a new one."""
        self.partition, self.lost = partition, asyncio.Event()
        self._open_reader, self._position = open_reader, begin
        self._reader: PartitionReader | None = None
        self._backoff = Backoff()

    @property
    def caught_up(self) -> bool:
        """True if the reader is at the end."""
        return self._reader is not None and self._reader.caught_up

    async def receive(self) -> Batch:
        """Receive the reader's next batch; a reader that fails temporarily is opened again, with growing pauses."""
        while not self.lost.is_set():
            try:
                if self._reader is None:
                    self._reader = await self._open_reader(self._position)
                batch = await self._reader.receive()
            except ClusterError as error:
                if error.failure is Failure.FATAL:
                    raise
                await self._close_reader(None)
                pause_s = self._backoff.delay()
                log.warning("reading %s failed, retrying in %.1f s: %s", self.partition, pause_s, error)
                await asyncio.sleep(pause_s)
                continue
            assert batch is not None  # noqa: S101 - a reader without an end
            self._backoff.reset()
            self._position = batch.next
            return batch
        raise LaneRevoked(f"{self.partition} is not read any more")

    def acknowledge(self, batch: Batch, count: int) -> None:
        """Do nothing: the feed records the position of its group."""

    def acknowledge_some(self, batch: Batch, indexes: Sequence[int], *, is_last: bool) -> None:
        """Do nothing: messages are not acknowledged one by one."""

    async def seek(self, position: Position) -> None:
        """Continue at this position. Raises ClusterError; reading then goes on where it was."""
        if self._reader is not None:
            try:
                await self._reader.seek(position)
            except BaseException:
                await self._close_reader(None)  # it may have moved; the next one is opened at the position before
                raise
        self._position = position

    async def release(self, deadline: float | None = None) -> None:
        """Close the reader."""
        self.lost.set()
        await self._close_reader(deadline)

    async def _close_reader(self, deadline: float | None) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close(deadline)
