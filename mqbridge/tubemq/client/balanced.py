"""A member of a group that balances itself: it sees all partitions, and takes and gives back those that it wants.

Nobody hands out events here. Which member reads what is the callers' agreement, for which `share` is the simplest: each of n
members takes every nth partition. Two that want the same one are kept apart by its Broker (410).
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence

from mqbridge.errors import ClusterError, Failure, LaneRevoked, ProtocolError, ServerRefused
from mqbridge.net.tasks import cancel, spawn
from mqbridge.tubemq.client.balanced_membership import BalancedMembership
from mqbridge.tubemq.client.holding import HEARTBEAT_S, MAX_GETS, From, Holding, Offsets
from mqbridge.tubemq.client.master import Masters, retried
from mqbridge.tubemq.client.partition import PartitionSession
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.text import Key, PartitionRef

log = logging.getLogger(__name__)

RETRY_S = 1.0
REPORT_EVERY = 60
"""Heartbeats between reports of all that we hold; changes are reported at once."""
LOOK_S = 5.0
"""The least time between questions for all partitions, as the Java clients have it."""


class BalancedConsumer:
    """A member of `group` for `topics`. `node` is (its number, how many members there are), which the Master checks.

    The other settings are those of `Consumer`.
    """

    def __init__(
        self,
        masters: Masters,
        group: str,
        topics: Sequence[str],
        *,
        node: tuple[int, int] | None = None,
        start: From = From.EARLIEST,
        filters: Mapping[str, Iterable[str]] | None = None,
        offsets: Offsets | None = None,
        heartbeat_s: float = HEARTBEAT_S,
        max_gets: int = MAX_GETS,
        priority: int | None = None,
    ) -> None:
        types = {topic: frozenset(wanted) for topic, wanted in (filters or {}).items()}
        self.membership = BalancedMembership(masters, group, topics, types, node=node, priority=priority)
        self.holding = Holding(self.membership, start=start, heartbeat_s=heartbeat_s, max_gets=max_gets, offsets=offsets)
        self._node, self._heartbeat_s = node, heartbeat_s
        self._looked_at = float("-inf")
        self._looking = asyncio.Lock()
        self._failed: ClusterError | None = None
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def start(self) -> None:
        """Join the group. Raises ClusterError after five tries; FATAL ones (other mode, other members) at once."""
        member = self.membership
        await member.identify()
        await retried(f"joining group {member.group}", self._register)
        self.holding.begin()
        self._task = spawn(self._heartbeats(), f"tubemq heartbeats of {member.client_id}")

    async def partitions(self) -> dict[PartitionRef, bool]:
        """Every partition of the topics and whether it may be read. The Master is asked at most every LOOK_S seconds."""
        self._raise_failure()
        async with self._looking:
            if self._loop.time() - self._looked_at >= LOOK_S:
                await self._look()
                self._looked_at = self._loop.time()
        return self.membership.partitions

    async def share(self) -> list[PartitionRef]:
        """Every nth partition that may be read, by our number among the members; all of them without `node`."""
        number, count = self._node or (0, 1)
        return [ref for ref, is_open in (await self.partitions()).items() if is_open][number::count]

    async def take(self, key: Key, offset: int | None = None) -> PartitionSession:
        """Take a partition, at `offset` when there is one; the same session again when it is held already.

        Raises ServerRefused: 410 when another member has it, 403 when there is none of that name, 422 when it is closed.
        """
        self._raise_failure()
        if (held := self.holding.held.get(key)) is not None:
            return held
        ref, is_open = await self._find(key)
        if not is_open:
            raise codes.refused(f"taking {key}", codes.UNSUBSCRIBABLE, "the Master says that it may not be read")
        partition = await self.holding.take(ref, offset)
        self._say_so()
        return partition

    async def give_back(self, key: Key) -> None:
        """Give a partition back, keeping what was confirmed; nothing when it is not held."""
        if (held := self.holding.held.get(key)) is not None:
            await held.release()
            self._say_so()

    async def close(self) -> None:
        """Give all partitions back, keeping what was confirmed, and leave the group."""
        await cancel(self._task)
        await self.holding.close()
        try:
            await self.membership.leave()
        except (ClusterError, ProtocolError) as error:
            log.info("the Master was not told that %s left: %s", self.membership.client_id, error)

    # --- Master -----------------------------------------------------------------------------------------------------

    def _say_so(self) -> None:
        """What we hold has changed: the Master hears of it now."""
        self.holding.changed = True
        self._wake.set()

    async def _find(self, key: Key) -> tuple[PartitionRef, bool]:
        known = {ref.key: (ref, is_open) for ref, is_open in self.membership.partitions.items()}
        if key not in known:
            known = {ref.key: (ref, is_open) for ref, is_open in (await self.partitions()).items()}
        if key not in known:
            raise codes.refused(f"taking {key}", codes.FORBIDDEN, "the Master names no such partition")
        return known[key]

    async def _register(self) -> None:
        known = self.membership.skip_id
        await self.membership.register(self.holding.refs)
        self.holding.seen_at = self._loop.time()
        await self._skip_to_end(known)

    async def _look(self) -> None:
        try:
            await self.membership.look()
        except ServerRefused as error:
            if error.code != codes.NO_NODE:
                raise
            await self._register()
            await self.membership.look()

    async def _heartbeats(self) -> None:
        beats = 0
        while True:
            beats += 1
            try:
                await self._heartbeat(report=beats % REPORT_EVERY == 0)
            except (ClusterError, ProtocolError) as error:
                if isinstance(error, ServerRefused) and error.failure is Failure.FATAL and error.code != codes.TOPIC_NOT_DEPLOYED:
                    self._fail(error)
                    return
                log.warning("a heartbeat of group %s failed, trying again: %s", self.membership.group, error)
                await asyncio.sleep(RETRY_S)
            else:
                await self._until_next()

    async def _heartbeat(self, *, report: bool) -> None:
        holding, skip_id = self.holding, self.membership.skip_id
        due, holding.changed = holding.changed, False
        try:
            await self.membership.heartbeat(holding.refs if report or due else None)
        except (ClusterError, ProtocolError) as error:
            holding.changed |= due
            if not isinstance(error, ServerRefused) or error.code != codes.NO_NODE:
                raise
            log.info("the Master does not know %s any more; it joins again", self.membership.client_id)
            await self._register()
            return
        holding.seen_at = self._loop.time()
        await self._skip_to_end(skip_id)

    async def _skip_to_end(self, known: int) -> None:
        """Go on at the end of what there is, if an administrator gave that order since `known`."""
        if self.membership.skip_id <= known:
            return
        for partition in list(self.holding.held.values()):
            try:
                await partition.seek(partition.max_offset)
            except (ClusterError, ProtocolError, LaneRevoked) as error:
                log.warning("%s could not be moved to its end: %s", partition, error)

    async def _until_next(self) -> None:
        self._wake.clear()
        if self.holding.changed:
            return
        try:
            async with asyncio.timeout(self._heartbeat_s):
                await self._wake.wait()
        except TimeoutError:
            return

    def _fail(self, error: ClusterError) -> None:
        log.error("group %s cannot go on: %s", self.membership.group, error)
        self._failed = error

    def _raise_failure(self) -> None:
        if self._failed is not None:
            raise self._failed
