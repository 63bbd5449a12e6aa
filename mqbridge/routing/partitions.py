"""Chooses the target partition of each message.

modulo        the source partition's number (see `stable_number`), modulo the number of target partitions
identity      the source partition's index itself
table         the partition in the configured table, by the source partition's name or index
key           the partition that the target system's own producers choose for the key; without a key by modulo
round_robin   each batch goes to the next partition: the order of messages is not kept

By modulo, identity and table, all messages of a source partition go to one target partition, in order. By key, messages with the
same key keep their order. The target's number of partitions is read again for every batch, so new partitions of a
target are used at once.
"""

from collections.abc import Callable, Iterable, Mapping

from mqbridge.adapter.known_brokers import stable_number
from mqbridge.adapter.outbound import KeepsIndexes, Outbound
from mqbridge.adapter.topics import Topic
from mqbridge.config.options.create_rule import CreateRule
from mqbridge.config.options.partition_rule import By, PartitionRule
from mqbridge.config.options.target import Target as TargetConfig
from mqbridge.message import NO_INDEX, Share
from mqbridge.routing.keys import KeyPicker

PartitionShare = tuple[int, Share]
"""The index of a target partition, and the messages of a batch that are written to it."""


def partitions_needed(rule: PartitionRule, topic: Topic) -> int:
    """Return the number of partitions that a target should have.

    It is as many as the source topic has, and for identity as its largest index needs, and all that the table contains.
    """
    by_partition = topic.index_by_partition
    indexes = by_partition.values() if rule.by == "identity" else ()
    return max([len(by_partition), *(index + 1 for index in indexes), *(partition + 1 for partition in rule.table.values())])


def configured_or_needed_partitions(target: TargetConfig, topic: Topic) -> int:
    """Return the number of partitions with which a target topic is created, or to which it is grown if it has fewer.

    It is the number in the option `create`; without it, the number that the target needs for this source topic.
    """
    configured = target.create.partitions if isinstance(target.create, CreateRule) else None
    return partitions_needed(target.partitions, topic) if configured is None else configured


def uses_indexes(rule: PartitionRule) -> bool:
    """Return True if the rule may choose the target partition of a source partition by its index, now or for one added later."""
    return rule.by == "identity" or any(map(str.isdecimal, rule.table))


def needs_index(rule: PartitionRule, partition: str) -> bool:
    """Return True if the rule chooses the target partition of this source partition by its index."""
    return uses_indexes(rule) and partition not in rule.table


def index_count(rule: PartitionRule, outbound: Outbound) -> int:
    """Return how many partitions of a target the rule can choose now."""
    if rule.by in ("identity", "table") and isinstance(outbound, KeepsIndexes):
        return len(outbound.indexed)
    return outbound.partitions


def unassignable_reason(rule: PartitionRule, name: str, index: int, count: int) -> str | None:
    """Return why the rule finds none of the target's `count` partitions for a source partition; None if it finds one."""
    if index == NO_INDEX and needs_index(rule, name):
        return f"`by: {rule.by}` needs the index of the source partition, and it has none"
    if rule.by == "identity" and index >= count:
        return f"`by: identity` needs target partition {index}, but the target has {count} partitions (0 to {count - 1})"
    if rule.by == "table":
        partition = _look_up(rule.table, name, index)
        if partition is None:
            return "the table of `partitions` does not contain this source partition"
        if partition >= count:
            problem = f"the table of `partitions` contains target partition {partition}"
            return f"{problem}, but the target has {count} partitions (0 to {count - 1})"
    return None


def unassignable_partitions(rule: PartitionRule, topic: Topic, count: int) -> dict[str, str]:
    """Return the reasons of `unassignable_reason` by the name of the source partition, for those that have one."""
    reasons = ((name, unassignable_reason(rule, name, index, count)) for name, index in topic.index_by_partition.items())
    return {name: reason for name, reason in reasons if reason is not None}


def target_partitions_hint(rule: PartitionRule, needed: int, names: Iterable[str], *, create: bool | CreateRule) -> str:
    """Return the hint of an error about the source partitions `names`, which have no target partition.

    `needed` is the number of partitions that the target needs, and `create` is the option of the target.
    """
    if rule.by == "table" and (missing := [name for name in names if name not in rule.table]):
        return f"Add {', '.join(map(repr, missing))} to the table of `partitions`, or use `by: modulo`"
    grow = f"Grow the target topic to {needed} partitions"
    return f"{grow}, or use `by: modulo`" if create else f"{grow}, set `create: true`, or use `by: modulo`"


class Partitioner:
    """Divides batches among the target partitions of one outbound."""

    def __init__(self, rule: PartitionRule, outbound: Outbound) -> None:
        self.rule = rule
        self._outbound = outbound
        self._round_robin_partition = 0
        """The partition of the last batch, with `by: round_robin`."""
        self._picker = KeyPicker(rule.key)
        self._keeps_indexes = outbound if isinstance(outbound, KeepsIndexes) else None
        methods: dict[By, Callable[[Share], list[PartitionShare]]] = {
            "modulo": self._divide_by_modulo,
            "identity": self._divide_by_identity,
            "table": self._divide_by_table,
            "key": self._divide_by_key,
            "round_robin": self._divide_round_robin,
        }
        self.divide = methods[rule.by]
        """Divides a share by target partition, by the method of the rule; the share must not be empty."""

    def _divide_by_modulo(self, share: Share) -> list[PartitionShare]:
        return [(stable_number(share.batch.partition) % self._outbound.partitions, share)]

    def _divide_by_identity(self, share: Share) -> list[PartitionShare]:
        return [(self._partition_at(share.batch.partition.index), share)]

    def _divide_by_table(self, share: Share) -> list[PartitionShare]:
        source = share.batch.partition
        target = _look_up(self.rule.table, source.name, source.index)
        assert target is not None  # noqa: S101 - a source partition without a target partition is not read
        return [(self._partition_at(target), share)]

    def _partition_at(self, index: int) -> int:
        """Return the target partition of an index, which is the same for as long as this process runs."""
        return index if self._keeps_indexes is None else self._keeps_indexes.indexed[index]

    def _divide_round_robin(self, share: Share) -> list[PartitionShare]:
        self._round_robin_partition = (self._round_robin_partition + 1) % self._outbound.partitions
        return [(self._round_robin_partition, share)]

    def _divide_by_key(self, share: Share) -> list[PartitionShare]:
        count = self._outbound.partitions
        keyless_partition = stable_number(share.batch.partition) % count
        if count == 1:
            return [(keyless_partition, share)]
        partition_of = self._outbound.partition_of
        parts: dict[int, list[int]] = {}
        for index, key in enumerate(self._picker.keys(share.messages)):
            # Messages without a key are assigned by their source partition, which keeps their order among each other.
            parts.setdefault(keyless_partition if key is None else partition_of(key), []).append(index)
        if len(parts) == 1:
            return [(target, share) for target in parts]
        return [(target, share.subset(indexes)) for target, indexes in parts.items()]


def _look_up(table: Mapping[str, int], name: str, index: int) -> int | None:
    """Return the target partition in the table, by the source partition's name or else by its index."""
    partition = table.get(name)
    return table.get(str(index)) if partition is None else partition
