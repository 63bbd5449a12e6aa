"""A group of consumers, as the Master sees it: its members, which of them is to have which partition, and what each is told.

Members learn of their partitions by events in the responses to their heartbeats, one at a time. Of these, a member is

    CALM       it has no event
    TOLD       it was told to register partitions, or to give some up; its next heartbeats say when it is done

        (heartbeat, it has too many, or may get more)   CALM -> TOLD
        (heartbeat with the event), (EVENT_S pass), (another connection)   TOLD -> CALM

A member first gives partitions up, and the others get them when they are free: the Broker's side (`partition.py`) says so. A
bound group has no events before all of its members are there.

What this rests on: members send heartbeats. One that has sent nothing within LEASE_S, or within LOST_S after its connection has
ended, is gone, and its partitions are free.
"""

import asyncio
import itertools
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from mqbridge.tubemq.server.broker import ServedBroker
from mqbridge.tubemq.server.connection import ServedConnection
from mqbridge.tubemq.server.lanes import GroupLanes, PartitionId
from mqbridge.tubemq.server.partition import LEASE_S as PARTITION_LEASE_S
from mqbridge.tubemq.server.partition import PartitionOwnership, ServedPartition
from mqbridge.tubemq.server.refusals import CodedRefusal

LEASE_S, LOST_S = 30.0, 15.0
"""Time after which a member is gone that has sent nothing, and one whose connection has ended: heartbeats come every 13 s."""
EVENT_S = 30.0
"""Time after which an event is forgotten that the member has not answered: it may have got lost with a response."""
REPORT_GRACE_S = 3.0
"""How long a registered partition may be missing in the report of its owner: the report may have been written before."""
DISCONNECT, CONNECT = 20, 10
"""Types of events: partitions are given up, or registered."""
_rebalances = itertools.count(round(time.time() * 1000))
"""Numbers of events, which are larger than those from before a restart."""


class Mode(Enum):
    """How the members of a group get their partitions."""

    ASSIGNED = "assigned by the Master"
    BOUND = "assigned by the Master, beginning at offsets that members name"
    CHOSEN = "chosen by the members"


class GroupTerms(NamedTuple):
    """What all members of a group have in common; the last three are of bound groups, and `source_count` of CHOSEN ones, too."""

    mode: Mode
    topics: frozenset[str]
    conditions: Mapping[str, frozenset[str]]
    session_key: str = ""
    select_big: bool = False
    source_count: int = 0


@dataclass(slots=True, eq=False)
class Event:
    """What a member is told."""

    number: int
    kind: int
    partitions: list[PartitionId]
    told_at: float


@dataclass(slots=True, eq=False)
class ServedMember:
    """A member of a group."""

    client_id: str
    link: ServedConnection
    alive_at: float
    """Loop time of the last request."""
    required: Mapping[PartitionId, int] = field(default_factory=dict)
    """Offsets that a member of a bound group names."""
    node_id: int = -1
    """Number that a member of a CHOSEN group gives itself; negative: none."""
    event: Event | None = None
    is_settled: bool = False
    """True if it has answered an event."""
    lost_at: float | None = None
    """Loop time at which its connection has ended; None while it has one."""

    def is_gone(self, now: float) -> bool:
        """Return True if it is to be forgotten."""
        return now - self.alive_at > LEASE_S or (self.lost_at is not None and now - self.lost_at > LOST_S)


