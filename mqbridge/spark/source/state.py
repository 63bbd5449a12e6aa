"""What the source's process of a streaming query knows; no I/O, no clock.

    topics_found   the topics that are read, and when they were looked up
    looked         the bounds of their partitions, and when they were asked for
    froze          with availableNow: what was there then is the target, nothing beyond it is read
    came_back      some of them were not there for a while
    began          where a new query begins, resolved once

Everything else is derived. A batch goes from `start`, which the checkpoint says, to what `end` makes of it: no partition of
`start` is ever left out of it, whatever a cluster says at the moment. A partition that came while the query runs is put into the
offsets with its first position and read from the next batch on: so the two offsets of a batch say all of what it holds.

A query that begins with the latest messages runs one empty batch: it brings the beginning into the checkpoint. Without it, a
process that dies in the first batch would begin with what is the latest then.
"""

from collections.abc import Callable, Collection, Mapping

from mqbridge.adapter.topics import Bounds
from mqbridge.message import Position
from mqbridge.spark.source.data_loss import Kind, Loss, losses_of
from mqbridge.spark.source.offsets import Key, Offsets


class SourceState:
    """See the module. `reads` says whether a topic is read, also one that is not there; times are of any one clock."""

    def __init__(self, reads: Callable[[str], bool], metadata_s: float, new_topics_s: float) -> None:
        self._reads, self._metadata_s, self._new_topics_s = reads, metadata_s, new_topics_s
        self.topics: tuple[str, ...] = ()
        self.chosen: Collection[Key] | None = None
        """The partitions that are read; None is all."""
        self.held: Mapping[Key, Bounds] = {}
        self.waiting: Collection[Key] = ()
        """Partitions that are not to be begun yet."""
        self.looks = 0
        """How often the bounds were asked for."""
        self.target: Offsets | None = None
        self.initial: Offsets | None = None
        self._to_hold: Offsets | None = None
        self._kept: Offsets = {}
        self._topics_at: float | None = None
        self._held_at: float | None = None

    # --- transitions --------------------------------------------------------------------------------------------------

    def topics_found(self, topics: tuple[str, ...], now: float, chosen: Collection[Key] | None = None) -> None:
        """The topics to read are these."""
        self.topics, self.chosen, self._topics_at = topics, chosen, now

    def looked(self, held: Mapping[Key, Bounds], now: float) -> None:
        """The cluster said these bounds."""
        self.held, self._held_at = held, now
        self.looks += 1

    def froze(self) -> None:
        """Nothing beyond what is known now is to be read."""
        self.target = {key: bounds.next for key, bounds in self.read_now().items()}

    def came_back(self, keys: Collection[Key]) -> None:
        """These had vanished for a while: what they hold belongs to a frozen target too."""
        if self.target is not None:
            self.target = {**{key: self.held[key].next for key in keys if key in self.held}, **self.target}

    def began(self, offsets: Offsets, *, holds: bool) -> None:
        """A new query begins here, in partitions that wait as soon as they do not; with `holds` its first batch is empty."""
        self._kept = {key: position for key, position in offsets.items() if key in self.waiting}
        self.initial = offsets = {key: position for key, position in offsets.items() if key not in self.waiting}
        self._to_hold = offsets if holds else None

    def holds(self, start: Offsets) -> bool:
        """Whether this batch is the empty one; asked once for each."""
        held, self._to_hold = self._to_hold, None
        return held is not None and held == start

    # --- questions ----------------------------------------------------------------------------------------------------

    def wants_topics(self, now: float) -> bool:
        """Whether the topics are to be looked up; not any more once the target is frozen."""
        return self._topics_at is None or (self.target is None and now - self._topics_at >= self._new_topics_s)

    def wants_bounds(self, now: float) -> bool:
        """Whether the bounds that are known are too old, or none are."""
        return self._held_at is None or now - self._held_at >= self._metadata_s

    def topics_to_ask(self, start: Offsets) -> set[str]:
        """Of which bounds are needed: those that are read, also if a list of topics lacks one."""
        return {*self.topics, *(topic for topic, _ in start if self._reads(topic))}

    def read_now(self) -> dict[Key, Bounds]:
        """The partitions that are there and read."""
        return {key: bounds for key, bounds in self.held.items() if self._is_read(key)}

    def may_begin(self) -> dict[Key, Bounds]:
        """Those of them that wait for nothing."""
        return {key: bounds for key, bounds in self.read_now().items() if key not in self.waiting}

    def vanished(self, start: Offsets) -> set[Key]:
        """What is read and was begun, and is not there."""
        return {key for key in start if self._is_read(key) and key not in self.held}

    def losses(self, start: Offsets) -> list[Loss]:
        """What was lost, or seems so, of what is still to be read."""
        return losses_of({key: position for key, position in start.items() if self._is_read(key)}, self.held)

    def backlog(self, start: Offsets) -> dict[Key, tuple[Position, Position]]:
        """What a batch may take at most, by partition; those without anything are left out."""
        found = {}
        for key, bounds in self.read_now().items():
            if key in start and start[key] < (until := self._until(key, bounds, start[key])):
                found[key] = (min(max(start[key], bounds.first), until), until)
        return found

    def end(self, start: Offsets, taken: Offsets) -> dict[Key, Position]:
        """Where a batch ends that takes this of its backlog. What was made anew goes back to its first position."""
        anew = {loss.key: loss.held.first for loss in self.losses(start) if loss.kind is Kind.ANEW and loss.held is not None}
        added = {
            key: self._kept.get(key, bounds.first)
            for key, bounds in self.may_begin().items()
            if key not in start and self._is_targeted(key)
        }
        return {**start, **taken, **anew, **added}

    def left_out(self) -> set[Key]:
        """What belongs to the frozen target and still waits."""
        return {key for key in self.waiting if self.target is not None and key in self.target}

    def latest(self) -> dict[Key, Position]:
        """The newest that is known of each partition that is read."""
        return {key: bounds.next for key, bounds in self.read_now().items()}

    def _is_read(self, key: Key) -> bool:
        return self._reads(key[0]) and (self.chosen is None or key in self.chosen)

    def _is_targeted(self, key: Key) -> bool:
        return self.target is None or key in self.target

    def _until(self, key: Key, bounds: Bounds, start: Position) -> Position:
        return bounds.next if self.target is None else min(bounds.next, self.target.get(key, start))
