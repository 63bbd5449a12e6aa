"""Interface of a message in a Broker's response to a get."""

from typing import Protocol


class StoredMessage(Protocol):
    """A message as a Broker delivers it: protobuf's `TransferedMessage`, or the compiled module's class with the same names."""

    @property
    def messageId(self) -> int:  # noqa: N802 - protobuf's names
        """The id that the Broker assigned."""

    @property
    def checkSum(self) -> int:  # noqa: N802
        """CRC-32 of `payLoadData`, without the sign bit."""

    @property
    def payLoadData(self) -> bytes:  # noqa: N802
        """The attribute block, if any, then the body."""

    @property
    def flag(self) -> int:
        """Flags; bit 0 is set if there is an attribute block."""
