"""How far a streaming sink is: kept in a file, because no object of it lives longer than one batch.

Spark makes a writer on the driver for each batch and sends it to the tasks; for the commit it makes another one, in another
process. It does not tell the first one which batch it is for. But batches come one after the other, so the file can: the batch
that begins follows the one that was committed last. Transitions:

    begin      a batch begins, committed + 1: it was begun before -> REPLAY, some of it may be stored; else it is written down as
               begun, before anything is sent -> FRESH, nothing of it is stored
    decide     a task learns its batch: committed before -> SKIP, nothing of it is sent; else as begun. Without an entry for what
               came before (the file is new or was lost) -> REPLAY
    commit     the batch is stored: what comes next is stored behind `ends`, and the totals grow. Again for the same batch (Spark
               may end before it has written its own commit, and then repeats the batch) -> nothing
    abort      nothing: what was sent is sent, and the batch comes again

The file belongs to one query. Where Spark's own files are gone it makes a query with another id, whose batches begin at 0 again:
then the file counts for nothing.

Whoever moves Spark's own checkpoint back removes the folder `mqbridge` in it, too: else batches with known numbers are skipped.
Without the folder a batch is looked for in all of its targets; only batch 0, which nothing precedes, then counts as new.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import orjson

from mqbridge.message import format_position, parse_position
from mqbridge.spark.sink.checkpoint_files import Folder, open_folder
from mqbridge.spark.transfer.spec import TopicEnds

log = logging.getLogger(__name__)

VERSION = 1
NAME = "progress"


class Stage(Enum):
    """What a task has to do with its batch."""

    FRESH = "fresh"
    REPLAY = "replay"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Progress:
    """One state; transitions make the next. -1 is no batch."""

    committed: int = -1
    begun: int = -1
    runs: int = 0
    """How often a batch was begun, or begun again."""
    ends: TopicEnds = field(default_factory=dict)
    """Where target partitions ended when the last batch was committed, or before the very first one."""
    totals: Mapping[str, int] = field(default_factory=dict)
    """Of all batches together, by the names of counts."""
    query: str = ""
    """Spark's id of it; empty where it is not known."""

    def of_query(self, query: str) -> "Progress":
        """The same for the query of this id; a new one where it is another query's."""
        if not query or query == self.query:
            return self
        if not self.query:
            return replace(self, query=query)
        log.warning("the progress of the sink is of the query %s, and this one is %s: it begins anew", self.query, query)
        return Progress(runs=self.runs, query=query)

    def begin(self, ends_now: Callable[[], TopicEnds]) -> "tuple[Progress, Stage]":
        """A writer was made for the batch behind the one that is committed."""
        if self.begun > self.committed:
            return replace(self, runs=self.runs + 1), Stage.REPLAY
        ends = ends_now() if self.committed < 0 else self.ends
        return replace(self, runs=self.runs + 1, begun=self.committed + 1, ends=ends), Stage.FRESH

    def decide(self, batch_id: int, stage: Stage) -> Stage:
        """What a task of this batch does, by what `begin` said."""
        if batch_id <= self.committed:
            return Stage.SKIP
        return stage if batch_id == self.committed + 1 else Stage.REPLAY

    def ends_before(self, batch_id: int) -> TopicEnds:
        """Nothing of this batch is stored before them."""
        return self.ends if self.committed >= 0 or batch_id == 0 else {}

    def commit(self, batch_id: int, ends: TopicEnds, totals: Mapping[str, int]) -> "Progress":
        """Everything of the batch is stored."""
        if batch_id <= self.committed:
            return self
        added = {name: self.totals.get(name, 0) + count for name, count in totals.items()}
        return replace(self, committed=batch_id, begun=batch_id, ends={**self.ends, **ends}, totals={**self.totals, **added})

    def as_json(self) -> bytes:
        """For the file."""
        ends = [
            {
                "cluster": cluster,
                "topic": topic,
                "partitions": {str(index): format_position(position) for index, position in partitions.items()},
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
            },
            option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS,
        )

    @classmethod
    def from_json(cls, data: bytes) -> "Progress":
        """Read it back. Raises ValueError."""
        try:
            found: dict[str, Any] = orjson.loads(data)
            if found["version"] != VERSION:
                raise ValueError(f"version {found['version']} is not known")
            ends = {
                (one["cluster"], one["topic"]): {int(index): parse_position(text) for index, text in one["partitions"].items()}
                for one in found["ends"]
            }
            return cls(found["committed"], found["begun"], found["runs"], ends, found["totals"], found.get("query", ""))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it is no progress of a sink: {error!r}") from error


def load_progress(folder: Folder) -> Progress:
    """What the file says; a new one when there is none. Raises OSError, and ValueError when it cannot be read."""
    data = folder.read(NAME)
    progress = Progress() if data is None else Progress.from_json(data)
    return progress.of_query(_query_of(folder))


def _query_of(folder: Folder) -> str:
    """The id of the query that the checkpoint is of, as Spark keeps it there."""
    try:
        return str(orjson.loads(folder.read_beside("metadata") or b"")["id"])
    except (ValueError, KeyError, TypeError):
        return ""


def save_progress(folder: Folder, progress: Progress) -> None:
    """Replace the file. Raises OSError."""
    folder.write(NAME, progress.as_json())


def read_totals(location: str) -> dict[str, int]:
    """The totals of a query by its checkpoint, by the names of counts; empty where there are none yet."""
    folder = open_folder(location)
    return {} if folder is None else dict(load_progress(folder).totals)
