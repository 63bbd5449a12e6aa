"""Administration of groups and topics through the web APIs of Master and Brokers.

Brokers list and remove a group only after they have written its offsets to disk, about 5 s after it was created or moved.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

from mqbridge.adapter.operations import Member
from mqbridge.adapter.tools.retention import LATE_FRACTION, group_warnings, target_warnings
from mqbridge.adapter.topics import Bounds
from mqbridge.errors import ClusterError, Failure, RemoteProtocolError
from mqbridge.message import Position
from mqbridge.net.http_client import reads_json
from mqbridge.tubemq.adapter.names import GROUP_NAME
from mqbridge.tubemq.client.admin.admin import USER, Node, StoredRange, partition_count
from mqbridge.tubemq.client.admin.topic_removal import OFFSETS_WRITTEN_S, TopicRemovalAdmin
from mqbridge.tubemq.client.consumer.group_member import FRESH_ID_SEPARATOR
from mqbridge.tubemq.client.consumer.partition_state import INDEX_ENTRY_BYTES
from mqbridge.tubemq.wire.string_formats import STORE_STEP, partition_ids
from mqbridge.wire.limits import check_partitions, is_number

_SETTINGS = ("numPartitions", "numTopicStores", "deletePolicy", "acceptPublish", "acceptSubscribe", "unflushThreshold")
"""The settings of a topic that `settings` shows, by their names at the Master."""

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
"""Time units of a `deletePolicy`, each in seconds."""

READER_GROUP_PREFIX = "mqbridge_reader_"
"""Prefix of the temporary groups that readers use."""


class TubeMQOperations:
    """`Operations` of the adapter contract, available with `admin_url`; `names(topic)` returns the topic's partition names.

    A store is the part of a topic at a Broker that has one index: several partitions can share a store and its offsets.
    """

    backlog_unit = "messages (estimated)"
    """What `backlog` counts, for the user."""

    def __init__(self, group_admin: "GroupAdmin", names: Callable[[str], Awaitable[list[str]]]) -> None:
        self._group_admin, self._names = group_admin, names

    async def groups(self, topic: str) -> list[str]:
        """Return the groups with an offset on the topic, without the temporary groups of readers."""
        return [group for group in await self._group_admin.groups(topic) if not group.startswith(READER_GROUP_PREFIX)]

    async def backlog(self, topic: str, group: str) -> Mapping[str, int]:
        """Return the backlog by partition, estimated from that of its store: all partitions of a store share one index."""
        return backlog_by_partition(await self._group_admin.committed(topic, group), await self._group_admin.stored(topic))

    async def members(self, topic: str, group: str) -> list[Member]:
        """Return the group's members, with the partitions of the topic that they hold at the Brokers."""
        return await self._group_admin.members(topic, group)

    async def move(self, topic: str, group: str, positions: Mapping[str, Position]) -> None:
        """Set the confirmed offsets at the Brokers, which report them some seconds later."""
        await self._group_admin.move(topic, group, positions)

    async def delete_group(self, topic: str, group: str) -> None:
        """Delete the confirmed offsets at the Brokers, which takes OFFSETS_WRITTEN_S."""
        await self._group_admin.delete_group(topic, group)

    async def position_at(self, topic: str, time_ms: int) -> Mapping[str, Position]:
        """Raise ClusterError: TubeMQ has no lookup of positions by time."""
        raise ClusterError(
            f"TubeMQ cannot look up positions by time (here: topic {topic!r} at {time_ms} ms since the epoch); "
            "use earliest, latest or a position",
            Failure.FATAL,
        )

    async def newest(self, topic: str, count: int) -> Mapping[str, Position]:
        """Return, by partition name, a position with `count` or more messages after it, as `positions_before_end` does.

        A partition without stored messages gets the first position.
        """
        positions = positions_before_end(await self._group_admin.stored(topic), count)
        return dict.fromkeys(await self._names(topic), (0, 0)) | positions

    async def settings(self, topic: str) -> Mapping[str, str]:
        """Return the topic's settings at the Master."""
        return await self._group_admin.settings(topic)

    async def warnings(self, topic: str, group: str | None = None, planned: Collection[str] = ()) -> list[str]:
        """Warn of data that `deletePolicy` will delete: Brokers delete by age, whether the data was read or not.

        Brokers do not send the time at which a message was stored. Once a store has deleted data, its stored range spans about
        the retention time. So a group is late while its offset is in the first half of the range. Without `group` the warnings
        are for a topic that is only written to. The groups `planned` do not matter, since deletion by age does not depend on
        groups.
        """
        policies = await self._group_admin.policies(topic)
        if not policies:
            return []
        retention_s, policy = min(policies)  # the shortest retention of all Brokers
        retention = f"deletePolicy={policy}"
        if group is None:
            return target_warnings(topic, retention, retention_s)
        committed, stored = await self._group_admin.committed(topic, group), await self._group_admin.stored(topic)
        return group_warnings(
            topic,
            group,
            retention,
            {name: (offset,) for name, offset in committed.items()},
            {name: Bounds((store.first,), (store.next,)) for name, store in stored.items()},
            {name: (_late_offset(store),) for name, store in stored.items()},
            is_contiguous=False,  # the partitions of a store share its offsets
        )


