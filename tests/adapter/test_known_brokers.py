"""Numbers and indexes of partitions do not depend on which brokers run at the moment."""

from collections.abc import Iterable

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mqbridge.adapter.known_brokers import PARTITIONS_PER_STORE, KnownBrokers, Series, list_order, locate, stable_number
from mqbridge.message import NO_INDEX, Partition
from tests.adapter.rows import Rows

A, B, C = "broker-a", "broker-b", "broker-c"


def names(**queues: int) -> list[str]:
    """Return the partitions of brokers, given by the last letter of their name, with these numbers of queues."""
    return [f"broker-{letter}:{number}" for letter, count in queues.items() for number in range(count)]


def numbers(partitions: Iterable[str]) -> dict[str, int]:
    return {name: stable_number(Partition("c", "t", name, index=0)) for name in partitions}


def test_the_number_of_a_partition_depends_on_its_name_only() -> None:
    found = numbers(names(a=4, b=4))
    assert [found[f"{A}:{n}"] for n in range(4)] == [0, 1, 2, 3]
    assert [found[f"{B}:{n}"] - found[f"{B}:0"] for n in range(4)] == [0, 1, 2, 3]
    assert found[f"{B}:0"] == 1_760_997_786
    assert numbers([f"{B}:3"]) == {f"{B}:3": found[f"{B}:3"]}
    assert [stable_number(Partition("c", "t", name, index)) for index, name in enumerate(("0", "1"))] == [0, 1]
    assert stable_number(Partition("c", "t", "-1", 0)) == 0, "an unpartitioned topic of Pulsar"


def test_the_stores_of_a_broker_are_series_of_their_own() -> None:
    assert locate("1:20003") == (Series("1", 2), 3)
    found = numbers(["1:0", "1:1", "1:10000", "1:10001"])
    assert found["1:0"] == 0
    assert found["1:10001"] - found["1:10000"] == found["1:1"] - found["1:0"] == 1
    assert found["1:10000"] - found["1:0"] != 10_000


def test_partitions_are_listed_by_number_and_then_by_broker() -> None:
    assert sorted(names(b=2, a=3), key=list_order) == [f"{A}:0", f"{B}:0", f"{A}:1", f"{B}:1", f"{A}:2"]
    assert sorted(["10:0", "9:1", "9:0", "9:10000"], key=list_order) == ["9:0", "9:10000", "10:0", "9:1"]


def test_indexes_of_a_single_broker_are_its_numbers() -> None:
    known = KnownBrokers()
    assert known.indexes("t", names(b=3)) == (0, 1, 2)
    assert known.why_uncertain("t", names(b=3)) is None


def test_named_brokers_have_their_indexes_whether_or_not_they_run() -> None:
    known = KnownBrokers([B, A])
    assert known.indexes("t", names(a=2, b=2)) == (0, 2, 1, 3)
    assert known.indexes("t", names(b=2)) == (1, 3)
    assert known.indexes("t", names(b=3)) == (1, 3, 5), "more queues are added at the end"
    assert known.index("t", f"{C}:0", names(b=2)) == NO_INDEX
    assert "broker-c is not among the `brokers`" in known.why_no_index("t", f"{C}:0")


def test_indexes_over_several_brokers_are_uncertain_unless_they_are_named_or_kept() -> None:
    known = KnownBrokers()
    assert "several brokers (broker-a, broker-b)" in (known.why_uncertain("t", names(a=1, b=1)) or "")
    assert KnownBrokers([A, B]).why_uncertain("t", names(a=1, b=1)) is None
    known.is_kept = True
    assert known.why_uncertain("t", names(a=1, b=1)) is None


def test_a_layout_stays_when_a_broker_is_added() -> None:
    known = KnownBrokers()
    known.fix_layout("t", names(a=1))
    assert known.indexes("t", names(a=2, b=1)) == (0, 1, NO_INDEX)
    assert "broker broker-b is new" in known.why_no_index("t", f"{B}:0")


