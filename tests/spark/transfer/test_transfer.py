"""A transfer stores each message once, whatever fails: failures in the middle, lost answers, crashes and refusals."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mqbridge.adapter.outbound import OutboundSpec
from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.config.options.delivery import DeadLetter, Delivery
from mqbridge.config.options.edit import EditRules
from mqbridge.config.options.filter import FilterRules
from mqbridge.config.options.partition_rule import PartitionRule
from mqbridge.config.options.target import Target
from mqbridge.errors import ClusterError, ConfigError, DeliveryError, Failure
from mqbridge.memory.adapter.cluster import MemoryCluster
from mqbridge.memory.adapter.config import MemoryConfig
from mqbridge.message import NO_SOURCE, Batch, Message, Partition, Position, Share
from mqbridge.net.tasks import cancel, spawn
from mqbridge.spark.cluster_ref import ClusterRef
from mqbridge.spark.transfer import transfer as transfer_module
from mqbridge.spark.transfer.counts import Counts
from mqbridge.spark.transfer.resume import find_ends
from mqbridge.spark.transfer.spec import Replay, TargetsSpec
from mqbridge.spark.transfer.target_partitions import Placement, RowPlacements
from mqbridge.spark.transfer.transfer import Transfer
from tests.spark.transfer.flaky import BAD, SOURCE, Action, FlakyCluster, FlakyOutbound, batch, conversation, iterate, message

REF = ClusterRef("here", "memory", MemoryConfig())
LETTERS = Delivery(dead_letter=DeadLetter(cluster="here", topic="dead"))


def spec_of(*targets: Target, **changes: object) -> TargetsSpec:
    return TargetsSpec("job", {"here": REF}, targets or (Target(cluster="here", topic="copy"),), **changes)  # type: ignore[arg-type]


async def cluster_of(script: Sequence[Action] = (), partitions: int = 2, **config: object) -> FlakyCluster:
    cluster = FlakyCluster("here", script, **config)
    await cluster.connect()
    for topic in ("copy", "other", "dead"):
        await cluster.create(topic, partitions)
    return cluster


def batches_of(messages: Sequence[Message], size: int = 3) -> list[Batch]:
    return [batch(messages[begin : begin + size]) for begin in range(0, len(messages), size)]


async def move(
    cluster: FlakyCluster,
    spec: TargetsSpec,
    batches: Sequence[Batch],
    replay: Replay | None = None,
    source: Partition = SOURCE,
) -> Counts:
    return await Transfer(spec, source, "job", find_cluster=cluster.find, replay=replay).run(iterate(batches))


async def move_or_crash(
    cluster: FlakyCluster, spec: TargetsSpec, batches: Sequence[Batch], replay: Replay | None
) -> Counts | None:
    """None after a crash: everything ends where it is, and is gone."""
    moving = spawn(move(cluster, spec, batches, replay), "moving", quiet=True)
    crash = spawn(cluster.crashed.wait(), "crash", quiet=True)
    await asyncio.wait([moving, crash], return_when=asyncio.FIRST_COMPLETED)
    crashed = cluster.crashed.is_set()
    await cancel(moving, crash)
    await asyncio.sleep(1)  # what a broker has is stored
    cluster.restart()
    return None if crashed else moving.result()


def payloads(messages: Sequence[Message]) -> list[bytes | None]:
    return [one.payload for one in messages]


def test_all_is_stored_in_order_with_origins() -> None:
    async def run() -> None:
        cluster = await cluster_of()
        counts = await move(cluster, spec_of(), batches_of([message(n) for n in range(10)]))
        assert payloads(cluster.stored("copy")[1]) == [b"%d" % n for n in range(10)]
        assert cluster.stored("copy")[1][7].origin == "there|orders|1|7"
        assert counts == Counts(received=10, bytes=1000, stored=10, by_target={"here/copy": 10})
        assert not any(one.is_open for one in cluster.opened)
        assert [spec.sender for spec in cluster.specs] == ["mqbridge|job|there|orders|1|"]

    conversation(run)


@pytest.mark.parametrize("action", ["fail", "lose the answer"])
def test_a_failure_in_the_middle_is_sent_again_without_doubling(action: Action) -> None:
    async def run() -> None:
        cluster = await cluster_of(["store", "store", action])
        counts = await move(cluster, spec_of(), batches_of([message(n) for n in range(30)]))
        assert payloads(cluster.stored("copy")[1]) == [b"%d" % n for n in range(30)]
        assert len(cluster.opened) == 2
        assert (counts.stored, counts.skipped) == (30, 0)

    conversation(run)


def test_it_gives_up_when_nothing_is_stored_for_too_long() -> None:
    async def run() -> None:
        cluster = await cluster_of(["store", *["fail"] * 1000])  # type: ignore[list-item]
        with pytest.raises(DeliveryError, match=r"nothing of there/orders/1 could be stored for 60 s \(writeTimeout\)"):
            await move(cluster, spec_of(write_timeout_s=60.0), batches_of([message(n) for n in range(9)]))
        assert payloads(cluster.stored("copy")[1]) == [b"0", b"1", b"2"]
        assert not any(one.is_open for one in cluster.opened)

    conversation(run)


def test_progress_keeps_it_from_giving_up() -> None:
    async def run() -> None:
        cluster = await cluster_of(["store", "fail", "fail", "fail", "fail"] * 20)
        counts = await move(cluster, spec_of(write_timeout_s=60.0), batches_of([message(n) for n in range(60)]))
        assert counts.stored == 60
        assert payloads(cluster.stored("copy")[1]) == [b"%d" % n for n in range(60)]

    conversation(run)


def test_what_is_fatal_ends_it_at_once() -> None:
    async def run() -> None:
        cluster = await cluster_of()
        cluster.broker.faults.fatal = "no rights"
        with pytest.raises(ClusterError, match="no rights"):
            await move(cluster, spec_of(), batches_of([message(1)]))
        assert len(cluster.opened) == 1

    conversation(run)


def test_what_the_iterator_raises_is_raised() -> None:
    async def run() -> None:
        cluster = await cluster_of()

        async def read() -> object:
            yield batch([message(1)])
            raise ClusterError("the source is away")

        with pytest.raises(ClusterError, match="the source is away"):
            await Transfer(spec_of(), SOURCE, "job", find_cluster=cluster.find).run(read())  # type: ignore[arg-type]
        assert payloads(cluster.stored("copy")[1]) == [b"1"]

    conversation(run)


def test_a_replay_sends_what_is_missing_and_leaves_whole_batches_as_they_are() -> None:
    async def run() -> None:
        cluster = await cluster_of()
        await move(cluster, spec_of(), batches_of([message(n) for n in range(10)]))
        cluster.sent.clear()
        again = batches_of([message(n) for n in range(20)])
        counts = await move(cluster, spec_of(), again, Replay())
        assert payloads(cluster.stored("copy")[1]) == [b"%d" % n for n in range(20)]
        assert (counts.stored, counts.skipped, counts.received) == (10, 10, 20)
        cut, *rest = cluster.sent
        assert (cut.batch, cut.indexes) == (again[3], [1, 2])
        assert all(share.indexes is None and share.batch is one for share, one in zip(rest, again[4:], strict=True))

    conversation(run)


def test_a_source_position_of_another_partition_is_not_its_own() -> None:
    async def run() -> None:
        cluster = await cluster_of()
        other = Partition("there", "orders", "3", 3)
        await move(cluster, spec_of(), [batch([message(n) for n in range(10)], other)], source=other)
        counts = await move(cluster, spec_of(), batches_of([message(n) for n in range(5)]), Replay())
        assert counts.skipped == 0
        assert len(cluster.stored("copy")[1]) == 15

    conversation(run)


def test_refused_messages_become_dead_letters_and_the_others_are_stored() -> None:
    async def run() -> None:
        cluster = await cluster_of()
        messages = [message(n, BAD if n in (2, 5) else None) for n in range(9)]
        counts = await move(cluster, spec_of(delivery=LETTERS), batches_of(messages))
        assert len(cluster.stored("copy")[1]) == 7
        dead = [one for stored in cluster.stored("dead") for one in stored]
        assert sorted(one.origin or "" for one in dead) == ["there|orders|1|2", "there|orders|1|5"]
        assert dead[0].property("mqbridge.dead.reason") == "it is bad"
        assert dead[0].property("mqbridge.dead.route") == "job"
        assert dead[0].property("mqbridge.dead.target") == "here/copy"
        assert (counts.stored, counts.dead, counts.received) == (7, 2, 9)
        again = await move(cluster, spec_of(delivery=LETTERS), batches_of(messages), Replay())
        assert (again.stored, again.dead, again.skipped) == (0, 0, 9)

    conversation(run)


def test_dead_letters_are_looked_for_before_they_are_sent_again() -> None:
    async def run() -> None:
        cluster = await cluster_of(["store", "store", "lose the answer"])
        await move(cluster, spec_of(delivery=LETTERS), batches_of([message(n, BAD if n == 4 else None) for n in range(12)]))
        assert sum(map(len, cluster.stored("dead"))) == 1
        assert payloads(cluster.stored("copy")[1]) == [b"%d" % n for n in range(12) if n != 4]
        assert {spec.retries_unanswered for spec in cluster.specs if spec.topic == "dead"} == {False}

    conversation(run)


def test_without_dead_letters_a_refused_message_fails_and_is_never_skipped_later() -> None:
    async def run() -> None:
        cluster = await cluster_of()
        cluster.broker.faults.receipt_delay_s = 0.1
        messages = [message(n, BAD if n == 4 else None) for n in range(30)]
        with pytest.raises(DeliveryError, match="refuses the message at there/orders/1 position 4: it is bad"):
            await move(cluster, spec_of(), batches_of(messages))
        assert len(cluster.stored("copy")[1]) > 5, "what was behind it was on its way"
        with pytest.raises(DeliveryError, match="position 4: an earlier attempt could not store it"):
            await move(cluster, spec_of(), batches_of(messages), Replay())
        counts = await move(cluster, spec_of(delivery=LETTERS), batches_of(messages), Replay())
        assert counts.dead == 1
        assert sorted(int(one.payload or b"") for one in cluster.stored("copy")[1]) == [n for n in range(30) if n != 4]

    conversation(run)


def test_more_dead_letters_than_allowed_end_it() -> None:
    async def run() -> None:
        cluster = await cluster_of()
        messages = [message(n, BAD) for n in range(30)]
        with pytest.raises(DeliveryError, match="refuses more than 5 messages of there/orders/1, the last because it is bad"):
            await move(cluster, spec_of(delivery=LETTERS, max_dead_letters=5), batches_of(messages, 1))
        assert sum(map(len, cluster.stored("dead"))) <= 5

    conversation(run)


def test_two_targets_with_edits_and_filters_count_each() -> None:
    async def run() -> None:
        cluster = await cluster_of(["store", "store", "lose the answer", "store", "fail"])
        spec = spec_of(
            Target(cluster="here", topic="copy"),
            Target(cluster="here", topic="other", edit=EditRules(set={"from": "{topic}"})),
            filter=FilterRules.model_validate({"exclude": [{"key": {"equals": "no"}}]}),
        )
        messages = [message(n, key="no" if n % 5 == 0 else "yes") for n in range(20)]
        counts = await move(cluster, spec, batches_of(messages))
        wanted = [b"%d" % n for n in range(20) if n % 5]
        assert payloads(cluster.stored("copy")[1]) == payloads(cluster.stored("other")[1]) == wanted
        assert {one.property("from") for one in cluster.stored("other")[1]} == {"orders"}
        assert counts == Counts(
            received=20, bytes=2000, stored=32, filtered=4, by_target={"here/copy": 16, "here/other": 16}
        )  # fmt: skip

    conversation(run)


def test_what_came_from_the_target_is_not_written_back() -> None:
    async def run() -> None:
        cluster = await cluster_of()
        counts = await move(cluster, spec_of(), [batch([message(1), message(2, origin="here|copy|0|5")])])
        assert payloads(cluster.stored("copy")[1]) == [b"1"]
        assert (counts.looped, counts.stored) == (1, 1)

    conversation(run)


def test_the_target_template_gets_the_words_of_the_pattern() -> None:
    async def run() -> None:
        cluster = await cluster_of()
        await cluster.create("from-ders", 2)
        await move(
            cluster,
            spec_of(Target(cluster="here", topic="from-{rest}"), source_topics=("~or(?P<rest>.+)",)),
            [batch([message(1)])],
        )
        assert len(cluster.stored("from-ders")[1]) == 1
        with pytest.raises(ConfigError, match="does not take the topic 'orders'"):
            await move(cluster, spec_of(source_topics=("~x.+",)), [batch([message(1)])])

    conversation(run)


def test_a_target_twice_cannot_tell_what_is_stored() -> None:
    async def run() -> None:
        cluster = await cluster_of()
        target = Target(cluster="here", topic="copy")
        with pytest.raises(ConfigError, match="two targets are here/copy"):
            await move(cluster, spec_of(target, target), [batch([message(1)])])
        counts = await move(cluster, spec_of(target, target, deduplicate=False), [batch([message(1)])])
        assert counts.stored == 2

    conversation(run)


def test_what_is_stored_once_is_stored_in_order_whatever_the_route_says() -> None:
    async def run() -> None:
        cluster = await cluster_of()
        spec = spec_of(delivery=Delivery(order="none", dead_letter=LETTERS.dead_letter))
        await move(cluster, spec, [batch([message(1)])])
        await move(cluster, spec_of(delivery=spec.delivery, deduplicate=False), [batch([message(1)])])
        told = [(one.topic, one.ordered, one.sender is None) for one in cluster.specs]
        assert told == [("dead", False, True), ("copy", True, False), ("dead", False, True), ("copy", False, True)]

    conversation(run)


def test_messages_without_a_source_have_no_sender_and_go_by_key_or_in_turn() -> None:
    async def run() -> None:
        cluster = await cluster_of(["store", "lose the answer"])
        batches = [batch([Message(b"x"), Message(b"y")], NO_SOURCE), batch([Message(b"z")], NO_SOURCE)]
        counts = await move(cluster, spec_of(placing="auto"), batches, Replay(), source=NO_SOURCE)
        assert counts.stored == 3
        assert [payloads(stored) for stored in cluster.stored("copy")] == [[b"x", b"y", b"z"], [b"z"]], "at least once"
        assert {spec.sender for spec in cluster.specs} == {None}
        keyed = [batch([Message(b"k", key=f"key {n}") for n in range(20)], NO_SOURCE)]
        await move(cluster, spec_of(Target(cluster="here", topic="other"), placing="auto"), keyed, source=NO_SOURCE)
        assert all(len(stored) > 2 for stored in cluster.stored("other"))

    conversation(run)


def test_a_placement_is_exact_and_one_that_is_not_there_is_refused() -> None:
    async def run() -> None:
        cluster = await cluster_of()
        to_0, to_7, to_none = batches_of([message(n) for n in range(3)], 1)
        to_0.handle, to_7.handle, to_none.handle = Placement(0), Placement(7), Placement(None)
        counts = await move(cluster, spec_of(placing="column", delivery=LETTERS), [to_0, to_7, to_none])
        assert (counts.stored, counts.dead) == (1, 2)
        assert len(cluster.stored("copy")[0]) == 1
        reasons = {one.property("mqbridge.dead.reason") for stored in cluster.stored("dead") for one in stored}
        assert reasons == {"it is for partition 7, and there are 2 (0 to 1)", "it says no partition to go to"}
        await move(cluster, spec_of(placing="auto"), [batch([message(9)])])
        assert len(cluster.stored("copy")[1]) == 1, "by modulo of the source"

    conversation(run)


@pytest.mark.parametrize("by", ["key", "round_robin"])
def test_a_target_partition_that_is_down_for_a_while_gets_what_others_did_not_wait_for(
    by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        cluster = await cluster_of()
        loop = asyncio.get_running_loop()
        is_up, store = loop.time() + 5, FlakyOutbound.send

        def send(to: FlakyOutbound, partition: int, share: Share) -> "asyncio.Future[Receipt]":
            if partition == 1 or loop.time() >= is_up:
                return store(to, partition, share)
            lost = Receipt(failures=[MessageFailure(index, Failure.RETRY, "it is down") for index in range(share.count)])
            answer: asyncio.Future[Receipt] = loop.create_future()
            loop.call_later(1, answer.set_result, lost)
            return answer

        monkeypatch.setattr(FlakyOutbound, "send", send)
        spec = spec_of(Target(cluster="here", topic="copy", partitions=PartitionRule(by=by)))  # type: ignore[arg-type]
        counts = await move(cluster, spec, batches_of([message(n, key=f"key {n % 7}") for n in range(60)]))
        numbers = [[int(one.payload or b"") for one in some] for some in cluster.stored("copy")]
        assert sorted(number for some in numbers for number in some) == list(range(60))
        assert all(some == sorted(some) and len(some) > 15 for some in numbers)
        assert counts.stored == 60

    conversation(run)


def test_rows_that_say_a_partition_keep_their_order_with_those_that_go_there_by_the_rule() -> None:
    async def run() -> None:
        cluster = await cluster_of()
        one = batch([message(n) for n in range(6)])
        one.handle = RowPlacements([None, 1, None, 1, 0, None])
        await move(cluster, spec_of(placing="auto"), [one])
        assert [payloads(some) for some in cluster.stored("copy")] == [[b"4"], [b"0", b"1", b"2", b"3", b"5"]]

    conversation(run)


@pytest.mark.parametrize("before", ["there/orders", "here/other"])
def test_messages_that_were_dead_letters_before_are_told_by_who_refused_them_last(before: str) -> None:
    async def run() -> None:
        cluster = await cluster_of()
        spec = spec_of(Target(cluster="here", topic="copy"), Target(cluster="here", topic="other"), delivery=LETTERS)
        ends = {("here", topic): await find_ends(cluster, topic) for topic in ("copy", "other", "dead")}
        marked = (("mqbridge.dead.target", before),)
        batches = batches_of([message(n, BAD if n in (3, 7) else None, properties=marked) for n in range(12)])
        await move(cluster, spec, batches)
        found = [[payloads(some) for some in cluster.stored(topic)] for topic in ("copy", "other", "dead")]
        counts = await move(cluster, spec, batches, Replay(ends))
        assert (counts.stored, counts.dead) == (0, 0)
        assert [[payloads(some) for some in cluster.stored(topic)] for topic in ("copy", "other", "dead")] == found

    conversation(run)


def test_a_target_that_grew_between_two_attempts_gets_nothing_twice() -> None:
    async def run() -> None:
        cluster = await cluster_of(partitions=1)
        await move(cluster, spec_of(), batches_of([message(n) for n in range(10)]))
        await cluster.create("copy", 2)
        counts = await move(cluster, spec_of(), batches_of([message(n) for n in range(20)]), Replay())
        assert counts.skipped == 10
        assert [len(stored) for stored in cluster.stored("copy")] == [10, 10]

    conversation(run)


def test_what_the_target_has_deleted_counts_as_stored() -> None:
    async def run() -> None:
        cluster = await cluster_of()
        since = {("here", "copy"): await find_ends(cluster, "copy")}
        await move(cluster, spec_of(), batches_of([message(n) for n in range(10)]))
        cluster.broker.gap("copy", 1, 6)
        counts = await move(cluster, spec_of(), batches_of([message(n) for n in range(12)]), Replay(since))
        assert (counts.skipped, counts.stored) == (10, 2)

    conversation(run)


def test_a_name_that_is_known_from_before_the_checkpoint_finds_what_it_has_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream with a jobId whose checkpoint was removed, when its first batch is repeated."""

    async def run() -> None:
        cluster = await cluster_of()
        await move(cluster, spec_of(), batches_of([message(n) for n in range(10)]))
        ends = {("here", topic): await find_ends(cluster, topic) for topic in ("copy", "dead")}

        async def resume(*_: object) -> Mapping[int, Position]:
            return {1: (9,)}

        monkeypatch.setattr(FlakyOutbound, "resume", resume)
        counts = await move(cluster, spec_of(), batches_of([message(n) for n in range(15)]), Replay(ends))
        assert (counts.skipped, counts.stored) == (10, 5)

    conversation(run)


