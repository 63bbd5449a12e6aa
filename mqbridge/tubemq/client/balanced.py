"""A member of a group that balances itself: it sees all partitions, and takes and gives back those that it wants.

Nobody hands out events here. Which member reads what is the callers' agreement, for which `share` is the simplest: each of n
members takes every nth partition. Two that want the same one are kept apart by its Broker (410).
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence

from mqbridge.errors import ClusterError, LaneRevoked, ProtocolError, ServerRefused
from mqbridge.tubemq.client.balanced_membership import BalancedMembership
from mqbridge.tubemq.client.group_consumer import GroupConsumer
from mqbridge.tubemq.client.held_partitions import HEARTBEAT_S, MAX_GETS, From, HeldPartitions, Offsets
from mqbridge.tubemq.client.master import Masters
from mqbridge.tubemq.client.partition import HeldPartition
from mqbridge.tubemq.client.read_budget import GET_BYTES, ReadBudget
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.text import Key, PartitionRef

log = logging.getLogger(__name__)

REPORT_EVERY = 60
"""Heartbeats between reports of all that we hold; changes are reported at once."""
LOOK_S = 5.0
"""The least time between questions for all partitions, as the Java clients have it."""


class BalancedConsumer(GroupConsumer):
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
        budget: ReadBudget | None = None,
        priority: int | None = None,
    ) -> None:
        types = {topic: frozenset(wanted) for topic, wanted in (filters or {}).items()}
        self.membership = BalancedMembership(masters, group, topics, types, node=node, priority=priority)
        budget = budget or ReadBudget(max_gets * GET_BYTES)
        held = HeldPartitions(self.membership, start=start, heartbeat_s=heartbeat_s, budget=budget, offsets=offsets)
        super().__init__(self.membership, held, heartbeat_s=heartbeat_s, report_every=REPORT_EVERY)
        self._node = node
        self._looked_at = float("-inf")
        self._looking = asyncio.Lock()

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

    async def take(self, key: Key, offset: int | None = None) -> HeldPartition:
        """Take a partition, at `offset` when there is one; the same object again when it is held already.

        Raises ServerRefused: 410 when another member has it, 403 when there is none of that name, 422 when it is closed.
        """
        self._raise_failure()
        if (held := self.held_partitions.held.get(key)) is not None:
            return held
        ref, is_open = await self._find(key)
        if not is_open:
            raise codes.refused(f"taking {key}", codes.UNSUBSCRIBABLE, "the Master says that it may not be read")
        partition = await self.held_partitions.take(ref, offset)
        self._say_so()
        return partition

    async def give_back(self, key: Key) -> None:
        """Give a partition back, keeping what was confirmed; nothing when it is not held."""
        if (held := self.held_partitions.held.get(key)) is not None:
            await held.release()
            self._say_so()

    # --- Master -----------------------------------------------------------------------------------------------------

    def _say_so(self) -> None:
        """What we hold has changed: the Master hears of it now."""
        self.held_partitions.changed = True
        self._wake.set()

    async def _find(self, key: Key) -> tuple[PartitionRef, bool]:
        known = {ref.key: (ref, is_open) for ref, is_open in self.membership.partitions.items()}
        if key not in known:
            known = {ref.key: (ref, is_open) for ref, is_open in (await self.partitions()).items()}
        if key not in known:
            raise codes.refused(f"taking {key}", codes.FORBIDDEN, "the Master names no such partition")
        return known[key]

    async def _join(self) -> None:
        known = self.membership.skip_id
        await super()._join()
        await self._skip_to_end(known)

    async def _look(self) -> None:
        try:
            await self.membership.look()
        except ServerRefused as error:
            if error.code != codes.NO_NODE:
                raise
            await self._join()
            await self.membership.look()

    async def _beat(self, held: list[PartitionRef] | None) -> None:
        known = self.membership.skip_id
        await self.membership.heartbeat(held)
        await self._skip_to_end(known)

    async def _skip_to_end(self, known: int) -> None:
        """Go on at the end of what there is, if an administrator gave that order since `known`."""
        if self.membership.skip_id <= known:
            return
        for partition in list(self.held_partitions.held.values()):
            try:
                await partition.seek(partition.max_offset)
            except (ClusterError, ProtocolError, LaneRevoked) as error:
                log.warning("%s could not be moved to its end: %s", partition, error)

    def _raise_failure(self) -> None:
        if self._failed is not None:
            raise self._failed
