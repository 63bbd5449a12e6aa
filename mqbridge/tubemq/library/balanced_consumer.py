"""A consumer group whose members choose their partitions themselves ("client balance" in TubeMQ).

The Master assigns no partitions. The members agree among themselves which member reads which partition. `share` is the simplest
rule: each of n members takes every nth partition. If two members want the same partition, its Broker refuses the second (410).
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence

from mqbridge.errors import ClusterError, LaneRevoked, ProtocolError, ServerRefused
from mqbridge.tubemq.client.connection.master import Masters
from mqbridge.tubemq.client.consumer.group_consumer import GroupConsumer
from mqbridge.tubemq.client.consumer.held_partitions import HEARTBEAT_S, MAX_GETS, HeldPartitions, OffsetLookup, StartOffset
from mqbridge.tubemq.client.consumer.partition import HeldPartition
from mqbridge.tubemq.client.consumer.read_budget import GET_BYTES, ReadBudget
from mqbridge.tubemq.library.balanced_membership import BalancedMembership
from mqbridge.tubemq.wire import codes
from mqbridge.tubemq.wire.string_formats import PartitionKey, PartitionRef

log = logging.getLogger(__name__)

REPORT_EVERY = 60
"""Every 60th heartbeat reports all partitions held, also if none has changed; changes are reported at once."""
REFRESH_S = 5.0
"""Minimum interval between requests for the list of partitions, as in the Java clients."""


class BalancedConsumer(GroupConsumer):
    """A member of `group` for `topics`.

    `node` is (number of this member from 0, number of members); the Master refuses a number that another member has. With None
    the member has no number, and `share` returns all partitions. `start` says where a group without a position starts, `filters`
    maps topics to message types, and `offsets` returns a partition's start offset. `PackConsumer` explains the other arguments.
    """

    def __init__(
        self,
        masters: Masters,
        group: str,
        topics: Sequence[str],
        *,
        node: tuple[int, int] | None = None,
        start: StartOffset = StartOffset.EARLIEST,
        filters: Mapping[str, Iterable[str]] | None = None,
        offsets: OffsetLookup | None = None,
        heartbeat_s: float = HEARTBEAT_S,
        max_gets: int = MAX_GETS,
        budget: ReadBudget | None = None,
        priority: int | None = None,
    ) -> None:
        types = {topic: frozenset(msg_types) for topic, msg_types in (filters or {}).items()}
        self.membership = BalancedMembership(masters, group, topics, types, node=node, priority=priority)
        budget = budget or ReadBudget(max_gets * GET_BYTES)
        held = HeldPartitions(self.membership, start=start, heartbeat_s=heartbeat_s, budget=budget, offsets=offsets)
        super().__init__(self.membership, held, heartbeat_s=heartbeat_s, report_every=REPORT_EVERY)
        self._node = node
        self._refreshed_at = float("-inf")
        """Event loop time of the last request for the list of partitions."""
        self._refresh_lock = asyncio.Lock()

    async def partitions(self) -> dict[PartitionRef, bool]:
        """Return all partitions of the topics, each with True if it may be read.

        Requests the list from the Master, unless the last list is younger than REFRESH_S seconds.
        """
        self._home.check()
        self._raise_permanent_error()
        async with self._refresh_lock:
            if self._loop.time() - self._refreshed_at >= REFRESH_S:
                await self._refresh()
                self._refreshed_at = self._loop.time()
        return self.membership.partitions

    async def share(self) -> list[PartitionRef]:
        """Return the partitions that this member should read: every nth that may be read; all of them without `node`."""
        number, count = self._node or (0, 1)
        return [ref for ref, is_readable in (await self.partitions()).items() if is_readable][number::count]

    async def take(self, key: PartitionKey, offset: int | None = None) -> HeldPartition:
        """Acquire a partition, to read it from `offset`, or with None from the group's position (see `HeldPartitions.acquire`).

        If this member already holds the partition, returns the same object again, and `offset` has no effect.
        Raises ServerRefused: 410 if another member holds the partition, 403 if it does not exist, 422 if it is closed.
        """
        self._home.check()
        self._raise_permanent_error()
        if (held := self.held_partitions.held.get(key)) is not None:
            return held
        ref, is_readable = await self._find(key)
        if not is_readable:
            raise codes.refusal_error(
                f"acquiring partition {key}", codes.UNSUBSCRIBABLE, "the Master lists the partition as closed for consumers"
            )
        partition = await self.held_partitions.acquire(ref, offset)
        self._report_soon()
        return partition

    async def give_back(self, key: PartitionKey) -> None:
        """Release a partition, and commit its last pack if it was confirmed; does nothing if the partition is not held."""
        self._home.check()
        if (held := self.held_partitions.held.get(key)) is not None:
            await held.release()
            self._report_soon()

    # --- Master -----------------------------------------------------------------------------------------------------

    def _report_soon(self) -> None:
        """Wake the heartbeat task, and have the next heartbeat report the partitions held."""
        self.held_partitions.has_unreported_changes = True
        self._heartbeat_now.set()

    async def _find(self, key: PartitionKey) -> tuple[PartitionRef, bool]:
        """Return a partition and whether it may be read; refresh the list if the partition is not in it."""
        listed = {ref.key: (ref, is_readable) for ref, is_readable in self.membership.partitions.items()}
        if key not in listed:
            listed = {ref.key: (ref, is_readable) for ref, is_readable in (await self.partitions()).items()}
        if key not in listed:
            raise codes.refusal_error(f"acquiring partition {key}", codes.FORBIDDEN, "the Master lists no such partition")
        return listed[key]

    async def _join(self) -> None:
        obeyed_id = self.membership.skip_id
        await super()._join()
        await self._obey_skip_order(obeyed_id)

    async def _refresh(self) -> None:
        """Request the list of partitions; join again first if the Master has forgotten this member."""
        try:
            await self.membership.refresh_partitions()
        except ServerRefused as error:
            if error.code != codes.NO_NODE:
                raise
            await self._join()
            await self.membership.refresh_partitions()

    async def _send_heartbeat(self, held: list[PartitionRef] | None) -> None:
        obeyed_id = self.membership.skip_id
        await self.membership.heartbeat(held)
        await self._obey_skip_order(obeyed_id)

    async def _obey_skip_order(self, obeyed_id: int) -> None:
        """Move all held partitions to their ends if the Master has sent a new order of an administrator to do so.

        `obeyed_id` is the `skip_id` of the last order that this member has obeyed; a new order has a larger one.
        """
        if self.membership.skip_id <= obeyed_id:
            return
        for partition in list(self.held_partitions.held.values()):
            try:
                await partition.seek(partition.max_offset)
            except (ClusterError, ProtocolError, LaneRevoked) as error:
                log.warning(
                    "%s: an administrator ordered a skip to the end, but the seek failed; repeat the order to skip: %s",
                    partition,
                    error,
                )

    def _raise_permanent_error(self) -> None:
        """Raise the error after which this member can no longer take part in the group, if there is one."""
        if self._permanent_error is not None:
            raise self._permanent_error
