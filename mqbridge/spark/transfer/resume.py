"""Finds which messages of a range a writer has stored in a target, so that a repeated attempt does not send them again.

Messages of other writers do not count (see `writer_id`): another job may have stored a copy of the same source message.

In each target partition, a writer stores the messages of a source in order. No message after the last stored position is
stored. A message before it is stored, unless it was refused: later messages were in flight when the refusal arrived, and the
attempt may have crashed before it stored the dead letter. The positions before the last one are therefore looked up in the target
and among the dead letters. A message in neither gets the partition index MISSED, which the outbound refuses. So the message
becomes a dead letter or an error, and is not lost silently.

A target may have deleted messages of the range since the earlier attempt: the positions before the first one that it still stores
count as stored.

A target may have gained partitions between two attempts, and a message may then belong to another partition than before.
Therefore a message is not sent if any partition of the target stores it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mqbridge.adapter.cluster import Cluster
from mqbridge.adapter.outbound import Outbound
from mqbridge.adapter.reading import read
from mqbridge.adapter.tools.packed_positions import PackedPositions
from mqbridge.adapter.tools.stored_positions import stored_from
from mqbridge.delivery.target import Target
from mqbridge.errors import ClusterError, Failure
from mqbridge.message import Message, Partition, Position, Share, format_position, origin_prefix, position_of
from mqbridge.routing.edits import Edit
from mqbridge.routing.loops import LoopGuard
from mqbridge.spark.transfer.tally import Tally
from mqbridge.spark.transfer.target_partitions import MISSED, RowPartitioner

DEAD_TARGET = "mqbridge.dead.target"
"""The property of a dead letter that names the target that refused the message."""


@dataclass(frozen=True, slots=True)
class StoredPositions:
    """The positions of a source that a target stores, from the first message of the range that a task sends.

    last            the last stored position, by the index of the target partition
    stored          all stored positions, one collection per target partition
    dead_lettered   positions whose messages are stored as dead letters
    complete_after  by target partition, the position after which `stored` is complete. Before it, the target may have deleted
                    messages. Without an entry, `stored` is complete from the first message of the range
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
        return max((*self.last.values(), *(stored.highest for stored in self.stored), *self.dead_lettered), default=())

    def finished_between(self, first: Position, last: Position) -> set[Position]:
        """Return the positions from `first` to `last`, both included, that are stored or dead-lettered."""
        finished = {position for position in self.dead_lettered if first <= position <= last}
        for stored in self.stored:
            finished |= stored.between(first, last)
        return finished


async def find_ends(cluster: Cluster, topic: str) -> dict[str, Position]:
    """Return the current end positions of a topic's partitions, by name; none if it does not exist. Raises ClusterError."""
    described = await cluster.describe(topic)
    if described is None:
        return {}
    bounds = await cluster.bounds(topic)
    return {name: bounds[name].next for name in described.partitions if name in bounds}


async def by_index(cluster: Cluster, topic: str, ends: Mapping[str, Position] | None) -> dict[int, Position] | None:
    """Return the ends by the present indexes of the partitions; None if there are none. Raises ClusterError."""
    described = await cluster.describe(topic) if ends is not None else None
    if described is None or ends is None:
        return None
    return {index: ends[name] for index, name in enumerate(described.partitions) if name in ends}


