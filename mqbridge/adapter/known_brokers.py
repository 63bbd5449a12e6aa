"""Which brokers a cluster has, beyond the momentary answer of its servers, and the stable indexes of partitions.

RocketMQ's name servers and TubeMQ's Masters list only the partitions of brokers that run. A broker that is down looks like one
that does not exist: the other partitions would move up in the list, and a topic would seem to have too few partitions. So what is
known about brokers comes from the configuration (`brokers`), or is kept in the gateway's `state`.

The partitions of a topic form series, each numbered from 0 on: those of one broker, on TubeMQ those of one store of a broker.
The index of a partition counts by number first and then by series, over all series that are known, so that it does not change
when brokers get more partitions. Numbers that one series has and another lacks leave a gap in the indexes.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from typing import NamedTuple, Protocol, runtime_checkable
from zlib import crc32

from mqbridge.message import NO_INDEX, Partition

PARTITIONS_PER_STORE = 10_000
"""TubeMQ's partition ids count on from multiples of this number, one multiple per store. A RocketMQ broker with more queues than
this, up to the 16,384 that it may have, counts as two series; their indexes are unique as well."""
FIRST_NAME, FIRST_ID = "broker-a", "1"
"""The usual names of a first broker, of RocketMQ and of TubeMQ."""


class Series(NamedTuple):
    """Partitions of a topic that are numbered from 0 on: those of a broker, on TubeMQ those of a broker's store."""

    broker: str
    store: int

    @property
    def order(self) -> tuple[bool, int, str, int]:
        """The key by which series are sorted: broker names that are numbers by their value."""
        is_number = self.broker.isdecimal()
        return not is_number, int(self.broker) if is_number else 0, self.broker, self.store


class Location(NamedTuple):
    """The series of a partition, and its number there."""

    series: Series
    number: int


@lru_cache(maxsize=65_536)
def locate(partition: str) -> Location | None:
    """Return where a partition named `broker:number` is; None for other names, whose index is a number by itself."""
    broker, _, number = partition.rpartition(":")
    if not broker or not number.isdecimal():
        return None
    store, number_in_store = divmod(int(number), PARTITIONS_PER_STORE)
    return Location(Series(broker, store), number_in_store)


def brokers_of(partitions: Iterable[str]) -> set[str]:
    """Return the brokers of partitions that are named `broker:number`."""
    return {location.series.broker for name in partitions if (location := locate(name)) is not None}


def list_order(partition: str) -> tuple[int, tuple[bool, int, str, int]]:
    """Return the key by which the partitions of a topic are listed: by number first, then by broker and store."""
    location = locate(partition)
    assert location is not None, partition  # noqa: S101 - the adapters make these names
    return location.number, location.series.order


@lru_cache(maxsize=65_536)  # called once per batch
def _number_of_name(partition: str) -> int | None:
    location = locate(partition)
    if location is None:
        return None
    (broker, store), number = location
    series = f"{broker}/{store}" if store else broker
    first = FIRST_ID if broker.isdecimal() else FIRST_NAME
    return ((_checksum(series) - _checksum(first)) & 0xFFFFFFFF) + number


def _checksum(text: str) -> int:
    return crc32(text.encode(errors="surrogatepass"))


def stable_number(partition: Partition) -> int:
    """Return a number of a partition that depends on nothing but its name, or where names are no `broker:number`, on its index.

    Consecutive partitions of a series have consecutive numbers. The first one is a checksum of the broker's name, relative to
    that of the broker that most clusters of a single broker have: there it is 0.
    """
    number = _number_of_name(partition.name)
    return partition.index if number is None else number


