"""Broker of a memory cluster, which exists in this process only: its topics, consumer groups and injected faults.

The broker rebalances a group immediately: it assigns partitions round robin to the members. A member that loses a partition
ends the lane with which it reads that partition.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mqbridge.errors import ClusterError, Unreachable
from mqbridge.message import Message
from mqbridge.net.connectivity import Connectivity

ADDRESS = "memory:0"
"""Address that every memory cluster reports to its `Connectivity` for its only server."""


@dataclass(slots=True, eq=False)
class StoredPartition:
    """The stored messages of one partition; `first` is the offset of the oldest. `readers` are set when messages are added."""

    first: int = 0
    messages: list[Message] = field(default_factory=list)
    readers: set[asyncio.Event] = field(default_factory=set)

    @property
    def next(self) -> int:
        """The offset of the next message."""
        return self.first + len(self.messages)

    def append(self, messages: Sequence[Message]) -> None:
        """Store the messages and wake the readers."""
        self.messages += messages
        for reader in self.readers:
            reader.set()


@dataclass(slots=True, eq=False)
class Progress:
    """Acknowledged offsets of a group in a partition: all below `committed`, and the ranges above it.

    `acknowledged_ranges` maps the first offset of each range to the offset after its last one.
    """

    committed: int
    acknowledged_ranges: dict[int, int] = field(default_factory=dict)

    def acknowledge(self, first: int, next_: int) -> None:
        """Mark the offsets from `first` to before `next_` as acknowledged."""
        if next_ <= self.committed:
            return
        self.acknowledged_ranges[first] = next_
        while self.committed in self.acknowledged_ranges:
            self.committed = self.acknowledged_ranges.pop(self.committed)

    def covers(self, offset: int) -> bool:
        """Return True if this offset is acknowledged."""
        return offset < self.committed or any(first <= offset < next_ for first, next_ in self.acknowledged_ranges.items())


class GroupMember(Protocol):
    """A member of a group: the part of an inbound that the broker calls."""

    topics: tuple[str, ...]
    name: str
    """The name that operators see."""

    def assign(self, topic: str, number: int, /) -> None:
        """Start to read a newly assigned partition."""

    def revoke(self, topic: str, number: int, /) -> None:
        """Stop reading a partition; do nothing if it is not assigned to this member."""

    def keeps(self, topic: str, number: int, /) -> bool:
        """Announce that the member is to give a partition up; True if it still waits for acknowledgements before it does."""

    def fail(self, error: ClusterError, /) -> None:
        """End the member with this error."""


@dataclass(slots=True)
class Faults:
    """Injected faults; each stays active until a test resets it, `transient` until it has counted down."""

    refuse: Callable[[Message], str | None] | None = None
    """Function that returns the reason why a message is refused, or None to store it."""
    transient: int = 0
    """Number of attempts to store a send that fail before one succeeds; the outbound repeats them itself."""
    transient_error: str = "the broker cannot store messages now"
    """Error text of these attempts."""
    fatal: str | None = None
    """Error text of every send, which fails with FATAL; None lets sends succeed."""
    create_error: str | None = None
    """Error text when a topic is created or grown; None allows it."""
    join_error: str | None = None
    """Error text when a group is joined; None allows it."""
    hold_receipts: bool = False
    """Store messages, but withhold their receipts until `Broker.release_receipts`."""
    receipt_delay_s: float = 0.0
    """Time from storing a send to its receipt."""
    receive_delay_s: float = 0.0
    """Time that a lane waits before each read."""


class Broker:
    """Topics, groups and faults of one named broker."""

    def __init__(self) -> None:
        self.topics: dict[str, list[StoredPartition]] = {}
        self.progress: dict[tuple[str, str, int], Progress] = {}
        """Acknowledged offsets, by group, topic and partition number."""
        self.faults = Faults()
        self.connected = asyncio.Event()
        self.connected.set()
        """Set while the broker is reachable: always, except between `disconnect` and `reconnect`."""
        self.withheld_receipts: list[Callable[[], None]] = []
        """Functions that send the receipts which `Faults.hold_receipts` withholds."""
        self.connectivities: list[Connectivity] = []
        """Connectivity states of the connected clients; they follow `disconnect` and `reconnect`."""
        self._members: dict[str, list[GroupMember]] = {}
        """Members by group, in the order in which they joined."""
        self._owners: dict[tuple[str, str, int], GroupMember] = {}
        """The member that reads a partition, by group, topic and partition number."""

    def release_receipts(self) -> None:
        """Send the withheld receipts, and withhold no more."""
        self.faults.hold_receipts = False
        receipts, self.withheld_receipts = self.withheld_receipts, []
        for send_receipt in receipts:
            send_receipt()

    def disconnect(self) -> None:
        """Make the broker unreachable until `reconnect`: sends wait, and every lane ends."""
        self.connected.clear()
        for connectivity in self.connectivities:
            connectivity.record_failure(ADDRESS, Unreachable("the memory broker is disconnected"))
        for (_, topic, number), member in list(self._owners.items()):
            member.revoke(topic, number)
        self._owners.clear()

    def reconnect(self) -> None:
        """Make the broker reachable again: sends resume, and partitions are assigned again."""
        self.connected.set()
        for connectivity in self.connectivities:
            connectivity.record_response(ADDRESS)  # the broker can be reached again
            connectivity.record_end(ADDRESS)  # memory clusters have no connections, so none stays open
        for group in self._members:
            self.rebalance(group)

    def revoke(self, topic: str, number: int) -> None:
        """End the lanes of one partition and assign it again at once; reading resumes at the acknowledged offset."""
        for (group, owned_topic, owned_number), member in list(self._owners.items()):
            if (owned_topic, owned_number) == (topic, number):
                self.unassign(group, topic, number)
                member.revoke(topic, number)
                self.rebalance(group)

    def delete_below(self, topic: str, number: int, first: int) -> None:
        """Delete the messages below the offset `first`, even unread ones: their readers get a GapError."""
        partition = self.topics[topic][number]
        del partition.messages[: first - partition.first]
        partition.first = first

    def fail(self, group: str, error: ClusterError) -> None:
        """End every member of the group with this error."""
        for member in list(self._members.get(group, ())):
            member.fail(error)

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic with this number of partitions, or grow it to this number."""
        stored_partitions = self.topics.setdefault(topic, [])
        stored_partitions.extend(StoredPartition() for _ in range(partitions - len(stored_partitions)))
        for group in self._members:
            self.rebalance(group)

    def delete(self, topic: str) -> None:
        """Delete a topic with the progress of its groups; sends of open outbounds fail with TopicChanged."""
        del self.topics[topic]
        self.progress = {key: progress for key, progress in self.progress.items() if key[1] != topic}

    def join(self, group: str, member: GroupMember) -> None:
        """Add a member to the group and rebalance."""
        self._members.setdefault(group, []).append(member)
        self.rebalance(group)

    def leave(self, group: str, member: GroupMember) -> None:
        """Remove a member; the others get its partitions."""
        if member in (members := self._members.get(group, [])):
            members.remove(member)
            for key in [key for key, owner in self._owners.items() if owner is member]:
                del self._owners[key]
            self.rebalance(group)

    def assignments(self, group: str, topic: str) -> dict[str, list[int]]:
        """Return the assigned partitions of a topic by member: its name, and its number in the order in which they joined."""
        members = [member for member in self._members.get(group, ()) if topic in member.topics]
        return {
            f"{member.name}-{index}": [
                number for number in range(len(self.topics[topic])) if self._owners.get((group, topic, number)) is member
            ]
            for index, member in enumerate(members)
        }

    def unassign(self, group: str, topic: str, number: int) -> None:
        """Remove the owner of this partition; the next rebalance of the group assigns it again."""
        self._owners.pop((group, topic, number), None)

    def rebalance(self, group: str) -> None:
        """Assign the partitions of every topic round robin to the members that subscribe to it."""
        if not self.connected.is_set():
            return
        for topic, partitions in self.topics.items():
            members = [member for member in self._members.get(group, ()) if topic in member.topics]
            for number in range(len(partitions) if members else 0):
                key, new_owner = (group, topic, number), members[number % len(members)]
                owner = self._owners.get(key)
                if owner is not new_owner and not (owner is not None and owner.keeps(topic, number)):
                    if owner is not None:
                        owner.revoke(topic, number)
                    self._owners[key] = new_owner
                    new_owner.assign(topic, number)


_brokers: dict[str, Broker] = {}


def get_broker(name: str) -> Broker:
    """Return the broker of this name, which is created by the first call."""
    return _brokers.setdefault(name, Broker())


def delete_broker(name: str) -> None:
    """Delete a broker with its topics and groups."""
    _brokers.pop(name, None)
