"""What people ask of a cluster's groups and topics, by the web interfaces of Master and Brokers.

The Brokers list a group some 5 s after it was made or moved, when they write their offsets down; until then it is not listed, and
cannot be removed.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

from mqbridge.adapter.operations import Member
from mqbridge.adapter.topics import Bounds
from mqbridge.errors import ClusterError, Failure, RemoteProtocolError
from mqbridge.message import Position
from mqbridge.retention import LATE, group_warnings, target_warnings
from mqbridge.tubemq.client.admin import USER, Admin, Node, StoredRange
from mqbridge.tubemq.client.member import FRESH_ID
from mqbridge.tubemq.client.range_reader import INDEX_ENTRY_BYTES
from mqbridge.tubemq.wire.text import STORE_STEP

_SETTINGS = ("numPartitions", "numTopicStores", "deletePolicy", "acceptPublish", "acceptSubscribe", "unflushThreshold")


_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
"""Of the time in a `deletePolicy`, in seconds."""

READERS = "mqbridge_reader_"
"""What the groups of those that read without a group of their own begin with."""


class TubeMQOperations:
    """The contract's `Operations`, where `admin_url` is set; `names` tells the partitions of a topic."""

    backlog_unit = "messages of the partition's store"

    def __init__(self, operator: "Operator", names: Callable[[str], Awaitable[list[str]]]) -> None:
        self._operator, self._names = operator, names

    async def groups(self, topic: str) -> list[str]:
        """Groups with an offset on the topic; those of readers without a group are left out."""
        return [group for group in await self._operator.groups(topic) if not group.startswith(READERS)]

    async def backlog(self, topic: str, group: str) -> Mapping[str, int]:
        """Messages of the partition's store: one index serves all partitions of a store."""
        return entries_between(await self._operator.committed(topic, group), await self._operator.stored(topic))

    async def members(self, topic: str, group: str) -> list[Member]:
        """Who holds partitions at the Brokers."""
        return await self._operator.members(topic, group)

    async def move(self, topic: str, group: str, positions: Mapping[str, Position]) -> None:
        """Set the confirmed offsets at the Brokers; they are listed some seconds later."""
        await self._operator.move(topic, group, positions)

    async def position_at(self, topic: str, time_ms: int) -> Mapping[str, Position]:
        """TubeMQ has no call for it."""
        raise ClusterError(f"TubeMQ does not say what it stored when: {time_ms} of {topic!r} cannot be found", Failure.FATAL)

    async def newest(self, topic: str, count: int) -> Mapping[str, Position]:
        """Counted back in the index that a store's partitions share."""
        stored = counted_back(await self._operator.stored(topic), count)
        return dict.fromkeys(await self._names(topic), (0, 0)) | stored

    async def settings(self, topic: str) -> Mapping[str, str]:
        """As the Master has it."""
        return await self._operator.settings(topic)

    async def warnings(self, topic: str, group: str | None = None, planned: Collection[str] = ()) -> list[str]:
        """Brokers delete what is older than `deletePolicy` says, read or not.

        They do not tell when a message was stored. Once something was deleted, a store's range is what came in that time: its
        first half is taken for the older half of the time.
        """
        policies = await self._operator.policies(topic)
        if not policies:
            return []
        kept_s, policy = min(policies)
        kept = f"deletePolicy={policy}"
        if group is None:
            return target_warnings(topic, kept, kept_s)
        committed, stored = await self._operator.committed(topic, group), await self._operator.stored(topic)
        return group_warnings(
            topic,
            group,
            kept,
            {name: (offset,) for name, offset in committed.items()},
            {name: Bounds((one.first,), (one.next,)) for name, one in stored.items()},
            {name: (_late_offset(one),) for name, one in stored.items()},
        )


