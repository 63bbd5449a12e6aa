"""A row of the table `batch` before it is stored."""

from typing import NamedTuple


class NewRow(NamedTuple):
    """A row to store: the number of its messages, and their encoded records or the data of a unit.

    format    the format of the unit; None for our own records
    first     the sequence of the first message, which stands for its position in the source (`mapping.sequences`); None without
              a sender, and if the position does not fit
    sequence  the sequence of the last message
    """

    messages: int
    records: bytes
    format: str | None = None
    first: int | None = None
    sequence: int | None = None