def test_a_changed_list_of_names_replaces_a_kept_layout() -> None:
    layout = [("t", Series(A, 0)), ("t", Series(B, 0))]
    for named, indexes in (((), (0, 1)), ((A, B), (0, 1)), ((A, B, C), (0, 1)), ((B,), (NO_INDEX, 0))):
        known = KnownBrokers(named)
        known.keep([("t", A), ("t", B)], layout, lambda *_: None, lambda *_: None)
        assert known.indexes("t", names(a=1, b=1)) == indexes
    known = KnownBrokers([A, B, C])
    known.keep([], layout, lambda *_: None, lambda *_: None)
    assert known.indexes("t", names(a=2)) == (0, 3)


def test_a_store_that_is_added_is_not_counted_before_a_start_over_named_brokers() -> None:
    one_store, two_stores = ["1:0", "2:0"], ["1:0", "1:10000", "2:0", "2:10000"]
    kept = [("t", Series("1", 0)), ("t", Series("2", 0))]
    for named in ((), ("1", "2")):
        known = KnownBrokers(named)
        known.keep([], kept, lambda *_: None, lambda *_: None)
        known.fix_layout("t", one_store)
        assert known.indexes("t", two_stores) == (0, NO_INDEX, 1, NO_INDEX), "not while the gateway runs"
        assert "store 1 of broker 2 is new" in known.why_no_index("t", "2:10000")
    known = KnownBrokers(["1", "2"])
    known.keep([], kept, lambda *_: None, lambda *_: None)
    assert known.indexes("t", two_stores) == (0, 1, 2, 3)
    known.fix_layout("t", two_stores)
    assert known.indexes("t", ["2:0"]) == (2,), "while no partition of the second store is listed"


def test_two_instances_with_a_state_of_their_own_agree_only_over_named_brokers() -> None:
    for named, agree in (((), False), ((A, B), True)):
        old, new = KnownBrokers(named), KnownBrokers(named)
        old.keep([], [("t", Series(A, 0)), ("t", Series(B, 0))], lambda *_: None, lambda *_: None)
        new.keep([], [], lambda *_: None, lambda *_: None)
        for known in (old, new):
            known.fix_layout("t", names(b=1))  # broker-a is down
        assert (old.indexes("t", names(b=1)) == new.indexes("t", names(b=1))) == agree


def test_a_kept_layout_keeps_the_stores_of_a_broker_that_is_down() -> None:
    known = KnownBrokers(["1", "2"])
    known.keep([], [("t", Series(broker, store)) for broker in "12" for store in (0, 1)], lambda *_: None, lambda *_: None)
    assert known.indexes("t", ["1:0", "1:1"]) == (0, 4)


class MomentaryLists(RuleBasedStateMachine):
    """Brokers stop, return and get queues, and gateways start anew, with `state`, with `brokers`, or with neither.

    Each of them has the number of a queue that all others have; those that count over known brokers have its index, too.
    """

    @initialize(counts=st.lists(st.integers(1, 4), min_size=2, max_size=4))
    def create(self, counts: list[int]) -> None:
        self.queues = {f"broker-{letter}": count for letter, count in zip("abcd", counts, strict=False)}
        self.down: set[str] = set()
        self.rows = Rows()
        self.first_numbers: dict[str, int] = {}
        self.first_indexes: dict[str, int] = {}
        self.known = [self.start(by_name=True), self.start(by_name=False)]

    def start(self, *, by_name: bool) -> KnownBrokers:
        known = KnownBrokers(self.queues if by_name else ())
        if not by_name:
            self.rows.load_into(known)
        known.fix_layout("t", self.listed)
        return known

    @property
    def listed(self) -> list[str]:
        running = [(broker, count) for broker, count in self.queues.items() if broker not in self.down]
        return [f"{broker}:{number}" for broker, count in running for number in range(count)]

    @rule(data=st.data())
    def stop_a_broker(self, data: st.DataObject) -> None:
        self.down.add(data.draw(st.sampled_from(sorted(self.queues))))

    @rule()
    def start_all_brokers(self) -> None:
        self.down.clear()

    @rule(data=st.data(), count=st.integers(1, 3))
    def add_queues(self, data: st.DataObject, count: int) -> None:
        self.queues[data.draw(st.sampled_from(sorted(self.queues)))] += count

    @rule(by_name=st.booleans())
    def restart_a_gateway(self, by_name: bool) -> None:
        self.known[0 if by_name else 1] = self.start(by_name=by_name)

    @invariant()
    def numbers_and_indexes_stay(self) -> None:
        listed = self.listed
        for name, number in numbers(listed).items():
            assert self.first_numbers.setdefault(name, number) == number
        for known in self.known:
            for name, index in zip(listed, known.indexes("t", listed), strict=True):
                assert self.first_indexes.setdefault(name, index) == index
                assert known.index("t", name, []) == index
        assert len(set(self.first_indexes.values())) == len(self.first_indexes), "no two queues have one index"


