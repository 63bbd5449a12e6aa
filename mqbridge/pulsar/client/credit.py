"""How many messages a consumer may ask for, so that what it holds stays within a number of bytes.

Pulsar's credit (FLOW) counts messages and knows nothing of their size, and it cannot be taken back. So the size of a message is
estimated: the largest possible one until the first has been seen, from then on upwards at once and downwards slowly. The broker
sends whole entries while the credit is above 0, hence it may end up negative by almost a batch.
"""

MAX_OUTSTANDING = 100_000
"""Messages asked for and not received; even empty messages cost something."""
MAX_GRANT = 0x7FFFFFFF
_FORGET = 0.05
"""How much of the distance the estimate goes towards a smaller message."""


class Credit:
    """The books of one consumer's credit with the broker."""

    __slots__ = ("_estimate", "_largest", "_max_bytes", "held", "outstanding")

    def __init__(self, max_bytes: int, max_message_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._largest = max_message_bytes
        self._estimate = 0.0
        self.held = 0
        """Bytes received and not yet handed over."""
        self.outstanding = 0
        """Messages granted minus messages received."""

    @property
    def overflowed(self) -> bool:
        """Messages became so much larger that what is held is out of all proportion."""
        return self.held > 4 * self._max_bytes + self._largest

    def reset(self) -> None:
        """A new session: the broker has forgotten what it was granted."""
        self.outstanding = 0

    def received(self, messages: int, size: int) -> None:
        """An entry came that is charged with so many messages."""
        self.held += size
        self.outstanding -= messages
        each = size / max(1, messages)
        known = self._estimate
        self._estimate = each if each > known else known + (each - known) * _FORGET

    def hold(self, size: int) -> None:
        """A message was joined from chunks that were let go before; one of this size is no sign that too much is held."""
        self.held += size
        self._largest = max(self._largest, size)

    def handed_over(self, size: int) -> None:
        """An entry was taken, or dropped."""
        self.held -= size

    def grant(self) -> int:
        """How many messages to ask for now; 0 while it is not worth a command or there is no room."""
        room = self._max_bytes - self.held
        if room <= 0:
            return 0
        target = max(1, min(MAX_OUTSTANDING, int(room / (self._estimate or self._largest))))
        wanted = target - self.outstanding
        if wanted <= 0 or (wanted < target // 2 and self.outstanding > 0):
            return 0
        granted = min(wanted, MAX_GRANT)
        self.outstanding += granted
        return granted
