"""What a state file keeps about brokers, in memory."""

from mqbridge.adapter.known_brokers import KnownBrokers, Series


class Rows:
    """What a state file has kept about one cluster."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, str]] = set()
        self.layouts: dict[str, tuple[Series, ...]] = {}

    def load_into(self, known: KnownBrokers) -> None:
        layouts = [(topic, series) for topic, all_series in self.layouts.items() for series in all_series]
        known.keep(
            self.seen,
            layouts,
            lambda topic, broker: self.seen.add((topic, broker)),
            lambda topic, series: self.layouts.update({topic: tuple(series)}),
        )
