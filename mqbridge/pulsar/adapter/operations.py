"""What people ask of a cluster's subscriptions and topics: who is a member, moving a subscription, finding a time.

All of it is the administrators' REST interface, each partition a topic of its own there. Places are whole entries.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from mqbridge.adapter import Bounds, Member
from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Position
from mqbridge.pulsar.adapter.topics import WHOLE
from mqbridge.pulsar.client.admin import Admin
from mqbridge.pulsar.wire.ids import EARLIEST, EntryId
from mqbridge.pulsar.wire.names import TopicName

T = TypeVar("T")

FAILOVER = "Failover"
_POLICIES = {
    "retention_policies": "retention",
    "message_ttl_in_seconds": "message_ttl_s",
    "deduplicationEnabled": "deduplication",
    "compaction_threshold": "compaction_threshold",
    "schema_compatibility_strategy": "schema_compatibility",
}
"""Of the namespace: those that decide what becomes of messages."""


class PulsarOperations:
    """On the partitions of one topic. Each call raises ClusterError."""

    def __init__(self, admin: Admin, topic: TopicName, partitions: Sequence[str]) -> None:
        self._admin, self._topic, self._partitions = admin, topic, partitions

    async def backlog(self, group: str) -> dict[str, int]:
        """Entries that the subscription has not acknowledged."""
        counted = await self._each(self._admin.stats)
        return {name: stats.backlog[group] for name, stats in counted.items() if group in stats.backlog}

    async def members(self, group: str) -> list[Member]:
        """Its consumers by name. Of a failover subscription only the active one holds a partition."""
        held: dict[str, list[str]] = {}
        addresses: dict[str, str] = {}
        for name, stats in (await self._each(self._admin.stats)).items():
            subscription = stats.raw["subscriptions"].get(group)
            if subscription is None:
                continue
            for consumer in subscription["consumers"]:
                who = consumer["consumerName"]
                addresses[who] = consumer.get("address", "")
                names = held.setdefault(who, [])
                if subscription["type"] != FAILOVER or subscription["activeConsumerName"] == who:
                    names.append(name)
        return [Member(who, addresses[who], tuple(names)) for who, names in sorted(held.items())]

    async def move(self, group: str, positions: Mapping[str, Position], bounds: Mapping[str, Bounds]) -> None:
        """Reset the subscription, or create it there. FATAL while it has consumers.

        A broker would cut them off and deliver anew, but an ordered consumer of ours takes what it has handed over already for
        a repetition after a lost connection, and leaves it out.
        """
        if present := await self.members(group):
            names = ", ".join(member.id for member in present)
            raise ClusterError(f"group {group!r} is being consumed by {names}: stop it, then move it", Failure.FATAL)
        if unknown := positions.keys() - set(self._partitions):
            raise ClusterError(f"topic {self._topic} has no partition {', '.join(sorted(unknown))}", Failure.FATAL)
        await asyncio.gather(*(self._move(group, name, place, bounds[name]) for name, place in positions.items()))

    async def _move(self, group: str, name: str, position: Position, bounds: Bounds) -> None:
        concrete = self._concrete(name)
        if group not in await self._admin.mark_delete_positions(concrete):
            await self._admin.create_subscription(concrete, group, EARLIEST)
        if position >= bounds.next:
            await self._admin.skip_all(concrete, group)  # a reset to what is not there yet goes to the newest entry instead
        else:
            await self._admin.reset_to(concrete, group, EARLIEST if position[0] < 0 else (position[0], position[1]))

    async def position_at(self, time_ms: int, bounds: Mapping[str, Bounds]) -> dict[str, Position]:
        """By the time of publishing."""
        found = await self._each(lambda concrete, _: self._admin.id_at(concrete, time_ms))
        return {name: _within(place, bounds[name]) for name, place in found.items()}

    async def newest(self, count: int, ends: Mapping[str, Position]) -> dict[str, Position]:
        """So many entries before the end, counted through the ledgers that are still there."""
        found = await self._each(lambda concrete, _: self._admin.internal_stats(concrete))
        return {name: _counted_back(stats["ledgers"], ends[name], count) for name, stats in found.items()}

    async def settings(self) -> dict[str, str]:
        """The policies of the topic's namespace that decide what becomes of messages, where they are set."""
        policies = await self._admin.policies(f"{self._topic.tenant}/{self._topic.namespace}")
        said = {ours: policies.get(theirs) for theirs, ours in _POLICIES.items()}
        return {name: _text(value) for name, value in said.items() if value is not None}

    async def _each(self, call: Callable[[TopicName, int], Awaitable[T]]) -> dict[str, T]:
        answers = await asyncio.gather(*(call(self._concrete(name), 0) for name in self._partitions))
        return dict(zip(self._partitions, answers, strict=True))

    def _concrete(self, name: str) -> TopicName:
        return self._topic if name == WHOLE else self._topic.partition(int(name))


def _within(place: EntryId, bounds: Bounds) -> Position:
    return min(max((*place, 0), bounds.first), bounds.next)


def _counted_back(ledgers: Sequence[Mapping[str, Any]], end: Position, count: int) -> Position:
    """`end` is behind the newest entry; the newest ledger counts its entries only when it is closed."""
    ledger, missing = end[0], count - end[1]
    if ledger < 0:
        return end  # it never held anything
    if missing <= 0:
        return (ledger, end[1] - count, 0)
    for one in sorted(ledgers, key=lambda one: int(one["ledgerId"]), reverse=True):
        if int(one["ledgerId"]) < end[0]:
            ledger, entries = int(one["ledgerId"]), int(one["entries"])
            if entries >= missing:
                return (ledger, entries - missing, 0)
            missing -= entries
    return (ledger, 0, 0)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={one}" for name, one in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)