class GroupAdmin(TopicRemovalAdmin):
    """The administration API, extended by calls that show and change groups, and by calls that show a topic's settings."""

    @reads_json
    async def members(self, topic: str, group: str) -> list[Member]:
        """Return the group's clients that consume the topic; a killed client is listed until its lease ends (35 s)."""
        held: dict[str, list[str]] = {member_id: [] for member_id in await self._subscribers(topic, group)}
        for node in await self.brokers():
            for registered_group, registered_topic, partition, client_id in await self._registrations(node):
                if (registered_group, registered_topic) == (group, topic):
                    held.setdefault(_member_id(client_id), []).append(f"{node.id}:{partition}")
        return [Member(member_id, address="", partitions=tuple(names)) for member_id, names in sorted(held.items())]

    async def _subscribers(self, topic: str, group: str) -> list[str]:
        """Return the members that the Master knows; none for a name that the web API refuses, see `GROUP_NAME`."""
        if GROUP_NAME.problem(group) is not None:
            return []
        response = await self._master("admin_query_consume_group_detail", consumeGroup=group)
        return [entry["consumerId"] for entry in response["data"]] if topic in response["topicSet"] else []

    async def move(self, topic: str, group: str, positions: Mapping[str, Position]) -> None:
        """Set the group's confirmed offsets. Raises ClusterError, which is FATAL while the group has members.

        A member would take the change of its offset for lost data, and report a gap.
        """
        await self._check_unused(topic, group, "move the group's offsets")
        nodes = {str(node.id): node for node in await self.brokers()}
        if unknown := positions.keys() - (await self._partition_names(topic)):
            raise ClusterError(f"topic {topic!r} has no partition {', '.join(sorted(unknown))}", Failure.FATAL)
        for name, position in positions.items():
            broker, _, partition = name.partition(":")
            if broker not in nodes:
                raise ClusterError(f"the Broker of partition {name} of topic {topic!r} is not online", Failure.RETRY)
            target = {"topicName": topic, "groupName": group, "partitionId": partition}
            method = "admin_manual_set_current_offset"
            await self._broker(nodes[broker], method, **target, manualOffset=position[0], modifyUser=USER)

    async def delete_group(self, topic: str, group: str) -> None:
        """Delete the group's offsets on the topic, at all Brokers. Raises ClusterError, which is FATAL while it has members.

        Brokers delete only what they have on disk already. So this waits until they have written what they have in memory, and
        deletes that, too.
        """
        await self._delete_written(topic, group)
        await asyncio.sleep(OFFSETS_WRITTEN_S)
        await self._delete_written(topic, group)

    async def _delete_written(self, topic: str, group: str) -> None:
        await self._check_unused(topic, group, "delete the group")
        for node in await self.brokers():
            await self._broker(node, "admin_rmv_offset", groupName=group, topicName=topic, modifyUser=USER)

    async def _check_unused(self, topic: str, group: str, purpose: str) -> None:
        """Raise ClusterError (FATAL) if the group has members; `purpose` is a verb phrase that says what to do after them."""
        if present := await self.members(topic, group):
            names = ", ".join(member.id for member in present)
            raise ClusterError(f"group {group!r} has members ({names}): stop them, then {purpose}", Failure.FATAL)

    @reads_json
    async def _partition_names(self, topic: str) -> set[str]:
        """Return the names of the topic's partitions as the Master has configured them, also at Brokers that are offline."""
        configs = await self._topic_configs(topic)
        check_partitions(sum(partition_count(topic, entry) for entry in configs.values()), f"topic {topic}")
        return {
            f"{broker}:{partition}"
            for broker, entry in configs.items()
            for partition in partition_ids(entry["numPartitions"], entry["numTopicStores"])
        }

    @reads_json
    async def policies(self, topic: str) -> list[tuple[float, str]]:
        """Return (retention in seconds, policy text) of the topic at each Broker, without policies that cannot be parsed."""
        policies = [str(entry.get("deletePolicy")) for entry in (await self._topic_configs(topic)).values()]
        return [(retention_s, policy) for policy in policies if (retention_s := _retention_s(policy)) is not None]

    @reads_json
    async def settings(self, topic: str) -> dict[str, str]:
        """Return the topic's settings at the Master, by name; if Brokers have different values, the value at each Broker."""
        settings: dict[str, dict[int, str]] = {}
        for broker, entry in (await self._topic_configs(topic)).items():
            for name in _SETTINGS:
                settings.setdefault(name, {})[broker] = str(entry.get(name))
        return {name: _format_values(values) for name, values in settings.items()}

    @reads_json
    async def remove_idle_groups(self, prefix: str) -> None:
        """Remove groups without members whose names begin with `prefix`, such as those left by readers. Raises ClusterError."""
        for node in await self.brokers():
            response = await self._broker(node, "admin_query_group")
            listed = {name for entry in response["dataSet"] for name in entry["groupName"] if name.startswith(prefix)}
            idle = sorted(listed - {group for group, _, _, _ in await self._registrations(node)})
            if idle:
                await self._broker(node, "admin_rmv_offset", groupName=",".join(idle), modifyUser=USER)

    @reads_json
    async def _registrations(self, node: Node) -> list[tuple[str, str, str, str]]:
        """Return (group, topic, partition number, client id) of every consumer's registration at a Broker."""
        response = await self._broker(node, "admin_query_consumer_regmap")
        try:
            return [(*_parse_registration(entry["Partition"]), entry["Consumer"]) for entry in response["dataSet"]]
        except (KeyError, ValueError) as error:
            raise RemoteProtocolError(f"the list of registrations from {node.url} cannot be parsed: {error}") from error


