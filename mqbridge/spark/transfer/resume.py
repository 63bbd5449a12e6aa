"""What a target holds of what is going to be sent: left out, or refused where it should be there and is not.

Messages of a source are stored in order, so what follows the last one that is stored is not. Before it everything is stored,
except what was refused: the messages behind it were on their way already, and nobody knows whether a crash came before its dead
letter. So positions before the last one are looked up, in the target and among the dead letters. One that is in neither is given
to MISSED: it is refused again, as a dead letter or as an error, and never lost without a word.

A target that has deleted messages of the range since then cannot tell: what lies before all that it still holds counts as stored.

A target that grew between two attempts may place a message in another partition than before; so one that is held by any
partition is left out.
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
class StoredBefore:
    """What a target holds of a source, from the first message on that is going to be sent.

    last   by partition the last position
    held   all positions
    dead   positions that are done with, as dead letters
    known  by partition the position behind which a message that is not held was never stored
    """

    last: Mapping[int, Position]
    held: Sequence[PackedPositions] = ()
    dead: Collection[Position] = ()
    known: Mapping[int, Position] = field(default_factory=dict)

    def without(self, dead: Collection[Position]) -> "StoredBefore":
        """The same where these are done with, as dead letters."""
        return replace(self, dead=frozenset(dead)) if dead else self

    @property
    def highest(self) -> Position:
        """Behind it nothing is stored."""
        return max((*self.last.values(), *(held.last for held in self.held), *self.dead), default=())

    def done_between(self, first: Position, last: Position) -> set[Position]:
        """Those from `first` to `last` that are stored or dead."""
        done = {position for position in self.dead if first <= position <= last}
        for held in self.held:
            done |= held.between(first, last)
        return done


async def find_ends(cluster: Cluster, topic: str) -> dict[int, Position]:
    """Where the partitions of a topic end now, by index. Raises ClusterError."""
    described = await cluster.describe(topic)
    if described is None:
        return {}
    bounds = await cluster.bounds(topic)
    return {index: bounds[name].next for index, name in enumerate(described.partitions) if name in bounds}


async def find_stored(
    cluster: Cluster, topic: str, outbound: Outbound, source: Partition, first: Position, since: Mapping[int, Position] | None
) -> StoredBefore:
    """Ask a target what it holds of a source from the position `first` on.

    Raises ClusterError, RETRY where the system has taken more than it has stored yet: Pulsar says the last that it was sent, and
    what an earlier attempt has sent may still be on its way to the disks, or fail there.
    """
    last = await outbound.resume(source, since)
    concerned = [index for index, position in last.items() if position >= first]
    if not concerned:
        return StoredBefore(last)
    described = await cluster.describe(topic)
    if described is None:
        raise ClusterError(f"the topic {topic!r} of cluster {cluster.name!r} is gone")
    names = {index: described.partitions[index] for index in concerned}
    floors = since or {}
    held = await stored_from(cluster, topic, names, source, first, since)
    # A job may have begun anew under its old name: then the system knows the name from before `since`.
    if before := {index: names[index] for index in names if index in floors and held[index].last < last[index]}:
        held |= await stored_from(cluster, topic, before, source, first)
    bounds = await cluster.bounds(topic)
    known: dict[int, Position] = {}
    for index, name in names.items():
        begin = floors.get(index)
        if not held[index] if begin is None else bounds[name].first > begin:
            known[index] = held[index].first if held[index] else last[index]
        elif held[index].last < last[index]:
            raise ClusterError(
                f"{cluster.name}/{topic} has taken {source} up to {format_position(last[index])}, and has not stored that yet",
                Failure.RETRY,
            )
    return StoredBefore(last, list(held.values()), known=known)


async def find_dead(
    cluster: Cluster, topic: str, source: Partition, first: Position, since: Mapping[int, Position] | None
) -> dict[str, set[Position]]:
    """The positions of a source from `first` on of which a dead-letter topic has letters, by the target that refused them.

    They are in no order there, so all is read from `since`, or from the beginning. Raises ClusterError.
    """
    described, bounds = await cluster.describe(topic), await cluster.bounds(topic)
    found: dict[str, set[Position]] = {}
    for index, name in enumerate(described.partitions if described else ()):
        begin = max(bounds[name].first, (since or {}).get(index, ()))
        async for batch in cluster.read(topic, name, begin, bounds[name].next):
            for message in batch.messages:
                position = position_of(message.origin, source)
                if position is not None and position >= first:
                    found.setdefault(_refused_by(message), set()).add(position)
    return found


def _refused_by(letter: Message) -> str:
    """The target that refused it last: a message may have been a dead letter before."""
    return next((value for name, value in reversed(letter.properties) if name == DEAD_TARGET), "")


class ResumedTarget(Target):
    """A target of which some may be stored already; `before` is None where nothing can be."""

    def __init__(
        self,
        label: str,
        outbound: Outbound,
        partitioner: RowPartitioner,
        tally: Tally,
        *,
        guard: LoopGuard | None = None,
        edit: Edit | None = None,
        before: StoredBefore | None = None,
    ) -> None:
        super().__init__(label, outbound, partitioner, guard=guard, edit=edit)
        self._tally, self._before = tally, before
        self._highest = before.highest if before is not None else ()

    def shares(self, share: Share) -> Sequence[tuple[int, Share]]:
        """What is not stored. A batch of which nothing can be stays as it came, also in its native form."""
        placed = super().shares(share)
        before = self._before
        if before is None or share.batch.first > self._highest:
            self._tally.placed(self.label, sum(one.count for _, one in placed), 0)
            return placed
        left = [part for partition, one in placed for part in _divide(before, partition, one)]
        count = sum(one.count for _, one in placed)
        self._tally.placed(self.label, count, count - sum(one.count for _, one in left))
        return left


def _divide(before: StoredBefore, partition: int, share: Share) -> list[tuple[int, Share]]:
    """What of a share is to be sent, and what was missed."""
    last, known = before.last.get(partition, ()), before.known.get(partition, ())
    positions = [message.position for message in share.originals]
    done = before.done_between(positions[0], positions[-1])
    new: list[int] = []
    missed: list[int] = []
    for index, position in enumerate(positions):
        if position > last and position not in done:
            new.append(index)
        elif position > known and position not in done:
            missed.append(index)
    return [(to, share.subset(places)) for to, places in ((MISSED, missed), (partition, new)) if places]
