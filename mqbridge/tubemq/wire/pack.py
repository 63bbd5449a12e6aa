"""The messages in a Broker's answer to a get."""

from typing import Protocol


class Transfered(Protocol):
    """A message as a Broker hands it out, with the names of protobuf's `TransferedMessage`, which is one."""

    @property
    def messageId(self) -> int:  # noqa: N802 - protobuf's names
        """The Broker's number of it."""

    @property
    def checkSum(self) -> int:  # noqa: N802
        """CRC-32 of the data without the sign bit."""

    @property
    def payLoadData(self) -> bytes:  # noqa: N802
        """Attribute block and body."""

    @property
    def flag(self) -> int:
        """Whether there is an attribute block."""
