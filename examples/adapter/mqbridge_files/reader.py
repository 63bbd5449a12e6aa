"""Reads the lines of a partition as batches, for the lanes of groups and for readers."""

import asyncio

from mqbridge.errors import ClusterError
from mqbridge.message import Batch, Partition, Position
from mqbridge_files.records import decode
from mqbridge_files.storage import PartitionFile

BATCH_LINES = 500
"""Maximum number of lines in a batch."""
POLL_S = 0.05
"""Interval at which a reader at the end looks for new lines, which other processes may write."""


def read_batch(file: PartitionFile, source: Partition, first: int, max_lines: int, run: int = 0) -> Batch | None:
    """Read up to `max_lines` lines from the line `first` as a batch; return None if there are no lines yet.

    The lines are decoded on the first access to the messages. Raises ClusterError, which is retried, if the file cannot be read.
    """
    try:
        lines = file.lines(first, min(max_lines, BATCH_LINES))
    except OSError as error:
        raise ClusterError(f"{source} cannot be read: {error}") from error
    if not lines:
        return None
    return Batch(
        source,
        lambda: [decode(line, (first + index,)) for index, line in enumerate(lines)],
        count=len(lines),
        size=sum(map(len, lines)),
        first=(first,),
        next=(first + len(lines),),
        format="files.lines",
        data=lines,
        handle=run,
    )


class FilesReader:
    """Reads the lines of one partition from a position on, up to an end, if there is one. Nothing is stored about it."""

    def __init__(self, file: PartitionFile, partition: Partition, begin: Position, end: Position | None) -> None:
        self.partition, self.position = partition, begin
        self._file, self._end = file, end

    @property
    def caught_up(self) -> bool:
        """True if every line of the partition was received."""
        return self.position[0] >= self._file.count

    async def receive(self) -> Batch | None:
        """Return the next lines; None at the end. Without an end, wait for new lines."""
        while True:
            (line,) = self.position
            if self._end is not None and line >= self._end[0]:
                return None
            batch = read_batch(self._file, self.partition, line, BATCH_LINES if self._end is None else self._end[0] - line)
            if batch is not None:
                self.position = batch.next
                return batch
            if self._end is not None:
                return None  # the partition ends before the range
            await asyncio.sleep(POLL_S)

    async def seek(self, position: Position) -> None:
        """Continue at this position."""
        self.position = position

    async def close(self, deadline: float | None = None) -> None:
        """Do nothing: no file stays open between calls."""
