"""Finds the messages of a range that a target holds already, and excludes them from the sends of a repeated attempt.

Messages of a source are stored in order, so nothing after the last stored position is stored. Everything before it is stored,
except refused messages: later messages were in flight when the refusal arrived, and the attempt may have crashed before it stored
the dead letter. So positions before the last one are looked up in the target and among the dead letters. A message in neither
goes to the partition MISSED, which refuses it again: it becomes a dead letter or an error, and is never lost silently.

A target may have deleted messages of the range meanwhile: positions before all those that it still holds count as stored.

A target may have gained partitions between two attempts, and then a message may belong to another partition than before. So a
message is excluded if any partition holds it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.outbound import Outbound
from mqbridge.delivery.target import Target
from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Message, Partition, Position, Share, format_position, position_of
from mqbridge.packed_positions import PackedPositions
from mqbridge.routing.edits import Edit
from mqbridge.routing.loops import LoopGuard
from mqbridge.spark.transfer.tally import Tally
from mqbridge.spark.transfer.target_partitions import MISSED, RowPartitioner
from mqbridge.stored_positions import stored_from

DEAD_TARGET = "mqbridge.dead.target"


@dataclass(frozen=True, slots=True)
class StoredPositions:
    """The positions of a source that a target holds, from the first message of the range.

    last            the last stored position, by target partition
    stored          all stored positions, one collection per target partition
    dead_lettered   positions whose messages are stored as dead letters
    complete_after  position by target partition; after it, `stored` is complete: the target has deleted nothing there
    """

    last: Mapping[int, Position]
    stored: Sequence[PackedPositions] = ()
    dead_lettered: Collection[Position] = ()
    complete_after: Mapping[int, Position] = field(default_factory=dict)

    def with_dead_letters(self, positions: Collection[Position]) -> "StoredPositions":
        """Return a copy in which the messages at these positions are stored as dead letters."""
        return replace(self, dead_lettered=frozenset(positions)) if positions else self

    @property
    def highest(self) -> Position:
        """The highest position that is stored or dead-lettered; () if there is none."""
        return max((*self.last.values(), *(stored.last for stored in self.stored), *self.dead_lettered), default=())

    def finished_between(self, first: Position, last: Position) -> set[Position]:
        """Return the positions from `first` to `last`, both included, that are stored or dead-lettered."""
        finished = {position for position in self.dead_lettered if first <= position <= last}
        for stored in self.stored:
            finished |= stored.between(first, last)
        return finished


async def find_ends(cluster: Cluster, topic: str) -> dict[int, Position]:
    """Return the current end positions of a topic's partitions, by index. Raises ClusterError."""
    described = await cluster.describe(topic)
    if described is None:
        return {}
    bounds = await cluster.bounds(topic)
    return {index: bounds[name].next for index, name in enumerate(described.partitions) if name in bounds}


async def find_stored(
    cluster: Cluster, topic: str, outbound: Outbound, source: Partition, first: Position, since: Mapping[int, Position] | None
) -> StoredPositions:
    """Find the positions of a source, from `first` on, that a target holds. Searches each target partition back to `since`.

    Raises ClusterError; with RETRY if the system has accepted messages that it has not stored yet. Pulsar reports the last
    message that it received from an earlier attempt. That message may not be on disk yet, and writing it may still fail.
    """
    last = await outbound.resume(source, since)
    relevant = [index for index, position in last.items() if position >= first]
    if not relevant:
        return StoredPositions(last)
    described = await cluster.describe(topic)
    if described is None:
        raise ClusterError(f"the topic {topic!r} of cluster {cluster.name!r} does not exist any more")
    names = {index: described.partitions[index] for index in relevant}
    floors = since or {}
    stored = await stored_from(cluster, topic, names, source, first, since)
    # A job may have been started again under its old name without its checkpoint: it may have stored messages before `since`.
    if incomplete := {index: names[index] for index in names if index in floors and stored[index].last < last[index]}:
        stored |= await stored_from(cluster, topic, incomplete, source, first)
    bounds = await cluster.bounds(topic)
    complete_after: dict[int, Position] = {}
    for index, name in names.items():
        floor = floors.get(index)
        if not stored[index] if floor is None else bounds[name].first > floor:  # the target may have deleted messages
            complete_after[index] = stored[index].first if stored[index] else last[index]
        elif stored[index].last < last[index]:
            accepted = f"messages of {source} up to {format_position(last[index])}"
            raise ClusterError(f"{cluster.name}/{topic} has accepted {accepted}, and has not stored them yet", Failure.RETRY)
    return StoredPositions(last, list(stored.values()), complete_after=complete_after)


async def find_dead_letters(
    cluster: Cluster, topic: str, source: Partition, first: Position, since: Mapping[int, Position] | None
) -> dict[str, set[Position]]:
    """Return the positions of a source, from `first` on, that have a dead letter, by the label of the target that refused them.

    Dead letters have no order, so the topic is read completely from `since`, or from its beginning. Raises ClusterError.
    """
    described, bounds = await cluster.describe(topic), await cluster.bounds(topic)
    positions_of: dict[str, set[Position]] = {}
    for index, name in enumerate(described.partitions if described else ()):
        begin = max(bounds[name].first, (since or {}).get(index, ()))
        async for batch in cluster.read(topic, name, begin, bounds[name].next):
            for letter in batch.messages:
                position = position_of(letter.origin, source)
                if position is not None and position >= first:
                    positions_of.setdefault(_refusing_target(letter), set()).add(position)
    return positions_of


def _refusing_target(letter: Message) -> str:
    """Return the target that refused the message last: the message may have been a dead letter before."""
    return next((value for name, value in reversed(letter.properties) if name == DEAD_TARGET), "")


class ResumedTarget(Target):
    """A target that may hold some of the messages already. `stored_before` is None if it cannot hold any."""

    def __init__(
        self,
        label: str,
        outbound: Outbound,
        partitioner: RowPartitioner,
        tally: Tally,
        *,
        guard: LoopGuard | None = None,
        edit: Edit | None = None,
        stored_before: StoredPositions | None = None,
    ) -> None:
        super().__init__(label, outbound, partitioner, guard=guard, edit=edit)
        self._tally, self._stored_before = tally, stored_before
        self._highest = stored_before.highest if stored_before is not None else ()

    def shares(self, share: Share) -> Sequence[tuple[int, Share]]:
        """Divide the messages that are not stored by target partition. A batch that cannot be stored is not decoded for this."""
        divided = super().shares(share)
        stored = self._stored_before
        count = sum(part.count for _, part in divided)
        if stored is None or share.batch.first > self._highest:
            self._tally.count_target(self.label, count, 0)
            return divided
        unstored = [each for partition, part in divided for each in _exclude_stored(stored, partition, part)]
        self._tally.count_target(self.label, count, count - sum(part.count for _, part in unstored))
        return unstored


def _exclude_stored(stored: StoredPositions, partition: int, share: Share) -> list[tuple[int, Share]]:
    """Return the messages that are not stored: missed ones for the partition MISSED, new ones for their own partition."""
    last, complete_after = stored.last.get(partition, ()), stored.complete_after.get(partition, ())
    positions = [message.position for message in share.originals]
    finished = stored.finished_between(positions[0], positions[-1])
    new: list[int] = []
    missed: list[int] = []
    for index, position in enumerate(positions):
        if position > last and position not in finished:
            new.append(index)
        elif position > complete_after and position not in finished:
            missed.append(index)
    return [(to, share.subset(indexes)) for to, indexes in ((MISSED, missed), (partition, new)) if indexes]
