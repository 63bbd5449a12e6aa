"""What a route did, in plain integers that are added to once per batch; the metrics page reads these."""


class Counters:
    """Totals of a route since it began; they outlive restarts of the route and reloads of the configuration."""

    __slots__ = ("acknowledged", "batches", "bytes", "dead", "filtered", "gaps", "last_batch_at", "looped", "received", "stored")

    def __init__(self) -> None:
        self.received = self.stored = self.acknowledged = self.filtered = self.looped = self.dead = self.gaps = 0
        self.batches = self.bytes = 0
        self.last_batch_at = 0.0

    def totals(self) -> dict[str, int]:
        """Every total by name."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "last_batch_at"}
