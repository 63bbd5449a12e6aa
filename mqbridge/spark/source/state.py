"""The state of the planner of a streaming query. It does no I/O and reads no clock.

Its inputs are five transitions, and the attribute `deferred`, which the planner assigns:

    set_topics     the topics to read, and when they were looked up
    set_bounds     the bounds of their partitions, and when they were looked up
    freeze_target  with availableNow: the current end becomes the target, and nothing beyond it is read
    extend_target  partitions that were missing when the target was frozen are available again
    begin          the initial offsets of a new query, resolved once

Everything else is derived from these inputs. A batch goes from `start`, the offsets in the checkpoint, to the result of
`end_offsets`. This result contains every partition of `start`, even those that the cluster does not report at the moment. A new
partition is added with the position where it begins, and is read from the next batch on. The two offsets of a batch therefore
define its content completely.

A query that begins with the latest messages runs one empty batch first, which writes the initial offsets into the checkpoint.
Without it, a process that fails during the first batch would begin again at a later end.
"""

from collections.abc import Callable, Collection, Mapping

from mqbridge.adapter.topics import Bounds
from mqbridge.message import Position
from mqbridge.spark.source.data_loss import Loss, LossKind, detect_losses
from mqbridge.spark.source.offsets import Offsets, PartitionKey