def test_a_name_that_has_sent_what_is_new_is_a_warning(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A source that was made anew begins at its first position again; nobody can tell its messages from those before."""

    async def run() -> None:
        cluster = await cluster_of()
        await move(cluster, spec_of(), batches_of([message(n) for n in range(10)]))

        async def resume(*_: object) -> Mapping[int, Position]:
            return {1: (9,)}

        monkeypatch.setattr(FlakyOutbound, "resume", resume)
        counts = await move(cluster, spec_of(), batches_of([message(n, b"another") for n in range(15)]))
        assert (counts.skipped, counts.stored) == (10, 5)
        assert "here/copy has it up to 9 already" in caplog.text

    conversation(run)


@pytest.mark.parametrize("arrives", [True, False])
def test_what_a_broker_has_taken_and_not_stored_is_waited_for(arrives: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Pulsar: the last sequence id of a name is that of what was sent, until its disks fail."""

    async def run() -> None:
        cluster = await cluster_of()
        ends = {("here", topic): await find_ends(cluster, topic) for topic in ("copy", "dead")}
        await move(cluster, spec_of(), batches_of([message(n) for n in range(6)]))
        loop = asyncio.get_running_loop()
        decided, really = loop.time() + 20, FlakyOutbound.resume

        async def resume(
            to: FlakyOutbound, source: Partition, since: Mapping[int, Position] | None = None
        ) -> Mapping[int, Position]:
            return {1: (9,)} if to.spec.topic == "copy" and loop.time() < decided else await really(to, source, since)

        monkeypatch.setattr(FlakyOutbound, "resume", resume)
        if arrives:
            late = await MemoryCluster.outbound(cluster, OutboundSpec("copy"))
            loop.call_at(decided - 5, lambda: late.send(1, Share(batch([message(n) for n in range(6, 10)]))))
        counts = await move(cluster, spec_of(delivery=LETTERS), batches_of([message(n) for n in range(15)]), Replay(ends))
        assert payloads(cluster.stored("copy")[1]) == [b"%d" % n for n in range(15)]
        assert (counts.dead, counts.skipped) == (0, 10 if arrives else 6)

    conversation(run)


def test_bytes_in_flight_are_bounded_whatever_is_kept() -> None:
    async def run() -> None:
        cluster = await cluster_of()
        cluster.broker.faults.receipt_delay_s = 1.0
        made = held = 0

        async def read() -> object:
            nonlocal made, held
            for n in range(200):
                made += 1
                held = max(held, made - len(cluster.stored("copy")[1]))
                yield Batch(SOURCE, [message(n)], count=1, size=10_000, first=(n,), next=(n + 1,))

        spec = spec_of(delivery=Delivery(in_flight_bytes=100_000))
        transfer = Transfer(spec, SOURCE, "job", find_cluster=cluster.find)
        counts = await transfer.run(read())  # type: ignore[arg-type]
        assert counts.stored == 200
        assert held <= 100_000 // 10_000 + 2

    conversation(run)


STEPS = 120
"""More turns of the loop than the transfer of the next test takes."""


def test_a_crash_at_any_step_loses_and_doubles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task ends in each turn of the loop, and is repeated."""
    monkeypatch.setattr(transfer_module, "FIRST_PAUSE_S", 0.0)
    ended: list[bool] = []

    async def run(steps: int) -> None:
        cluster = await cluster_of(["store", "lose the answer"])
        spec, batches = spec_of(delivery=LETTERS), batches_of([message(n, BAD if n in (3, 7) else None) for n in range(12)], 2)
        ends = {("here", topic): await find_ends(cluster, topic) for topic in ("copy", "dead")}
        moving = spawn(move(cluster, spec, batches), "moving", quiet=True)
        for _ in range(steps):
            await asyncio.sleep(0)
        ended.append(moving.done())
        cluster.crashed.set()
        await cancel(moving)
        await asyncio.sleep(1)  # what a broker has is stored
        cluster.restart()
        await move(cluster, spec, batches, Replay(ends))
        assert payloads(cluster.stored("copy")[1]) == [b"%d" % n for n in range(12) if n not in (3, 7)]
        dead = [one.origin for stored in cluster.stored("dead") for one in stored]
        assert sorted(dead, key=str) == ["there|orders|1|3", "there|orders|1|7"]

    for steps in range(STEPS):
        conversation(partial(run, steps))
    assert ended[-1]
    assert ended.count(False) > 40


ACTIONS: st.SearchStrategy[list[Action]] = st.lists(
    st.sampled_from(["store", "store", "lose the answer", "fail", "crash", "crash behind it"]), max_size=25
)


@given(
    script=ACTIONS,
    bad=st.frozensets(st.integers(0, 29), max_size=4),
    by=st.sampled_from(["modulo", "key"]),
    size=st.integers(1, 7),
    knows_since=st.booleans(),
)
@example(script=["store", "crash behind it"], bad=frozenset({0, 1}), by="modulo", size=1, knows_since=True)
@example(script=["lose the answer", "crash", "fail"], bad=frozenset({4}), by="key", size=3, knows_since=True)
def test_nothing_is_lost_or_doubled_by_failures_and_crashes(
    script: list[Action], bad: frozenset[int], by: str, size: int, knows_since: bool
) -> None:
    """Tasks crash and are repeated until one has stored everything; then each message is in the target or in a dead letter."""

    async def run() -> None:
        cluster = await cluster_of(script)
        rule = PartitionRule(by=by)
        spec = spec_of(
            Target(cluster="here", topic="copy", partitions=rule), Target(cluster="here", topic="other"), delivery=LETTERS
        )
        messages = [message(n, BAD if n in bad else None, key=f"key {n % 4}", properties=(("n", str(n)),)) for n in range(30)]
        ends = {("here", topic): await find_ends(cluster, topic) for topic in ("copy", "other", "dead")}
        replay: Replay | None = None
        while (counts := await move_or_crash(cluster, spec, batches_of(messages, size), replay)) is None:
            replay = Replay(ends if knows_since else {})
        for topic in ("copy", "other"):
            numbers = [int(one.property("n") or "") for stored in cluster.stored(topic) for one in stored]
            letters = [
                int(one.property("n") or "")
                for stored in cluster.stored("dead")
                for one in stored
                if one.property("mqbridge.dead.target") == f"here/{topic}"
            ]
            assert sorted(numbers + letters) == list(range(30))
            assert set(letters) == bad
            for stored in cluster.stored(topic):
                order = [int(one.property("n") or "") for one in stored]
                assert order == sorted(order)
        assert counts.stored + counts.skipped + counts.dead == 60

    with suppress(asyncio.CancelledError):
        conversation(run)
