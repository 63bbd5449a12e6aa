"""Interface of a message in a Broker's response to a get."""

from typing import Protocol


class StoredMessage(Protocol):
    """A message as a Broker delivers it: protobuf's `TransferedMessage`, or the compiled module's class with the same names."""

    @property
    def messageId(self) -> int:  # noqa: N802 - protobuf's names
        """The id that the Broker gave it."""

    @property
    def checkSum(self) -> int:  # noqa: N802
        """CRC-32 of the data without the sign bit."""

    @property
    def payLoadData(self) -> bytes:  # noqa: N802
        """The attribute block, if there is one, and the body."""

    @property
    def flag(self) -> int:
        """Bit 0 is set when there is an attribute block."""
