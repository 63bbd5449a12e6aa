"""The order of a target's partitions by which `identity` and `table` choose one: it only grows at its end.

All partitions of a target, sorted by number and then by broker, are used by keys and by `modulo`; so all processes agree, but a
broker that joins moves the indexes of the partitions behind it. `identity` and `table` promise the same target partition for an
index, so they count by this order: it begins as the sorted list, and a broker that joins while the process runs comes last.

Growth reaches a list broker by broker. Brokers with equal numbers of partitions are expected to grow alike: a partition of one
waits until the others have the partitions that are sorted before it. So the order does not depend on the steps that were seen.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import count

from mqbridge.adapter.known_brokers import KnownBrokers, Location, Series, brokers_of, list_order, locate


class TargetOrder:
    """The order of one topic's partitions, which are named `broker:number`. Partitions of brokers in `last` begin at the end."""

    def __init__(self, partitions: Iterable[str], last: Collection[str] = ()) -> None:
        self.names = sorted(partitions, key=lambda name: (_location(name).series.broker in last, list_order(name)))
        self._alike: list[set[Series]] = []
        """Series that have had equal numbers of partitions, and are expected to grow alike."""
        self._join(_counts(self.names))

    def grow(self, listed: Collection[str]) -> None:
        """Append partitions that are new: all those of series that are new, and of the others those that wait for none."""
        before, now, known = _counts(self.names), _counts(listed), set(self.names)
        ready = [location for series in self._alike for location in _grown(series, before, now)]
        new = {location: name for name in listed if name not in known and (location := _location(name))}
        self.names += sorted((new[location] for location in ready if location in new), key=list_order)
        joined = {series: partitions for series, partitions in now.items() if series not in before}
        self.names += sorted((name for location, name in new.items() if location.series in joined), key=list_order)
        self._join(joined)

    def reopen(self, listed: Collection[str]) -> None:
        """Leave out partitions that are not listed any more, and append all that are new: nothing else needs to wait for them."""
        present = set(listed)
        self.names = [name for name in self.names if name in present]
        self.names += sorted(present - set(self.names), key=list_order)
        self._alike = []
        self._join(_counts(self.names))

    def _join(self, counts: Mapping[Series, int]) -> None:
        """Expect these series to grow like those that have as many partitions."""
        now = _counts(self.names)
        for series, partitions in counts.items():
            for group in self._alike:
                if all(now.get(each) == partitions for each in group):
                    group.add(series)
                    break
            else:
                self._alike.append({series})


class TargetOrders:
    """The orders of the targets of one cluster: they outlast the outbounds, which a route opens anew while it runs."""

    def __init__(self, known: KnownBrokers) -> None:
        self._known = known
        self._orders: dict[str, TargetOrder] = {}

    def open(self, topic: str, listed: Collection[str]) -> TargetOrder:
        """Return the order of a topic for a new outbound. If brokers are named, the others begin last, as if they had joined."""
        order = self._orders.get(topic)
        if order is None:
            last = brokers_of(listed) - self._known.named if self._known.named else ()
            order = self._orders[topic] = TargetOrder(listed, last)
        else:
            order.reopen(listed)
        return order


def _grown(alike: Collection[Series], before: Mapping[Series, int], now: Mapping[Series, int]) -> Iterator[Location]:
    """Yield the partitions that these series have now, in sorted order, up to the first that one of them lacks."""
    present = sorted((series for series in alike if series in now), key=lambda series: series.order)
    if not present:
        return
    for number in count(min(before.get(series, 0) for series in present)):
        for series in present:
            if number >= now[series]:
                return
            yield Location(series, number)


def _counts(names: Iterable[str]) -> dict[Series, int]:
    """Return the number of partitions of each series."""
    counts: dict[Series, int] = {}
    for series, number in map(_location, names):
        counts[series] = max(counts.get(series, 0), number + 1)
    return counts


def _location(name: str) -> Location:
    location = locate(name)
    assert location is not None, name  # noqa: S101 - the adapters make these names
    return location