def _member_id(client_id: str) -> str:
    """Return the id that the member has at the Master.

    After an abandoned request the member registers at the Broker with a new client id: its own id with a suffix.
    """
    member, _, suffix = client_id.rpartition(FRESH_ID_SEPARATOR)
    return member if member and suffix.isdecimal() else client_id


def _parse_registration(text: str) -> tuple[str, str, str]:
    """Parse `group:topic:partition`."""
    group, topic, partition = text.split(":")
    return group, topic, partition


def _format_values(values: Mapping[int, str]) -> str:
    """Return the value of a setting, given by Broker id: one value if all are equal, else `VALUE at BROKER, …`."""
    if len(set(values.values())) == 1:
        return next(iter(values.values()))
    return ", ".join(f"{value} at {broker}" for broker, value in values.items())


def _retention_s(policy: str) -> float | None:
    """Return the retention time in seconds of a policy such as `delete,168h`; None for other texts. The default unit is hours."""
    method, _, time = policy.partition(",")
    number, unit = (time[:-1], time[-1:]) if time[-1:] in _UNITS_S else (time, "h")
    return int(number) * _UNITS_S[unit] if method == "delete" and is_number(number) else None


def _late_offset(stored: StoredRange) -> int:
    """Return the offset before which a group is late: the middle of the stored range.

    A range that begins at 0 has lost nothing to retention yet, so its age is unknown; no group is late in it.
    """
    return stored.first + (int((stored.next - stored.first) * LATE_FRACTION) if stored.first else 0)


def backlog_by_partition(committed: Mapping[str, int], stored: Mapping[str, StoredRange]) -> dict[str, int]:
    """Return, by partition name, the number of messages that its store has for it after the committed offset, rounded up.

    That is the number of messages of the store, divided by the number of its partitions. The index does not tell to which
    partition a message belongs. So this is the partition's own backlog if the messages of its store are spread evenly, and the
    sum over all partitions counts each message of a store once.
    """
    partitions = Counter(map(_store_of, stored))
    return {
        name: -(-max(0, stored[name].next - max(offset, stored[name].first)) // (INDEX_ENTRY_BYTES * partitions[_store_of(name)]))
        for name, offset in committed.items()
        if name in stored
    }


def positions_before_end(stored: Mapping[str, StoredRange], count: int) -> dict[str, Position]:
    """Return, by partition name, a position with `count` or more messages after it, or the first position if there are fewer.

    The partitions of a store share its index. This assumes that each of n partitions has at least 1/(2n) of the index entries, so
    it counts back 2n entries for each message; a partition with a smaller part may get fewer messages.
    """
    return {
        name: (max(store.first, store.next - 2 * count * _count_partitions(name, stored) * INDEX_ENTRY_BYTES), 0)
        for name, store in stored.items()
    }


def _count_partitions(name: str, names: Iterable[str]) -> int:
    """Return how many of the partitions `names` are in the same store as partition `name`."""
    store = _store_of(name)
    return sum(_store_of(other) == store for other in names)


def _store_of(name: str) -> tuple[str, int]:
    """Return Broker id and store number of a partition, by its name `broker:partition`."""
    broker, _, partition = name.partition(":")
    return broker, int(partition) // STORE_STEP
