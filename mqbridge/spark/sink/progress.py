"""The progress of a streaming sink, stored in a file because none of the sink's objects lives longer than one batch.

For each batch, Spark makes a writer on the driver and sends it to the tasks. For the commit it makes another writer, in another
process. It does not tell the first writer the id of its batch. But batches run one after the other, so the file tells it: the
batch that begins is the one after the last committed batch. Transitions:

    begin      The batch `committed + 1` begins. If it was begun before: REPLAY, because some of it may be stored. Otherwise it is
               recorded as begun before anything is sent: FRESH, because nothing of it is stored.
    decide     A task learns the id of its batch. If that batch is committed: SKIP, nothing is sent. If the file does not know the
               batch before it (the file is new or was lost): REPLAY. Otherwise the stage from `begin`.
    commit     The batch is stored. All later batches are stored after the positions `ends`; the totals grow. A repeated commit
               changes nothing: Spark may crash before it records its own commit, and then repeats the batch.
    abort      Changes nothing: the messages that were sent remain sent, and Spark repeats the batch.

The file belongs to one query. If Spark's own files are deleted, Spark makes a query with another id, whose batch ids begin at 0
again. Then the file is ignored.

An operator who restores an older version of Spark's checkpoint must delete the folder `mqbridge` in it, or batches that the
file counts as committed are skipped. Without the folder, all targets are searched for the messages of a batch; only batch 0, the
first one, counts as new.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, TypeVar

import orjson

from mqbridge.message import format_position, parse_position
from mqbridge.spark.sink.checkpoint_files import CheckpointFiles, open_checkpoint_files
from mqbridge.spark.transfer.spec import TopicEnds
from mqbridge.wire.limits import shorten

T = TypeVar("T")
log = logging.getLogger(__name__)

VERSION = 1
"""Version of the format of the file. Another version is an error."""
FILE_NAME = "progress"


class Stage(Enum):
    """What a task must do with the messages of its batch."""

    FRESH = "fresh"
    """Send all: none of them is stored."""
    REPLAY = "replay"
    """Send those that are not stored: search the targets first."""
    SKIP = "skip"
    """Send none: all of them are stored."""


@dataclass(frozen=True, slots=True)
class Progress:
    """An immutable state of the sink; each transition returns the next state. The batch id -1 means none."""

    committed: int = -1
    """Id of the last batch that the sink has committed."""
    begun: int = -1
    """Id of the last batch that has begun."""
    runs: int = 0
    """How often a batch has begun; a repeated batch counts each time. It orders the attempts at a task (see `attempt_fence`)."""
    ends: TopicEnds = field(default_factory=dict)
    """End positions of the target partitions when the last batch was committed; before that, when the first batch began."""
    totals: Mapping[str, int] = field(default_factory=dict)
    """Sums over all batches, by the field names of `Counts`."""
    query: str = ""
    """Spark's id of the query; empty if unknown."""
    selection: str = ""
    """With which filter the batch began that has begun (`Selection.as_json`); empty if unknown."""
    names_writers: bool = True
    """Whether the origins of all messages of the batch that has begun name their writer. Earlier versions wrote none."""

    def of_query(self, query: str) -> "Progress":
        """Return this state for the query with this id (empty: unknown). The state of another query is emptied, except `runs`."""
        if not query or query == self.query:
            return self
        if not self.query:
            return replace(self, query=query)
        text = "ignoring the sink's progress: it belongs to query %s, not to this query %s, which begins without progress"
        log.warning(text, self.query, query)
        # Keep `runs`: files of the other query's attempts may remain, and a task stops if it finds an attempt of a later run.
        return Progress(runs=self.runs, query=query)

    def begin(self, find_ends: Callable[[], TopicEnds], selection: str = "") -> "tuple[Progress, Stage]":
        """Begin the batch after the last committed one, and return the next state and the stage of the batch.

        `find_ends` returns the current ends of the targets. It is called for the first batch of this state only. `selection` is
        the current filter. A batch that was begun before keeps the filter that it began with.
        """
        if self.begun > self.committed:
            return replace(self, runs=self.runs + 1), Stage.REPLAY
        ends = find_ends() if self.committed < 0 else self.ends
        return (
            replace(self, runs=self.runs + 1, begun=self.committed + 1, ends=ends, selection=selection, names_writers=True),
            Stage.FRESH,
        )

    def decide(self, batch_id: int, stage: Stage) -> Stage:
        """Return the stage for a task of this batch; `stage` is the stage that `begin` returned."""
        if batch_id <= self.committed:
            return Stage.SKIP
        return stage if batch_id == self.committed + 1 else Stage.REPLAY

    def ends_before(self, batch_id: int) -> TopicEnds:
        """Return positions before which nothing of this batch is stored; empty if unknown."""
        # Without a committed batch, `ends` are those from before batch 0, so they hold for batch 0 only.
        return self.ends if self.committed >= 0 or batch_id == 0 else {}

    def commit(self, batch_id: int, ends: TopicEnds, totals: Mapping[str, int]) -> "Progress":
        """Record that the whole batch is stored. `ends` replaces earlier ends of the same topics; `totals` is added."""
        if batch_id <= self.committed:
            return self
        sums = {name: self.totals.get(name, 0) + count for name, count in totals.items()}
        return replace(self, committed=batch_id, begun=batch_id, ends={**self.ends, **ends}, totals={**self.totals, **sums})

    def as_json(self) -> bytes:
        """Return the content of the file."""
        ends = [
            {
                "cluster": cluster,
                "topic": topic,
                "partitions": {name: format_position(position) for name, position in partitions.items()},
            }
            for (cluster, topic), partitions in self.ends.items()
        ]
        return orjson.dumps(
            {
                "version": VERSION,
                "committed": self.committed,
                "begun": self.begun,
                "runs": self.runs,
                "ends": ends,
                "totals": dict(self.totals),
                "query": self.query,
                "selection": self.selection,
                "names_writers": self.names_writers,
            },
            option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS,
        )

    @classmethod
    def from_json(cls, data: bytes) -> "Progress":
        """Parse the content of the file. Raises ValueError."""
        try:
            content: dict[str, Any] = orjson.loads(data)
            if content["version"] != VERSION:
                raise ValueError(f"unknown version {content['version']}, expected {VERSION}")
            ends = {
                # Earlier versions wrote indexes. Where these are no names, the partition is searched from its beginning.
                (topic["cluster"], topic["topic"]): {name: parse_position(text) for name, text in topic["partitions"].items()}
                for topic in content["ends"]
            }
            return cls(
                _typed(content["committed"], int),
                _typed(content["begun"], int),
                _typed(content["runs"], int),
                ends,
                {name: _typed(total, int) for name, total in content["totals"].items()},
                _typed(content.get("query", ""), str),
                _typed(content.get("selection", ""), str),
                _typed(content.get("names_writers", False), bool),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it is not a progress file of the sink: {error!r}") from error


def _typed(value: Any, of: type[T]) -> T:
    """Return a value that must have this type. Raises TypeError."""
    if type(value) is not of:
        raise TypeError(f"{shorten(repr(value), 100)} is not of type {of.__name__}")
    return value


def load_progress(files: CheckpointFiles) -> Progress:
    """Return the state in the file; an empty state without a file. Raises OSError, and ValueError for an invalid file."""
    data = files.read(FILE_NAME)
    progress = Progress() if data is None else Progress.from_json(data)
    return progress.of_query(_find_query_id(files))


def _find_query_id(files: CheckpointFiles) -> str:
    """Return the id of the query that the checkpoint belongs to, from Spark's own file `metadata`; empty if unknown."""
    try:
        return str(orjson.loads(files.read_spark_file("metadata") or b"")["id"])
    except (ValueError, KeyError, TypeError):
        return ""


def save_progress(files: CheckpointFiles, progress: Progress) -> None:
    """Replace the content of the file. Raises OSError."""
    files.write(FILE_NAME, progress.as_json())


def read_totals(checkpoint: str) -> dict[str, int]:
    """Return the totals of the query with this checkpoint; empty before its first commit, or if pyarrow cannot access it.

    Raises OSError, ValueError.
    """
    files = open_checkpoint_files(checkpoint)
    return {} if files is None else dict(load_progress(files).totals)
