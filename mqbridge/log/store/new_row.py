"""A row of the table `batch` before it is stored."""

from typing import NamedTuple


class NewRow(NamedTuple):
    """A row to store: the number of its messages, and their encoded records or the data of a unit.

    format    the format of the unit; None for our own records
    first     the offset that the first message has in its source; None without a sender
    sequence  the offset that the last message has in its source; None without a sender
    """

    messages: int
    records: bytes
    format: str | None = None
    first: int | None = None
    sequence: int | None = None
