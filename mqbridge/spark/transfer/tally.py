"""Counts what becomes of each batch, once: a batch that is sent again counts as when it is stored."""

from collections import Counter
from dataclasses import dataclass, field

from mqbridge.message import Batch
from mqbridge.spark.transfer.counts import Counts


@dataclass(slots=True)
class _Entry:
    placed: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    filtered: int = 0
    looped: int = 0


class Tally:
    """The counts of one transfer. Between `begin` of a batch and the next, everything else is about that batch."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._open: dict[int, _Entry] = {}
        self._entry = _Entry()

    def begin(self, batch: Batch) -> None:
        """This batch is divided next, for the first time or again."""
        before = self._open.get(id(batch))
        # What an attempt of this transfer has stored is not "stored before": only the first look at a batch tells.
        self._entry = self._open[id(batch)] = _Entry(skipped=before.skipped if before else Counter())
        self._is_first = before is None

    def filtered(self, count: int) -> None:
        """The filter left these out."""
        self._entry.filtered += count

    def looped(self, count: int) -> None:
        """The loop guard held these back."""
        self._entry.looped += count

    def placed(self, label: str, count: int, skipped: int) -> None:
        """So many are for this target, of which it was found to have `skipped`."""
        self._entry.placed[label] += count
        if self._is_first:
            self._entry.skipped[label] += skipped

    def stored(self, batch: Batch) -> None:
        """Nothing of it is left to do."""
        entry, counts = self._open.pop(id(batch)), self.counts
        counts.received += batch.count
        counts.bytes += batch.size
        counts.filtered += entry.filtered
        counts.looped += entry.looped
        counts.skipped += entry.skipped.total()
        counts.stored += entry.placed.total() - entry.skipped.total()
        for label, count in entry.placed.items():
            counts.by_target[label] = counts.by_target.get(label, 0) + count

    def dead(self, count: int) -> None:
        """Dead letters that are stored instead of messages."""
        self.counts.dead += count
        self.counts.stored -= count
