"""The filter of a batch that is repeated with another filter than the one with which it began.

A message that the first filter did not select is not stored, although later messages are. With the new filter alone it would look
like a message that the target refused. So a repeated batch stores only the messages that both filters select: a narrower filter
has an effect at once, a wider one from the next batch on.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import orjson

from mqbridge.config.options.filter import FilterRules
from mqbridge.message import Batch, Share
from mqbridge.routing.filters import Filter, make_filter


@dataclass(frozen=True, slots=True)
class Selection:
    """Selects the messages to store: those of these types (empty: of all types) that the rules accept."""

    msg_types: frozenset[str] = frozenset()
    rules: FilterRules = field(default_factory=FilterRules)

    def as_json(self) -> str:
        """Return the selection as text; equal selections have equal texts."""
        rules = self.rules.model_dump(mode="json", exclude_defaults=True)
        return orjson.dumps({"msg_types": sorted(self.msg_types), "filter": rules}, option=orjson.OPT_SORT_KEYS).decode()

    @classmethod
    def from_json(cls, text: str) -> "Selection":
        """Return the selection from its text. Raises ValueError."""
        content = orjson.loads(text)
        try:
            return cls(frozenset(content["msg_types"]), FilterRules.model_validate(content["filter"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"it is not the text of a selection: {error!r}") from error

    def make_filter(self, on_filtered: Callable[[int], None], earlier: "Selection | None") -> Filter | None:
        """Return the filter, which also applies the `earlier` selection; None if both select all messages."""
        before = None if earlier is None else make_filter(earlier.msg_types, earlier.rules, lambda _: None)
        if before is None:
            return make_filter(self.msg_types, self.rules, on_filtered)
        return _FilterOfRepeatedBatch(self, on_filtered, before)


class _FilterOfRepeatedBatch(Filter):
    """Selects the messages that both the current and an earlier filter select."""

    def __init__(self, selection: Selection, on_filtered: Callable[[int], None], earlier: Filter) -> None:
        super().__init__(selection.msg_types, selection.rules, on_filtered)
        self._on_excluded, self._earlier = on_filtered, earlier

    def keep(self, batch: Batch) -> Share:
        """Return a share with the messages of the batch that pass both."""
        share, earlier_indexes = super().keep(batch), frozenset(self._earlier.keep(batch).batch_indexes)
        indexes = [index for index in share.batch_indexes if index in earlier_indexes]
        if len(indexes) == share.count:
            return share
        self._on_excluded(share.count - len(indexes))
        return Share(batch, indexes)