class SourceState:
    """Topics, bounds and target of one streaming query. The target is where a query with availableNow ends, not a topic.

    `reads_topic` returns whether a topic is read, also for topics that do not exist. All times come from one monotonic clock. The
    bounds are looked up again when they are `metadata_s` old, and the list of topics when it is `new_topics_s` old.
    """

    def __init__(self, reads_topic: Callable[[str], bool], metadata_s: float, new_topics_s: float) -> None:
        self._reads_topic, self._metadata_s, self._new_topics_s = reads_topic, metadata_s, new_topics_s
        self.topics: tuple[str, ...] = ()
        self.assigned: Collection[PartitionKey] | None = None
        """The partitions to read; None means all."""
        self.bounds: Mapping[PartitionKey, Bounds] = {}
        """The last known bounds of existing partitions."""
        self.deferred: Collection[PartitionKey] = ()
        """New partitions that are not read yet, because the topics or partitions to copy them to do not exist."""
        self.bounds_version = 0
        """The number of times that the bounds were looked up. If it changed, the planner computes the end of the batch again."""
        self.target: Offsets | None = None
        """The offsets where a query with availableNow ends; None before `freeze_target`, and for other queries."""
        self.initial: Offsets | None = None
        """The initial offsets of a new query; None before `begin`."""
        self._empty_batch_start: Offsets | None = None
        """The start of the empty first batch, until `take_empty_batch` is called; None if no such batch is pending."""
        self._deferred_positions: Offsets = {}
        """Where deferred partitions begin, if they were known when the query began."""
        self._topics_time: float | None = None
        """When the topics were looked up last; None before the first time."""
        self._bounds_time: float | None = None
        """When the bounds were looked up last; None before the first time."""

    # --- transitions --------------------------------------------------------------------------------------------------

    def set_topics(self, topics: tuple[str, ...], now: float, assigned: Collection[PartitionKey] | None = None) -> None:
        """Store the topics to read, and the partitions of the option `assign`; None without that option: all partitions."""
        self.topics, self.assigned = topics, assigned
        self._topics_time = now

    def set_bounds(self, bounds: Mapping[PartitionKey, Bounds], now: float) -> None:
        """Store the bounds that the cluster reported."""
        self.bounds, self._bounds_time = bounds, now
        self.bounds_version += 1

    def freeze_target(self) -> None:
        """Make the current ends the target: nothing beyond them is read."""
        self.target = {key: bounds.next for key, bounds in self.bounds_to_read().items()}

    def extend_target(self, keys: Collection[PartitionKey]) -> None:
        """Add the current ends of these partitions to the target, if there is one.

        Partitions that the target already contains, or that do not exist, are ignored.
        """
        if self.target is not None:
            self.target = {**{key: self.bounds[key].next for key in keys if key in self.bounds}, **self.target}

    def begin(self, offsets: Offsets, *, with_empty_batch: bool) -> None:
        """Set the initial offsets of a new query. Deferred partitions begin there too, but are read later.

        `with_empty_batch`: the first batch is empty, see the docstring of this module.
        """
        self._deferred_positions = {key: position for key, position in offsets.items() if key in self.deferred}
        self.initial = offsets = {key: position for key, position in offsets.items() if key not in self.deferred}
        self._empty_batch_start = offsets if with_empty_batch else None

    def take_empty_batch(self, start: Offsets) -> bool:
        """Return whether the batch from `start` is the empty first one. Only the first call after `begin` can return True."""
        empty_batch_start, self._empty_batch_start = self._empty_batch_start, None
        return empty_batch_start is not None and empty_batch_start == start

    # --- queries ------------------------------------------------------------------------------------------------------

    def needs_topics(self, now: float) -> bool:
        """Return whether the topics are unknown, or too old; with a frozen target they are never too old."""
        return self._topics_time is None or (self.target is None and now - self._topics_time >= self._new_topics_s)

    def needs_bounds(self, now: float) -> bool:
        """Return whether the bounds are unknown or too old."""
        return self._bounds_time is None or now - self._bounds_time >= self._metadata_s

    def topics_for_bounds(self, start: Offsets) -> set[str]:
        """Return the topics whose bounds are needed: the listed topics, and those of `start` that the query still selects."""
        return {*self.topics, *(topic for topic, _ in start if self._reads_topic(topic))}

    def bounds_to_read(self) -> dict[PartitionKey, Bounds]:
        """Return the bounds of the existing partitions to read."""
        return {key: bounds for key, bounds in self.bounds.items() if self._is_read(key)}

    def ready_bounds(self) -> dict[PartitionKey, Bounds]:
        """Return the bounds of the existing partitions to read that are not deferred."""
        return {key: bounds for key, bounds in self.bounds_to_read().items() if key not in self.deferred}

    def missing(self, start: Offsets) -> set[PartitionKey]:
        """Return the partitions of `start` that are read but do not exist now."""
        return {key for key in start if self._is_read(key) and key not in self.bounds}

    def losses(self, start: Offsets) -> list[Loss]:
        """Return the detected or suspected losses in the unread part of the partitions."""
        return detect_losses({key: position for key, position in start.items() if self._is_read(key)}, self.bounds)

    def backlog(self, start: Offsets) -> dict[PartitionKey, tuple[Position, Position]]:
        """Return the unread range of each existing partition of `start`, up to its end or the target, without empty ranges.

        If retention deleted the messages at its start, the range begins at the first message that is still stored.
        """
        backlog = {}
        for key, bounds in self.bounds_to_read().items():
            if key in start and start[key] < (until := self._limit(key, bounds, start[key])):
                backlog[key] = (min(max(start[key], bounds.first), until), until)
        return backlog

    def end_offsets(self, start: Offsets, read_until: Offsets) -> dict[PartitionKey, Position]:
        """Return the end of a batch that reads its partitions up to `read_until`.

        If a partition was deleted and created again, its end is the first position of the new partition, and the next batch reads
        it. New partitions are added with their first position, or with the one that `begin` got for them.
        """
        recreated = {
            loss.key: loss.bounds.first
            for loss in self.losses(start)
            if loss.kind is LossKind.RECREATED and loss.bounds is not None
        }
        added = {
            key: self._deferred_positions.get(key, bounds.first)
            for key, bounds in self.ready_bounds().items()
            if key not in start and self._is_targeted(key)
        }
        return {**start, **read_until, **recreated, **added}

    def deferred_targets(self) -> set[PartitionKey]:
        """Return the partitions of the frozen target that are still deferred."""
        return {key for key in self.deferred if self.target is not None and key in self.target}

    def latest(self) -> dict[PartitionKey, Position]:
        """Return the last known end of each partition to read."""
        return {key: bounds.next for key, bounds in self.bounds_to_read().items()}

    def _is_read(self, key: PartitionKey) -> bool:
        return self._reads_topic(key[0]) and (self.assigned is None or key in self.assigned)

    def _is_targeted(self, key: PartitionKey) -> bool:
        return self.target is None or key in self.target

    def _limit(self, key: PartitionKey, bounds: Bounds, start: Position) -> Position:
        """Return where the read of a partition ends: at its end or the target, or at `start` if it is not in the target."""
        return bounds.next if self.target is None else min(bounds.next, self.target.get(key, start))
