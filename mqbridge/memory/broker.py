"""What a memory cluster holds, who reads it, and the faults that a test can ask of it.

Group membership is decided here and at once: partitions are dealt to the members in turn, and whoever loses one has
its lane ended.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mqbridge.errors import ClusterError, Unreachable
from mqbridge.message import Message
from mqbridge.net.connectivity import Connectivity

ADDRESS = "memory:0"
"""Where the one server of every memory cluster seems to be."""


@dataclass(slots=True, eq=False)
class StoredPartition:
    """Messages from the offset `first` on."""

    first: int = 0
    messages: list[Message] = field(default_factory=list)
    readers: set[asyncio.Event] = field(default_factory=set)

    @property
    def next(self) -> int:
        """The offset of the next message."""
        return self.first + len(self.messages)

    def append(self, messages: Sequence[Message]) -> None:
        """Store them and wake the readers."""
        self.messages += messages
        for reader in self.readers:
            reader.set()


@dataclass(slots=True, eq=False)
class Progress:
    """How far a group has read one partition: everything below `committed`, and `acknowledged_ranges` (first to next) above."""

    committed: int
    acknowledged_ranges: dict[int, int] = field(default_factory=dict)

    def acknowledge(self, first: int, next_: int) -> None:
        """This range is done."""
        if next_ <= self.committed:
            return
        self.acknowledged_ranges[first] = next_
        while self.committed in self.acknowledged_ranges:
            self.committed = self.acknowledged_ranges.pop(self.committed)

    def covers(self, offset: int) -> bool:
        """Whether this offset is done."""
        return offset < self.committed or any(first <= offset < next_ for first, next_ in self.acknowledged_ranges.items())


class Member(Protocol):
    """An inbound, as far as the broker is concerned."""

    topics: tuple[str, ...]

    def assign(self, topic: str, number: int, /) -> None:
        """This partition is yours."""

    def revoke(self, topic: str, number: int, /) -> None:
        """This partition is yours no more; nothing happens if it was not."""

    def fail(self, error: ClusterError, /) -> None:
        """It cannot go on."""


@dataclass(slots=True)
class Faults:
    """What goes wrong, until it is set back."""

    refuse: Callable[[Message], str | None] | None = None
    """Why this message is refused, None where it is not."""
    transient: int = 0
    """So many attempts to store fail before one succeeds."""
    fatal: str | None = None
    """Why everything is refused."""
    no_topics: str | None = None
    """Why no topic can be made or grown."""
    no_groups: str | None = None
    """Why no group can be joined."""
    hold_receipts: bool = False
    """Store, but say nothing until `Broker.release_receipts`."""
    receipt_delay_s: float = 0.0
    receive_delay_s: float = 0.0


class Broker:
    """Topics, groups and faults of one broker name."""

    def __init__(self) -> None:
        self.topics: dict[str, list[StoredPartition]] = {}
        self.progress: dict[tuple[str, str, int], Progress] = {}
        self.faults = Faults()
        self.connected = asyncio.Event()
        self.connected.set()
        self.held: list[Callable[[], None]] = []
        self.clients: list[Connectivity] = []
        """Who is told of an outage."""
        self._members: dict[str, list[Member]] = {}
        self._owners: dict[tuple[str, str, int], Member] = {}

    def release_receipts(self) -> None:
        """Send the receipts that were held."""
        self.faults.hold_receipts = False
        held, self.held = self.held, []
        for send in held:
            send()

    def disconnect(self) -> None:
        """Nothing can be stored and every lane ends, until `reconnect`."""
        self.connected.clear()
        for client in self.clients:
            client.failed(ADDRESS, Unreachable("the memory broker is disconnected"))
        for (_, topic, number), member in list(self._owners.items()):
            member.revoke(topic, number)
        self._owners.clear()

    def reconnect(self) -> None:
        """Sends go on, lanes are assigned anew."""
        self.connected.set()
        for client in self.clients:
            client.answered(ADDRESS)
            client.ended(ADDRESS)
        for group in self._members:
            self.balance(group)

    def revoke(self, topic: str, number: int) -> None:
        """End the lanes of one partition; it is assigned anew at once, from what was acknowledged."""
        for (group, owned, place), member in list(self._owners.items()):
            if (owned, place) == (topic, number):
                self.let_go(group, topic, number)
                member.revoke(topic, number)
                self.balance(group)

    def gap(self, topic: str, number: int, first: int) -> None:
        """Drop what is below `first`, read or not."""
        partition = self.topics[topic][number]
        del partition.messages[: first - partition.first]
        partition.first = first

    def fail(self, group: str, error: ClusterError) -> None:
        """Throw every member out of the group with this error."""
        for member in list(self._members.get(group, ())):
            member.fail(error)

    def create(self, topic: str, partitions: int) -> None:
        """Create or grow a topic."""
        stored = self.topics.setdefault(topic, [])
        stored.extend(StoredPartition() for _ in range(partitions - len(stored)))
        for group in self._members:
            self.balance(group)

    def join(self, group: str, member: Member) -> None:
        """A new member of the group."""
        self._members.setdefault(group, []).append(member)
        self.balance(group)

    def leave(self, group: str, member: Member) -> None:
        """The member is gone; its partitions go to the others."""
        if member in (members := self._members.get(group, [])):
            members.remove(member)
            for key in [key for key, owner in self._owners.items() if owner is member]:
                del self._owners[key]
            self.balance(group)

    def holders(self, group: str, topic: str) -> dict[str, list[int]]:
        """By member the partitions of the topic that it has; members are named by their turn."""
        members = [member for member in self._members.get(group, ()) if topic in member.topics]
        return {
            f"member-{turn}": [
                number for number in range(len(self.topics[topic])) if self._owners.get((group, topic, number)) is member
            ]
            for turn, member in enumerate(members)
        }

    def let_go(self, group: str, topic: str, number: int) -> None:
        """Nobody of the group has this partition until it is balanced again."""
        self._owners.pop((group, topic, number), None)

    def balance(self, group: str) -> None:
        """Deal the partitions of every topic to those members that want it, in turn."""
        if not self.connected.is_set():
            return
        for topic, partitions in self.topics.items():
            members = [member for member in self._members.get(group, ()) if topic in member.topics]
            for number in range(len(partitions) if members else 0):
                key, due = (group, topic, number), members[number % len(members)]
                owner = self._owners.get(key)
                if owner is not due:
                    if owner is not None:
                        owner.revoke(topic, number)
                    self._owners[key] = due
                    due.assign(topic, number)


_brokers: dict[str, Broker] = {}


def broker(name: str) -> Broker:
    """The broker of this name; made when first asked for."""
    return _brokers.setdefault(name, Broker())


def forget(name: str) -> None:
    """Drop a broker and all it holds."""
    _brokers.pop(name, None)
