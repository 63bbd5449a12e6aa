"""Which target partition a message goes to.

modulo        the source partition's index, modulo the number of target partitions
identity      the source partition's index itself
table         where a written table says, by the source partition's name or index
key           as the target system's own producers place the key; without a key as by modulo
round_robin   whole batches in turn, which promises nothing about order

By the first three a source partition keeps to one target partition, so its order survives; by key, messages of one key keep
theirs. Every rule is a function of what the message says and of the target's number of partitions, which is read anew for every
batch: a target that grows is used at once.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from mqbridge.adapter import Outbound, Topic
from mqbridge.config.options.partition_rule import By, PartitionRule
from mqbridge.message import Batch, Message
from mqbridge.routing.keys import picker

Share = tuple[int, Sequence[Message]]
"""A target partition and the messages for it, in order."""


def partitions_needed(rule: PartitionRule, source_partitions: int) -> int:
    """How many partitions a target is made with, or grown to."""
    return max([source_partitions, *(place + 1 for place in rule.table.values())])


def unplaced(rule: PartitionRule, name: str, index: int, count: int) -> str | None:
    """Why a source partition has no place among `count` target partitions; None when it has one."""
    if rule.by == "identity" and index >= count:
        return f"by identity it goes to partition {index}, but there are {count} (0 to {count - 1})"
    if rule.by == "table":
        place = _look_up(rule.table, name, index)
        if place is None:
            return "it is not in the table of `partitions`"
        if place >= count:
            return f"the table sends it to partition {place}, but there are {count} (0 to {count - 1})"
    return None


def misplaced(rule: PartitionRule, topic: Topic, count: int) -> dict[str, str]:
    """The partitions of a source topic that have no place, by name, and why."""
    found = ((name, unplaced(rule, name, index, count)) for index, name in enumerate(topic.partitions))
    return {name: why for name, why in found if why is not None}


def advice(rule: PartitionRule, needed: int, names: Iterable[str], *, create: bool) -> str:
    """What to do about partitions without a place."""
    if rule.by == "table" and (missing := [name for name in names if name not in rule.table]):
        return f"Add {', '.join(map(repr, missing))} to the table, or use `by: modulo`"
    grow = f"Grow the target topic to {needed} partitions"
    return f"{grow}, or use `by: modulo`" if create else f"{grow}, set `create: true`, or use `by: modulo`"


class Partitioner:
    """Divides batches among the partitions of one outbound."""

    def __init__(self, rule: PartitionRule, outbound: Outbound) -> None:
        self.rule = rule
        self._outbound = outbound
        self._turn = 0
        self._pick = picker(rule.key)
        rules: dict[By, Callable[[Batch, Sequence[Message]], list[Share]]] = {
            "modulo": self._modulo,
            "identity": self._identity,
            "table": self._table,
            "key": self._key,
            "round_robin": self._round_robin,
        }
        self.divide = rules[rule.by]
        """The shares of a batch; `messages` is what filters and edits left of it, never empty."""

    def _modulo(self, batch: Batch, messages: Sequence[Message]) -> list[Share]:
        return [(batch.partition.index % self._outbound.partitions, messages)]

    def _identity(self, batch: Batch, messages: Sequence[Message]) -> list[Share]:
        return [(batch.partition.index, messages)]

    def _table(self, batch: Batch, messages: Sequence[Message]) -> list[Share]:
        place = _look_up(self.rule.table, batch.partition.name, batch.partition.index)
        assert place is not None  # noqa: S101 - a lane without a place is never received from
        return [(place, messages)]

    def _round_robin(self, _: Batch, messages: Sequence[Message]) -> list[Share]:
        self._turn = (self._turn + 1) % self._outbound.partitions
        return [(self._turn, messages)]

    def _key(self, batch: Batch, messages: Sequence[Message]) -> list[Share]:
        count = self._outbound.partitions
        own = batch.partition.index % count
        if count == 1:
            return [(own, messages)]
        pick, place_of = self._pick, self._outbound.partition_of
        shares: dict[int, list[Message]] = {}
        for message in messages:
            key = pick(message)
            # Messages without a key stay with their source partition, where at least their own order is kept.
            place = own if key is None else place_of(key)
            shares.setdefault(place, []).append(message)
        return list(shares.items())


def _look_up(table: Mapping[str, int], name: str, index: int) -> int | None:
    place = table.get(name)
    return table.get(str(index)) if place is None else place
