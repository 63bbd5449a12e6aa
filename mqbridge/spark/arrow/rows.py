"""From batches of messages to record batches."""

from collections.abc import Iterator

import pyarrow as pa

from mqbridge.message import Batch

MAX_ROWS = 8192
MAX_BYTES = 8 << 20
"""What one record batch holds at most, a larger single message aside: Spark copies each as a whole."""


class RowBuilder:
    """Builds the rows of batches; one per task, as it keeps what repeats.

    `schema` is what Spark demands of every record batch, to the letter.
    """

    def __init__(self, *, binary_properties: bool = False, is_part: bool = False) -> None:
        self.schema: pa.Schema = pa.schema([])
        raise NotImplementedError

    def build(self, batch: Batch) -> pa.RecordBatch:
        """All messages of a batch as one record batch."""
        raise NotImplementedError

    def pieces(self, batch: Batch) -> Iterator[pa.RecordBatch]:
        """The messages of a batch as record batches of at most MAX_ROWS and about MAX_BYTES."""
        raise NotImplementedError