TestMomentaryLists = MomentaryLists.TestCase


class SeveralInstances(RuleBasedStateMachine):
    """Instances with the same `brokers`, each with a state of its own or none, start at different times.

    Brokers stop, return and get queues, and brokers that are named get the topic later. Whatever an instance has seen, it counts
    as all others do. On TubeMQ (names that are numbers) that holds if the brokers have equally many stores.
    """

    @initialize(named=st.sampled_from([(A, B, C), ("1", "2", "10")]), stores=st.integers(1, 2))
    def create(self, named: tuple[str, ...], stores: int) -> None:
        self.named, self.stores = named, stores if named[0].isdecimal() else 1
        self.queues = {named[1]: 2}
        self.down: set[str] = set()
        self.rows: list[Rows | None] = [Rows(), Rows(), None]
        self.known: list[KnownBrokers] = []
        self.first_indexes: dict[str, int] = {}
        for number in range(len(self.rows)):
            self.start(number)

    def start(self, number: int) -> None:
        known, rows = KnownBrokers(self.named), self.rows[number]
        if rows is not None:
            rows.load_into(known)
        if self.listed:  # otherwise the topic does not exist, and the route waits
            known.record("t", {name.partition(":")[0] for name in self.listed})
            known.fix_layout("t", self.listed)
            self.known[number : number + 1] = [known]

    @property
    def listed(self) -> list[str]:
        running = [(broker, count) for broker, count in self.queues.items() if broker not in self.down]
        return [
            f"{broker}:{store * PARTITIONS_PER_STORE + number}"
            for broker, count in running
            for store in range(self.stores)
            for number in range(count)
        ]

    @rule(data=st.data())
    def a_broker_stops(self, data: st.DataObject) -> None:
        self.down.add(data.draw(st.sampled_from(self.named)))

    @rule()
    def all_brokers_run(self) -> None:
        self.down.clear()

    @rule(data=st.data(), count=st.integers(1, 3))
    def a_broker_gets_queues(self, data: st.DataObject, count: int) -> None:
        broker = data.draw(st.sampled_from(self.named))
        self.queues[broker] = self.queues.get(broker, 0) + count

    @rule(number=st.integers(0, 2))
    def an_instance_starts_again(self, number: int) -> None:
        self.start(number)

    @invariant()
    def all_instances_agree(self) -> None:
        for partition in self.listed:
            for known in self.known:
                index = known.index("t", partition, self.listed)
                assert self.first_indexes.setdefault(partition, index) == index


TestSeveralInstances = SeveralInstances.TestCase


def test_two_instances_disagree_about_a_store_that_one_of_them_has_not_seen() -> None:
    """A TubeMQ Broker that is down does not tell how many stores it has: only a state that has seen it helps."""
    early, late = KnownBrokers(["1", "2"]), KnownBrokers(["1", "2"])
    early.fix_layout("t", ["1:0", "1:1"])  # Broker 2 is down
    late.fix_layout("t", everything := ["1:0", "1:1", "2:0", "2:1", "2:10000", "2:10001"])
    assert early.index("t", "2:10000", everything) == NO_INDEX, "it is not read"
    assert early.index("t", "1:1", everything) != late.index("t", "1:1", everything)