class ConsumerGroup:
    """See the module."""

    def __init__(self, broker: ServedBroker, name: str, terms: GroupTerms, lanes: GroupLanes) -> None:
        self.name, self.terms, self.lanes = name, terms, lanes
        self.members: dict[str, ServedMember] = {}
        """In the order in which they came."""
        self.partitions: dict[PartitionId, ServedPartition] = {}
        """Those that somebody has had."""
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self._is_allocated = terms.mode is not Mode.BOUND

    # --- members ----------------------------------------------------------------------------------------------------------

    def join(self, link: ServedConnection, client_id: str) -> ServedMember:
        """Return the member with this id, which may be new."""
        member = self.members.get(client_id)
        if member is None:
            member = self.members[client_id] = ServedMember(client_id, link, self._loop.time())
        self.touch(member, link)
        return member

    def touch(self, member: ServedMember, link: ServedConnection) -> None:
        """Take note of a request of a member. What it was told at a connection that has ended may not have reached it."""
        if member.link is not link and not member.link.alive:
            self.forget_event(member)
        member.link, member.alive_at, member.lost_at = link, self._loop.time(), None

    def leave(self, client_id: str) -> None:
        """Forget a member; its partitions are free."""
        self.members.pop(client_id, None)
        for partition in self.partitions.values():
            if partition.offered_to == client_id:
                partition.offered_to = None
            if partition.owner == client_id:
                partition.release()

    def release_all(self) -> None:
        """Free all partitions."""
        for partition in self.partitions.values():
            partition.release()

    def drop(self, link: ServedConnection) -> None:
        """Take note that a connection has ended."""
        for member in self.members.values():
            if member.link is link:
                member.lost_at = self._loop.time()

    def sweep(self) -> None:
        """Forget members that are gone, and free partitions whose owners have given no sign."""
        now = self._loop.time()
        for member in [member for member in self.members.values() if member.is_gone(now)]:
            self.leave(member.client_id)
        for partition in self.partitions.values():
            if partition.owner is not None and now - partition.renewed_at > PARTITION_LEASE_S:
                partition.release()

    # --- what members are told --------------------------------------------------------------------------------------------

    @property
    def is_allocated(self) -> bool:
        """False while members of a bound group are missing."""
        if not self._is_allocated:
            self._is_allocated = len(self.members) >= self.terms.source_count
        return self._is_allocated

    def on_event_done(self, member: ServedMember) -> None:
        """Take note that a member has done what it was told."""
        member.is_settled = True
        self.forget_event(member)

    def forget_event(self, member: ServedMember) -> None:
        """Offer the partitions of an event no longer: the member has registered them, or could not."""
        event, member.event = member.event, None
        for each in () if event is None else event.partitions:
            partition = self.partitions.get(each)
            if partition is not None and partition.offered_to == member.client_id:
                partition.offered_to = None

    def on_report(self, member: ServedMember, reported: Iterable[PartitionId]) -> None:
        """Free what a member does not have any more, by its own report."""
        if member.event is not None:
            return
        kept, latest = set(reported), self._loop.time() - REPORT_GRACE_S
        for partition in self.partitions.values():
            if partition.owner == member.client_id and partition.id not in kept and partition.renewed_at < latest:
                partition.release()

    def next_event(self, member: ServedMember) -> Event | None:
        """Return what a member is to be told now, if there is something."""
        now = self._loop.time()
        if member.event is not None and now - member.event.told_at <= EVENT_S:
            return None
        self.forget_event(member)
        if self.terms.mode is Mode.CHOSEN or not self.is_allocated:
            return None
        wanted = self._targets()[member.client_id]
        surplus = sorted(each.id for each in self.partitions.values() if each.owner == member.client_id and each.id not in wanted)
        missing = [] if surplus else sorted(each for each in wanted if self._is_free(each))
        if not surplus and not missing:
            return None
        for each in missing:
            self.partition(each).offered_to = member.client_id
        member.event = Event(next(_rebalances), DISCONNECT if surplus else CONNECT, surplus or missing, now)
        return member.event

    def _is_free(self, each: PartitionId) -> bool:
        partition = self.partitions.get(each)
        return partition is None or partition.is_free

    def partition(self, each: PartitionId) -> ServedPartition:
        """Return a partition. Raises CodedRefusal if its topic is not known."""
        if each not in self.partitions:
            topic = self._broker.known_topic(each.topic)
            if topic is None:
                raise CodedRefusal(f"topic {each.topic} does not exist", 403)
            self.partitions[each] = ServedPartition(self._broker, self.lanes, self.name, topic, each.partition)
        return self.partitions[each]

    def _targets(self) -> dict[str, set[PartitionId]]:
        """Return which partitions each member is to have: nearly the same number, and as few changes as possible."""
        available = sorted(self.lanes.available(), key=lambda each: (each.partition, each.topic))
        owners = {each: self._holder(each) for each in available}
        required = self._required(available)
        rest = [each for each in available if each not in required]
        held: dict[str, list[PartitionId]] = {client_id: [] for client_id in self.members}
        for each in rest:
            if (owner := owners[each]) in held:
                held[owner].append(each)
        base, extra = divmod(len(rest), len(self.members))
        by_held = sorted(self.members, key=lambda client_id: -len(held[client_id]))
        quotas = {client_id: base + (place < extra) for place, client_id in enumerate(by_held)}
        targets = {client_id: set(held[client_id][: quotas[client_id]]) for client_id in self.members}
        kept = set().union(*targets.values())
        open_ids = [client_id for client_id in self.members for _ in range(quotas[client_id] - len(targets[client_id]))]
        for each, client_id in zip([each for each in rest if each not in kept], open_ids, strict=True):
            targets[client_id].add(each)
        for each, client_id in required.items():
            targets[client_id].add(each)
        return targets

    def _holder(self, each: PartitionId) -> str | None:
        partition = self.partitions.get(each)
        return None if partition is None else partition.owner or partition.offered_to

    def _required(self, available: Iterable[PartitionId]) -> dict[PartitionId, str]:
        """Return the member of a bound group that gets each partition which members have named an offset of."""
        required = {}
        for each in available:
            named = [(member.required[each], client_id) for client_id, member in self.members.items() if each in member.required]
            if named:
                required[each] = (max if self.terms.select_big else min)(named)[1]
        return required

    # --- the end ----------------------------------------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        """True if no consumer has messages that are not confirmed."""
        return all(partition.is_settled for partition in self.partitions.values())

    @property
    def owned(self) -> int:
        """Number of partitions that consumers have."""
        return sum(partition.state is not PartitionOwnership.FREE for partition in self.partitions.values())