async def find_stored(
    cluster: Cluster,
    topic: str,
    outbound: Outbound,
    source: Partition,
    first: Position,
    writer: str,
    since: Mapping[str, Position] | None,
) -> StoredPositions:
    """Find the positions of a source, from `first` on, that this writer has stored in a target.

    `outbound` writes under the id `writer`, so its `resume` finds the same messages.

    `since` are the ends of the target partitions before the first attempt, by name. Each is searched from there, or from its
    first message if `since` is None or lacks it.

    Raises ClusterError, with Failure.RETRY if the system has accepted messages that it has not stored yet. Pulsar, for example,
    reports the last message that it received from an earlier attempt, even if it is not on disk yet and may never be.
    """
    searched_from = await by_index(cluster, topic, since)
    last = await outbound.resume(source, searched_from)
    reached = [index for index, position in last.items() if position >= first]
    if not reached:
        return StoredPositions(last)
    described = await cluster.describe(topic)
    if described is None:
        raise ClusterError(f"the topic {topic!r} of cluster {cluster.name!r} does not exist any more")
    names = {index: described.partitions[index] for index in reached}
    stored = await stored_from(cluster, topic, names, source, first, searched_from, writer)
    searched_from = searched_from or {}
    # A job that was started again under its old name, but without its checkpoint, may have stored messages before `since`.
    if incomplete := {index: names[index] for index in names if index in searched_from and stored[index].highest < last[index]}:
        stored |= await stored_from(cluster, topic, incomplete, source, first, writer=writer)
    bounds = await cluster.bounds(topic)
    complete_after: dict[int, Position] = {}
    for index, name in names.items():
        begin = searched_from.get(index)
        # `outbound.resume` found messages here. If a search of the whole partition finds none, or if the partition now begins
        # after the position in `since`, the target has deleted messages.
        may_have_deleted = not stored[index] if begin is None else bounds[name].first > begin
        if may_have_deleted:
            complete_after[index] = stored[index].lowest if stored[index] else last[index]
        elif stored[index].highest < last[index]:
            problem = f"{cluster.name}/{topic} has accepted messages of {source} up to {format_position(last[index])}"
            raise ClusterError(f"{problem}, but has not stored them yet: try again", Failure.RETRY)
    return StoredPositions(last, list(stored.values()), complete_after=complete_after)


async def find_dead_letters(
    cluster: Cluster, topic: str, source: Partition, first: Position, writer: str | None, since: Mapping[str, Position] | None
) -> dict[str, set[Position]]:
    """Return the positions of a source, from `first` on, that have a dead letter of this writer, by the refusing target's label.

    A label is `cluster/topic`. Dead letters are in no order, so each partition of the topic is read completely, from its position
    in `since`, or from its first message if it has none there. Raises ClusterError.
    """
    described, bounds = await cluster.describe(topic), await cluster.bounds(topic)
    prefix = origin_prefix(source, writer)
    positions_of: dict[str, set[Position]] = {}
    for name in described.partitions if described else ():
        begin = max(bounds[name].first, (since or {}).get(name, ()))
        async for batch in read(cluster, topic, name, begin, bounds[name].next):
            for letter in batch.messages:
                position = position_of(letter.origin, prefix)
                if position is not None and position >= first:
                    positions_of.setdefault(_refusing_target(letter), set()).add(position)
    return positions_of


def _refusing_target(letter: Message) -> str:
    """Return the label of the target that refused the message last, or "" if the property is missing.

    The property may occur several times, because the message may have been a dead letter before.
    """
    return next((value for name, value in reversed(letter.properties) if name == DEAD_TARGET), "")


class ResumedTarget(Target):
    """A target that may already store some of the messages, and does not send these.

    `stored_before` is None if the transfer cannot find stored messages: without deduplication, or without a source.
    """

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
        """Divide by target partition the messages that are not stored. Decodes only batches that may contain stored messages."""
        divided = super().shares(share)
        stored = self._stored_before
        count = sum(part.count for _, part in divided)
        if stored is None or share.batch.first > self._highest:
            self._tally.count_target(self.label, count, skipped=0)
            return divided
        # Includes the messages for MISSED, which the outbound refuses.
        unstored = [rest for partition, part in divided for rest in _exclude_stored(stored, partition, part)]
        self._tally.count_target(self.label, count, count - sum(part.count for _, part in unstored))
        return unstored


def _exclude_stored(stored: StoredPositions, partition: int, share: Share) -> list[tuple[int, Share]]:
    """Return the messages that are not stored: those before the last stored position for MISSED, the others for `partition`.

    Messages up to the position in `complete_after` count as stored.
    """
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
    return [(target, share.subset(indexes)) for target, indexes in ((MISSED, missed), (partition, new)) if indexes]
