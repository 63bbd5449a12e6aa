"""Counts the result of each batch once, even if the transfer sends the batch in several rounds.

A round ends with a transient failure, after which the transfer opens the targets again and starts the next round. Only the first
round of a batch counts `skipped`: messages that an earlier attempt of the Spark task stored. All other counts are those of the
last round.
"""

from collections import Counter
from dataclasses import dataclass, field

from mqbridge.message import Batch
from mqbridge.spark.transfer.counts import Counts


@dataclass(slots=True)
class _BatchCounts:
    """The counts of one batch until `finish_batch`, in messages."""

    to_targets: Counter[str] = field(default_factory=Counter)
    """Messages for each target, by its label."""
    skipped: Counter[str] = field(default_factory=Counter)
    """Messages that an earlier attempt of the Spark task stored, by the label of the target."""
    filtered: int = 0
    looped: int = 0


class Tally:
    """The counts of one transfer.

    After `begin_batch`, the `count_` methods refer to that batch, until the next `begin_batch`.
    """

    def __init__(self) -> None:
        self.counts = Counts()
        self._unfinished: dict[int, _BatchCounts] = {}
        """Counts of the batches that are not finished, by `id(batch)`."""
        self._current = _BatchCounts()
        """The counts of the batch of the last `begin_batch`."""
        self._is_first_round = True
        """True unless that batch was begun before."""

    def begin_batch(self, batch: Batch) -> None:
        """Set the counts of this batch to zero, except for `skipped` if the batch is sent again."""
        earlier = self._unfinished.get(id(batch))
        # In a later round, the target also stores messages of this transfer, which do not count as skipped.
        self._current = self._unfinished[id(batch)] = _BatchCounts(skipped=earlier.skipped if earlier else Counter())
        self._is_first_round = earlier is None

    def count_filtered(self, count: int) -> None:
        """Count messages that the filter excluded."""
        self._current.filtered += count

    def count_looped(self, count: int) -> None:
        """Count messages that the loop guard dropped."""
        self._current.looped += count

    def count_target(self, label: str, count: int, skipped: int) -> None:
        """Count `count` messages for a target, which already stores `skipped` of them."""
        self._current.to_targets[label] += count
        if self._is_first_round:
            self._current.skipped[label] += skipped

    def finish_batch(self, batch: Batch) -> None:
        """Add the counts of a batch to those of the transfer; called when the batch is acknowledged."""
        finished, counts = self._unfinished.pop(id(batch)), self.counts
        counts.received += batch.count
        counts.bytes += batch.size
        counts.filtered += finished.filtered
        counts.looped += finished.looped
        counts.skipped += finished.skipped.total()
        counts.stored += finished.to_targets.total() - finished.skipped.total()
        for label, count in finished.to_targets.items():
            counts.by_target[label] = counts.by_target.get(label, 0) + count

    def count_dead(self, count: int) -> None:
        """Count messages for which a dead letter is stored instead. `finish_batch` counted them as stored."""
        self.counts.dead += count
        self.counts.stored -= count