class KnownBrokers:
    """The known brokers of one cluster, by topic. `named` are those that the configuration names: then they are all."""

    def __init__(self, named: Iterable[str] = ()) -> None:
        self.named = frozenset(named)
        self.is_kept = False
        """True if what is recorded is known to the next process, too."""
        self._seen: dict[str, set[str]] = {}
        """The brokers in the lists of partitions received so far, by topic; a broker that stops leaves the list."""
        self._layouts: dict[str, tuple[Series, ...]] = {}
        """The series over which indexes are counted, by topic, since a route began to rely on them."""
        self._fixed: set[str] = set()
        """The topics among `_layouts` on whose indexes this process relies."""
        self._earlier: frozenset[str] = frozenset()
        """The topics about which an earlier process has recorded brokers."""
        self._on_seen: Callable[[str, str], None] | None = None
        self._on_layout: Callable[[str, Collection[Series]], None] | None = None

    def keep(
        self,
        seen: Iterable[tuple[str, str]],
        layouts: Iterable[tuple[str, Series]],
        on_seen: Callable[[str, str], None],
        on_layout: Callable[[str, Collection[Series]], None],
    ) -> None:
        """Load the brokers and the layouts of earlier processes, as pairs with the topic; report changes to the callbacks."""
        for topic, broker in seen:
            self._seen.setdefault(topic, set()).add(broker)
        self._earlier = frozenset(self._seen)
        for topic, series in layouts:
            self._layouts[topic] = (*self._layouts.get(topic, ()), series)
        self.is_kept, self._on_seen, self._on_layout = True, on_seen, on_layout

    # --- brokers ------------------------------------------------------------------------------------------------------

    def record(self, topic: str, brokers: Iterable[str]) -> None:
        """Record that these brokers have partitions of the topic."""
        seen = self._seen.setdefault(topic, set())
        for broker in set(brokers) - seen:
            seen.add(broker)
            if self._on_seen is not None:
                self._on_seen(topic, broker)

    def of(self, topic: str) -> frozenset[str]:
        """Return the brokers that have, or may have, partitions of the topic: those named, or else all seen so far."""
        return self.named or frozenset(self._seen.get(topic, ()))

    @property
    def all(self) -> frozenset[str]:
        """The brokers named, or else all seen so far, of whatever topic."""
        return self.named or frozenset().union(*self._seen.values())

    def is_known_from_before(self, topic: str | None = None) -> bool:
        """Return True if the brokers of the topic are known by more than what the servers have listed to this process.

        None: the brokers of any topic.
        """
        return bool(self.named or (self._earlier if topic is None else topic in self._earlier))

    def advice_if_gone(self, cluster: str, absent: Iterable[str]) -> str:
        """Return what to do about brokers of this cluster that are gone for good: the end of a sentence with that condition."""
        if self.named:
            return f"remove it from `brokers` of cluster {cluster!r}"
        others = f"list the others in `brokers` of cluster {cluster!r}"
        if not self.is_kept:
            return others
        options = " ".join(f"--forget-broker {cluster}/{broker}" for broker in sorted(absent)[:1])
        return f"stop the gateway and forget it with `mqbridge state FILE {options}`, or {others}"

    # --- indexes ------------------------------------------------------------------------------------------------------

    def indexes(self, topic: str, partitions: Collection[str]) -> tuple[int, ...]:
        """Return the index of each of the topic's partitions; `partitions` are all that the servers list.

        It is NO_INDEX for a partition of a series that is not known, although others are.
        """
        ranks = {series: rank for rank, series in enumerate(self._series(topic, partitions))}
        return tuple(_index(ranks, partition) for partition in partitions)

    def index(self, topic: str, partition: str, partitions: Collection[str]) -> int:
        """Return the index of one partition, as `indexes` does; the servers may not list it among `partitions`."""
        ranks = {series: rank for rank, series in enumerate(self._series(topic, {*partitions, partition}))}
        return _index(ranks, partition)

    @property
    def layouts(self) -> Mapping[str, Collection[Series]]:
        """The series over which indexes are counted, by topic, as far as routes rely on them."""
        return self._layouts

    def fix_layout(self, topic: str, partitions: Collection[str]) -> None:
        """Count the topic's indexes over the present series from now on, in this process and, if they are kept, in later ones."""
        series = self._series(topic, partitions)
        self._fixed.add(topic)
        if self._layouts.get(topic) != series:
            self._layouts[topic] = series
            if self._on_layout is not None:
                self._on_layout(topic, series)

    def why_uncertain(self, topic: str, partitions: Collection[str]) -> str | None:
        """Return why the indexes of the topic may change while a broker is down; None if they are certain.

        A topic of a single broker counts as certain: nothing shows that there are more.
        """
        if self.named or self.is_kept or topic in self._layouts:
            return None
        brokers = sorted(brokers_of(partitions))
        if len(brokers) < 2:
            return None
        return f"topic {topic} is at several brokers ({', '.join(brokers)}), and one that is down would be missing unnoticed"

    def why_no_index(self, topic: str, partition: str) -> str:
        """Return why `index` is NO_INDEX for this partition."""
        location = locate(partition)
        if location is None:
            return f"partition {partition} is not named like those of the other brokers"
        broker, store = location.series
        if self.named and broker not in self.named:
            return f"broker {broker} is not among the `brokers` of the cluster ({', '.join(sorted(self.named))})"
        counted = sorted({series.broker for series in self._layouts.get(topic, ())})
        new = f"store {store} of broker {broker}" if broker in counted else f"broker {broker}"
        advice = (
            "; the next start of the gateway counts it" if self.named else ". To count it, name all in `brokers`, and restart"
        )
        return f"the indexes of topic {topic} are counted over its brokers {', '.join(counted)}, and {new} is new{advice}"

    def _series(self, topic: str, partitions: Collection[str]) -> tuple[Series, ...]:
        """Return the series over which the indexes are counted: fixed ones, or those of named brokers, or those present.

        The named brokers count with all stores that are present, or in the layout of an earlier process: a start accepts a store
        that was added, and keeps those of brokers that are down.
        """
        fixed = self._layouts.get(topic)
        has_named = fixed is not None and {series.broker for series in fixed} == self.named
        if fixed is not None and (not self.named or (has_named and topic in self._fixed)):
            return fixed
        present = {location.series for name in partitions if (location := locate(name)) is not None}
        if self.named:
            earlier = fixed if fixed is not None and has_named else ()
            stores = 1 + max((series.store for series in (*present, *earlier)), default=0)
            present = {Series(broker, store) for broker in self.named for store in range(stores)}
        return tuple(sorted(present, key=lambda series: series.order))


def _index(ranks: dict[Series, int], partition: str) -> int:
    location = locate(partition)
    if location is None or location.series not in ranks:
        return NO_INDEX
    return location.number * len(ranks) + ranks[location.series]


@runtime_checkable
class HasBrokers(Protocol):
    """Optional extension of a cluster whose topics have partitions at several brokers, called `broker:number`."""

    known_brokers: KnownBrokers

    async def why_incomplete(self, topic: str) -> str | None:
        """Return which known broker is down that may have partitions of the topic; None if there is none. Raises ClusterError."""

    async def why_maybe_there(self, topic: str | None) -> str | None:
        """Return why a topic that the servers do not list may exist nevertheless; None if it certainly does not.

        With None as `topic`: why there may be any topic that they do not list.

        Without knowledge about the brokers, that is never certain. Raises ClusterError.
        """