class Operator(Admin):
    """The administrators' API with what changes and shows groups."""

    async def members(self, topic: str, group: str) -> list[Member]:
        """The clients that hold partitions of the topic as the group; one that was killed shows until its lease ends (35 s)."""
        held: dict[str, list[str]] = {}
        for node in await self.brokers():
            for owner, of, partition, client in await self._held(node):
                if (owner, of) == (group, topic):
                    held.setdefault(_member_of(client), []).append(f"{node.id}:{partition}")
        return [Member(client, "", tuple(names)) for client, names in sorted(held.items())]

    async def move(self, topic: str, group: str, positions: Mapping[str, Position]) -> None:
        """Set the group's confirmed offsets. FATAL while it has members: they would take it for lost data."""
        if present := await self.members(topic, group):
            names = ", ".join(member.id for member in present)
            raise ClusterError(f"group {group!r} is being consumed by {names}: stop it, then move it", Failure.FATAL)
        nodes = {str(node.id): node for node in await self.brokers()}
        if unknown := positions.keys() - (await self._numbered(topic)):
            raise ClusterError(f"topic {topic!r} has no partition {', '.join(sorted(unknown))}", Failure.FATAL)
        for name, position in positions.items():
            broker, _, partition = name.partition(":")
            if broker not in nodes:
                raise ClusterError(f"there is no Broker online for partition {name} of {topic}", Failure.RETRY)
            place = {"topicName": topic, "groupName": group, "partitionId": partition}
            method = "admin_manual_set_current_offset"
            await self._broker(nodes[broker], method, **place, manualOffset=position[0], modifyUser=USER)

    async def _numbered(self, topic: str) -> set[str]:
        """The names of the topic's partitions, as it is configured."""
        return {
            f"{broker}:{store * STORE_STEP + number}"
            for broker, entry in (await self._deployed(topic)).items()
            for store in range(entry["numTopicStores"])
            for number in range(entry["numPartitions"])
        }

    async def policies(self, topic: str) -> list[tuple[float, str]]:
        """For how many seconds each Broker keeps the topic's messages, and its words for it; what cannot be read is left out."""
        found = [str(entry.get("deletePolicy")) for entry in (await self._deployed(topic)).values()]
        return [(kept_s, policy) for policy in found if (kept_s := _kept_s(policy)) is not None]

    async def settings(self, topic: str) -> dict[str, str]:
        """As the Master has it; what differs between Brokers stands there once for each."""
        said: dict[str, dict[int, str]] = {}
        for broker, entry in (await self._deployed(topic)).items():
            for name in _SETTINGS:
                said.setdefault(name, {})[broker] = str(entry.get(name))
        return {name: _joined(values) for name, values in said.items()}

    async def sweep(self, prefix: str) -> None:
        """Remove the groups whose names begin so and that nobody holds partitions as."""
        for node in await self.brokers():
            answer = await self._broker(node, "admin_query_group")
            listed = {name for entry in answer["dataSet"] for name in entry["groupName"] if name.startswith(prefix)}
            idle = sorted(listed - {group for group, _, _, _ in await self._held(node)})
            if idle:
                await self._broker(node, "admin_rmv_offset", groupName=",".join(idle), modifyUser=USER)

    async def _held(self, node: Node) -> list[tuple[str, str, str, str]]:
        """Group, topic, partition number and client of everything that is held at a Broker."""
        answer = await self._broker(node, "admin_query_consumer_regmap")
        try:
            return [(*_place(entry["Partition"]), entry["Consumer"]) for entry in answer["dataSet"]]
        except (KeyError, ValueError) as error:
            raise RemoteProtocolError(f"the members at {node.url} cannot be read: {error}") from error


def _member_of(client: str) -> str:
    """The member that a client id at a Broker stands for: a partition whose requests got lost has one of its own."""
    member, _, run = client.rpartition(FRESH_ID)
    return member if member and run.isdecimal() else client


def _place(text: str) -> tuple[str, str, str]:
    group, topic, partition = text.split(":")
    return group, topic, partition


def _joined(values: Mapping[int, str]) -> str:
    if len(set(values.values())) == 1:
        return next(iter(values.values()))
    return ", ".join(f"{value} at {broker}" for broker, value in values.items())


def _kept_s(policy: str) -> float | None:
    """The time of a policy such as `delete,168h`; without a unit it counts hours."""
    method, _, time = policy.partition(",")
    number, unit = (time[:-1], time[-1:]) if time[-1:] in _UNITS else (time, "h")
    return int(number) * _UNITS[unit] if method == "delete" and number.isdecimal() else None


def _late_offset(stored: StoredRange) -> int:
    """The first offset of the younger half; the first of all as long as nothing was deleted."""
    return stored.first + (int((stored.next - stored.first) * LATE) if stored.first else 0)


def entries_between(committed: Mapping[str, int], stored: Mapping[str, StoredRange]) -> dict[str, int]:
    """Messages of each partition's store from the committed offset to the end: as one index serves a store, at least its own."""
    return {
        name: max(0, stored[name].next - max(offset, stored[name].first)) // INDEX_ENTRY_BYTES
        for name, offset in committed.items()
        if name in stored
    }


def counted_back(stored: Mapping[str, StoredRange], count: int) -> dict[str, Position]:
    """So far back in each store's index that each of its partitions has that many, if it gets half of its fair share at least."""
    return {
        name: (max(one.first, one.next - 2 * count * _partitions_of_store(name, stored) * INDEX_ENTRY_BYTES), 0)
        for name, one in stored.items()
    }


def _partitions_of_store(name: str, names: Iterable[str]) -> int:
    store = _store(name)
    return sum(_store(other) == store for other in names)


def _store(name: str) -> tuple[str, int]:
    broker, _, partition = name.partition(":")
    return broker, int(partition) // STORE_STEP
