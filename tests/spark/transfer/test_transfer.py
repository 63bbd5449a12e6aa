"""A transfer stores each message once, despite transient failures, lost responses, crashes and refused messages."""

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
from mqbridge.message import NO_SOURCE, Batch, Message, Partition, Position, Share, split_origin
from mqbridge.net.budget import Budget
from mqbridge.net.tasks import cancel, spawn
from mqbridge.spark.cluster_ref import ClusterRef
from mqbridge.spark.transfer import transfer as transfer_module
from mqbridge.spark.transfer.counts import Counts
from mqbridge.spark.transfer.resume import find_ends
from mqbridge.spark.transfer.spec import Replay, TargetsSpec
from mqbridge.spark.transfer.target_partitions import BatchPartition, RowPartitions
from mqbridge.spark.transfer.transfer import Transfer
from mqbridge.testing.memory.adapter.cluster import MemoryCluster
from mqbridge.testing.memory.adapter.config import MemoryConfig
from tests.spark.transfer.flaky import (
    BAD,
    SOURCE,
    Action,
    FlakyCluster,
    FlakyOutbound,
    batch,
    iterate,
    message,
    run_in_virtual_time,
)

REF = ClusterRef("here", "memory", MemoryConfig())
WITH_DEAD_LETTERS = Delivery(dead_letter=DeadLetter(cluster="here", topic="dead"))


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
    job: str = "job",
    source_cluster: str = "",
) -> Counts:
    budget = Budget(spec.delivery.sending_bytes)
    transfer = Transfer(spec, source, job, cluster=source_cluster, find_cluster=cluster.find, replay=replay, budget=budget)
    return await transfer.run(iterate(batches))


async def move_or_crash(
    cluster: FlakyCluster, spec: TargetsSpec, batches: Sequence[Batch], replay: Replay | None
) -> Counts | None:
    """Run a transfer. Return its counts, or None if the cluster's script made it crash."""
    moving = spawn(move(cluster, spec, batches, replay), "moving", log_errors=False)
    crash = spawn(cluster.crashed.wait(), "crash", log_errors=False)
    await asyncio.wait([moving, crash], return_when=asyncio.FIRST_COMPLETED)
    crashed = cluster.crashed.is_set()
    await cancel(moving, crash)
    await asyncio.sleep(1)  # until the broker has stored everything that it received
    cluster.restart()
    return None if crashed else moving.result()


def payloads(messages: Sequence[Message]) -> list[bytes | None]:
    return [each.payload for each in messages]


def test_messages_are_stored_in_order_with_origins() -> None:
    async def run() -> None:
        cluster = await cluster_of()
        counts = await move(cluster, spec_of(), batches_of([message(n) for n in range(10)]))
        assert payloads(cluster.stored("copy")[1]) == [b"%d" % n for n in range(10)]
        (writer,) = {spec.writer for spec in cluster.specs}
        assert cluster.stored("copy")[1][7].origin == f"there|orders|1|{writer}|7"
        assert counts == Counts(received=10, bytes=1000, stored=10, by_target={"here/copy": 10})
        assert not any(outbound.is_open for outbound in cluster.opened)
        assert [spec.sender for spec in cluster.specs] == [f"mqbridge|job|there|orders|1|{writer}|"]

    run_in_virtual_time(run)


@pytest.mark.parametrize("action", ["fail", "lose the response"])
def test_after_a_failed_send_each_message_is_stored_once(action: Action) -> None:
    async def run() -> None:
        cluster = await cluster_of(["store", "store", action])
        counts = await move(cluster, spec_of(), batches_of([message(n) for n in range(30)]))
        assert payloads(cluster.stored("copy")[1]) == [b"%d" % n for n in range(30)]
        assert len(cluster.opened) == 2
        assert (counts.stored, counts.skipped) == (30, 0)

    run_in_virtual_time(run)


def test_a_transfer_fails_when_nothing_is_stored_within_the_write_timeout() -> None:
    async def run() -> None:
        cluster = await cluster_of(["store", *["fail"] * 1000])  # type: ignore[list-item]
        with pytest.raises(DeliveryError, match=r"nothing of there/orders/1 could be stored for 60 s \(writeTimeout\)"):
            await move(cluster, spec_of(write_timeout_s=60.0), batches_of([message(n) for n in range(9)]))
        assert payloads(cluster.stored("copy")[1]) == [b"0", b"1", b"2"]
        assert not any(outbound.is_open for outbound in cluster.opened)

    run_in_virtual_time(run)


def test_the_write_timeout_restarts_after_each_stored_batch() -> None:
    async def run() -> None:
        cluster = await cluster_of(["store", "fail", "fail", "fail", "fail"] * 20)
        counts = await move(cluster, spec_of(write_timeout_s=60.0), batches_of([message(n) for n in range(60)]))
        assert counts.stored == 60
        assert payloads(cluster.stored("copy")[1]) == [b"%d" % n for n in range(60)]

    run_in_virtual_time(run)


def test_a_fatal_error_ends_the_transfer_at_once() -> None:
    async def run() -> None:
        cluster = await cluster_of()
        cluster.broker.faults.fatal = "no rights"
        with pytest.raises(ClusterError, match="no rights"):
            await move(cluster, spec_of(), batches_of([message(1)]))
        assert len(cluster.opened) == 1

    run_in_virtual_time(run)


def test_an_error_of_the_iterator_ends_the_transfer() -> None:
    async def run() -> None:
        cluster = await cluster_of()

        async def read() -> object:
            yield batch([message(1)])
            raise ClusterError("the source is unreachable")

        with pytest.raises(ClusterError, match="the source is unreachable"):
            await Transfer(spec_of(), SOURCE, "job", find_cluster=cluster.find, budget=Budget(1 << 20)).run(read())  # type: ignore[arg-type]
        assert payloads(cluster.stored("copy")[1]) == [b"1"]

    run_in_virtual_time(run)


def test_a_replay_sends_missing_messages_and_passes_on_whole_batches_unchanged() -> None:
    async def run() -> None:
        cluster = await cluster_of()
        await move(cluster, spec_of(), batches_of([message(n) for n in range(10)]))
        cluster.sent.clear()
        again = batches_of([message(n) for n in range(20)])
        counts = await move(cluster, spec_of(), again, Replay())
        assert payloads(cluster.stored("copy")[1]) == [b"%d" % n for n in range(20)]
        assert (counts.stored, counts.skipped, counts.received) == (10, 10, 20)
        first, *later = cluster.sent
        assert (first.batch, first.indexes) == (again[3], [1, 2])
        assert all(share.indexes is None and share.batch is whole for share, whole in zip(later, again[4:], strict=True))

    run_in_virtual_time(run)


def test_messages_of_another_source_partition_are_not_skipped() -> None:
    async def run() -> None:
        cluster = await cluster_of()
        other = Partition("there", "orders", "3", 3)
        await move(cluster, spec_of(), [batch([message(n) for n in range(10)], other)], source=other)
        counts = await move(cluster, spec_of(), batches_of([message(n) for n in range(5)]), Replay())
        assert counts.skipped == 0
        assert len(cluster.stored("copy")[1]) == 15

    run_in_virtual_time(run)


def test_refused_messages_become_dead_letters_and_the_others_are_stored() -> None:
    async def run() -> None:
        cluster = await cluster_of()
        messages = [message(n, BAD if n in (2, 5) else None) for n in range(9)]
        counts = await move(cluster, spec_of(delivery=WITH_DEAD_LETTERS), batches_of(messages))
        assert len(cluster.stored("copy")[1]) == 7
        dead = [letter for partition in cluster.stored("dead") for letter in partition]
        assert sorted(split_origin(letter.origin or "") for letter in dead) == [("there", "orders", "1", (n,)) for n in (2, 5)]
        assert dead[0].property("mqbridge.dead.reason") == "it is bad"
        assert dead[0].property("mqbridge.dead.route") == "job"
        assert dead[0].property("mqbridge.dead.target") == "here/copy"
        assert (counts.stored, counts.dead, counts.received) == (7, 2, 9)
        again = await move(cluster, spec_of(delivery=WITH_DEAD_LETTERS), batches_of(messages), Replay())
        assert (again.stored, again.dead, again.skipped) == (0, 0, 9)

    run_in_virtual_time(run)


def test_a_dead_letter_that_is_stored_already_is_not_sent_again() -> None:
    async def run() -> None:
        cluster = await cluster_of(["store", "store", "lose the response"])
        await move(
            cluster, spec_of(delivery=WITH_DEAD_LETTERS), batches_of([message(n, BAD if n == 4 else None) for n in range(12)])
        )
        assert sum(map(len, cluster.stored("dead"))) == 1
        assert payloads(cluster.stored("copy")[1]) == [b"%d" % n for n in range(12) if n != 4]
        assert {spec.retries_unanswered for spec in cluster.specs if spec.topic == "dead"} == {False}

    run_in_virtual_time(run)


def test_without_dead_letters_a_refused_message_fails_and_is_never_skipped_later() -> None:
    async def run() -> None:
        cluster = await cluster_of()
        cluster.broker.faults.receipt_delay_s = 0.1
        messages = [message(n, BAD if n == 4 else None) for n in range(30)]
        with pytest.raises(DeliveryError, match="refuses the message of there/orders/1 at position 4: it is bad"):
            await move(cluster, spec_of(), batches_of(messages))
        assert len(cluster.stored("copy")[1]) > 5, "later messages were in flight already"
        with pytest.raises(DeliveryError, match="position 4: an earlier attempt did not store it"):
            await move(cluster, spec_of(), batches_of(messages), Replay())
        counts = await move(cluster, spec_of(delivery=WITH_DEAD_LETTERS), batches_of(messages), Replay())
        assert counts.dead == 1
        assert sorted(int(stored.payload or b"") for stored in cluster.stored("copy")[1]) == [n for n in range(30) if n != 4]

    run_in_virtual_time(run)


def test_a_transfer_fails_with_more_dead_letters_than_allowed() -> None:
    async def run() -> None:
        cluster = await cluster_of()
        messages = [message(n, BAD) for n in range(30)]
        with pytest.raises(DeliveryError, match="more than 5 messages are refused, one from there/orders/1 by here/copy"):
            await move(cluster, spec_of(delivery=WITH_DEAD_LETTERS, max_dead_letters=5), batches_of(messages, 1))
        assert sum(map(len, cluster.stored("dead"))) <= 5

    run_in_virtual_time(run)


def test_counts_include_two_targets_an_edit_and_a_filter() -> None:
    async def run() -> None:
        cluster = await cluster_of(["store", "store", "lose the response", "store", "fail"])
        spec = spec_of(
            Target(cluster="here", topic="copy"),
            Target(cluster="here", topic="other", edit=EditRules(set={"from": "{topic}"})),
            filter=FilterRules.model_validate({"exclude": [{"key": {"equals": "no"}}]}),
        )
        messages = [message(n, key="no" if n % 5 == 0 else "yes") for n in range(20)]
        counts = await move(cluster, spec, batches_of(messages))
        expected = [b"%d" % n for n in range(20) if n % 5]
        assert payloads(cluster.stored("copy")[1]) == payloads(cluster.stored("other")[1]) == expected
        assert {stored.property("from") for stored in cluster.stored("other")[1]} == {"orders"}
        assert counts == Counts(
            received=20, bytes=2000, stored=32, filtered=4, by_target={"here/copy": 16, "here/other": 16}
        )  # fmt: skip

    run_in_virtual_time(run)


def test_messages_that_originate_in_the_target_are_not_written_back() -> None:
    async def run() -> None:
        cluster = await cluster_of()
        counts = await move(cluster, spec_of(), [batch([message(1), message(2, origin="here|copy|0|5")])])
        assert payloads(cluster.stored("copy")[1]) == [b"1"]
        assert (counts.looped, counts.stored) == (1, 1)

    run_in_virtual_time(run)


def test_the_target_template_is_filled_from_the_groups_of_the_pattern() -> None:
    async def run() -> None:
        cluster = await cluster_of()
        await cluster.create("from-ders", 2)
        await move(
            cluster,
            spec_of(Target(cluster="here", topic="from-{rest}"), source_topics=("~or(?P<rest>.+)",)),
            [batch([message(1)])],
        )
        assert len(cluster.stored("from-ders")[1]) == 1
        with pytest.raises(ConfigError, match="do not include 'orders'"):
            await move(cluster, spec_of(source_topics=("~x.+",)), [batch([message(1)])])

    run_in_virtual_time(run)


def test_the_same_target_twice_is_an_error_with_deduplication() -> None:
    async def run() -> None:
        cluster = await cluster_of()
        target = Target(cluster="here", topic="copy")
        with pytest.raises(ConfigError, match=r"two targets of route .* are here/copy"):
            await move(cluster, spec_of(target, target), [batch([message(1)])])
        counts = await move(cluster, spec_of(target, target, deduplicate=False), [batch([message(1)])])
        assert counts.stored == 2

    run_in_virtual_time(run)


def test_deduplication_implies_ordered_sends_even_if_the_route_needs_no_order() -> None:
    async def run() -> None:
        cluster = await cluster_of()
        spec = spec_of(delivery=Delivery(order="none", dead_letter=WITH_DEAD_LETTERS.dead_letter))
        await move(cluster, spec, [batch([message(1)])])
        await move(cluster, spec_of(delivery=spec.delivery, deduplicate=False), [batch([message(1)])])
        specs = [(spec.topic, spec.ordered, spec.sender is None) for spec in cluster.specs]
        assert specs == [("dead", False, True), ("copy", True, False), ("dead", False, True), ("copy", False, True)]

    run_in_virtual_time(run)


def test_messages_without_a_source_have_no_sender_and_are_divided_by_key_or_round_robin() -> None:
    async def run() -> None:
        cluster = await cluster_of(["store", "lose the response"])
        batches = [batch([Message(b"x"), Message(b"y")], NO_SOURCE), batch([Message(b"z")], NO_SOURCE)]
        counts = await move(cluster, spec_of(partition_mode="auto"), batches, Replay(), source=NO_SOURCE)
        assert counts.stored == 3
        assert [payloads(stored) for stored in cluster.stored("copy")] == [[b"x", b"y", b"z"], [b"z"]], "at least once"
        assert {spec.sender for spec in cluster.specs} == {None}
        keyed = [batch([Message(b"k", key=f"key {n}") for n in range(20)], NO_SOURCE)]
        await move(cluster, spec_of(Target(cluster="here", topic="other"), partition_mode="auto"), keyed, source=NO_SOURCE)
        assert all(len(stored) > 2 for stored in cluster.stored("other"))

    run_in_virtual_time(run)


def test_rows_get_exactly_their_partition_and_are_refused_if_it_does_not_exist() -> None:
    async def run() -> None:
        cluster = await cluster_of()
        to_0, to_7, to_none = batches_of([message(n) for n in range(3)], 1)
        to_0.handle, to_7.handle, to_none.handle = BatchPartition(0), BatchPartition(7), BatchPartition(None)
        counts = await move(cluster, spec_of(partition_mode="column", delivery=WITH_DEAD_LETTERS), [to_0, to_7, to_none])
        assert (counts.stored, counts.dead) == (1, 2)
        assert len(cluster.stored("copy")[0]) == 1
        reasons = {letter.property("mqbridge.dead.reason") for partition in cluster.stored("dead") for letter in partition}
        assert reasons == {"it is for partition 7, and there are 2 (0 to 1)", "it names no target partition"}
        await move(cluster, spec_of(partition_mode="auto"), [batch([message(9)])])
        assert len(cluster.stored("copy")[1]) == 1, "by modulo of the source"

    run_in_virtual_time(run)


@pytest.mark.parametrize("by", ["key", "round_robin"])
def test_a_target_partition_gets_its_messages_late_after_an_outage_of_its_own(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        cluster = await cluster_of()
        loop = asyncio.get_running_loop()
        up_at, store = loop.time() + 5, FlakyOutbound.send

        def send(outbound: FlakyOutbound, partition: int, share: Share) -> "asyncio.Future[Receipt]":
            if partition == 1 or loop.time() >= up_at:
                return store(outbound, partition, share)
            lost = Receipt(failures=[MessageFailure(index, Failure.RETRY, "it is down") for index in range(share.count)])
            receipt: asyncio.Future[Receipt] = loop.create_future()
            loop.call_later(1, receipt.set_result, lost)
            return receipt

        monkeypatch.setattr(FlakyOutbound, "send", send)
        spec = spec_of(Target(cluster="here", topic="copy", partitions=PartitionRule(by=by)))  # type: ignore[arg-type]
        counts = await move(cluster, spec, batches_of([message(n, key=f"key {n % 7}") for n in range(60)]))
        numbers = [[int(stored.payload or b"") for stored in partition] for partition in cluster.stored("copy")]
        assert sorted(number for partition in numbers for number in partition) == list(range(60))
        assert all(partition == sorted(partition) and len(partition) > 15 for partition in numbers)
        assert counts.stored == 60

    run_in_virtual_time(run)


def test_rows_of_a_partition_keep_their_order_whether_chosen_by_column_or_rule() -> None:
    async def run() -> None:
        cluster = await cluster_of()
        mixed = batch([message(n) for n in range(6)])
        mixed.handle = RowPartitions([None, 1, None, 1, 0, None])
        await move(cluster, spec_of(partition_mode="auto"), [mixed])
        assert [payloads(partition) for partition in cluster.stored("copy")] == [[b"4"], [b"0", b"1", b"2", b"3", b"5"]]

    run_in_virtual_time(run)


@pytest.mark.parametrize("earlier_target", ["there/orders", "here/other"])
def test_a_dead_letter_of_an_earlier_dead_letter_counts_for_its_last_target(earlier_target: str) -> None:
    async def run() -> None:
        cluster = await cluster_of()
        spec = spec_of(Target(cluster="here", topic="copy"), Target(cluster="here", topic="other"), delivery=WITH_DEAD_LETTERS)
        ends = {("here", topic): await find_ends(cluster, topic) for topic in ("copy", "other", "dead")}
        marked = (("mqbridge.dead.target", earlier_target),)
        batches = batches_of([message(n, BAD if n in (3, 7) else None, properties=marked) for n in range(12)])
        await move(cluster, spec, batches)
        after_first = [[payloads(partition) for partition in cluster.stored(topic)] for topic in ("copy", "other", "dead")]
        counts = await move(cluster, spec, batches, Replay(ends))
        assert (counts.stored, counts.dead) == (0, 0)
        assert [
            [payloads(partition) for partition in cluster.stored(topic)] for topic in ("copy", "other", "dead")
        ] == after_first

    run_in_virtual_time(run)


def test_a_target_that_grew_between_two_attempts_gets_nothing_twice() -> None:
    async def run() -> None:
        cluster = await cluster_of(partitions=1)
        await move(cluster, spec_of(), batches_of([message(n) for n in range(10)]))
        await cluster.create("copy", 2)
        counts = await move(cluster, spec_of(), batches_of([message(n) for n in range(20)]), Replay())
        assert counts.skipped == 10
        assert [len(stored) for stored in cluster.stored("copy")] == [10, 10]

    run_in_virtual_time(run)


def test_messages_that_the_target_has_deleted_count_as_stored() -> None:
    async def run() -> None:
        cluster = await cluster_of()
        since = {("here", "copy"): await find_ends(cluster, "copy")}
        await move(cluster, spec_of(), batches_of([message(n) for n in range(10)]))
        cluster.broker.delete_below("copy", 1, 6)
        counts = await move(cluster, spec_of(), batches_of([message(n) for n in range(12)]), Replay(since))
        assert (counts.skipped, counts.stored) == (10, 2)

    run_in_virtual_time(run)


def test_messages_that_a_sender_stored_before_the_checkpoint_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream with a jobId repeats its first batch after its checkpoint was removed."""

    async def run() -> None:
        cluster = await cluster_of()
        await move(cluster, spec_of(), batches_of([message(n) for n in range(10)]))
        ends = {("here", topic): await find_ends(cluster, topic) for topic in ("copy", "dead")}

        async def resume(*_: object) -> Mapping[int, Position]:
            return {1: (9,)}

        monkeypatch.setattr(FlakyOutbound, "resume", resume)
        counts = await move(cluster, spec_of(), batches_of([message(n) for n in range(15)]), Replay(ends))
        assert (counts.skipped, counts.stored) == (10, 5)

    run_in_virtual_time(run)


def test_positions_that_a_sender_has_sent_before_are_skipped_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A source topic that was created again has the positions of the deleted one: its messages look like the old ones."""

    async def run() -> None:
        cluster = await cluster_of()
        await move(cluster, spec_of(), batches_of([message(n) for n in range(10)]))

        async def resume(*_: object) -> Mapping[int, Position]:
            return {1: (9,)}

        monkeypatch.setattr(FlakyOutbound, "resume", resume)
        counts = await move(cluster, spec_of(), batches_of([message(n, b"another") for n in range(15)]))
        assert (counts.skipped, counts.stored) == (10, 5)
        assert "here/copy already stores messages of this source up to position 9" in caplog.text

    run_in_virtual_time(run)


@pytest.mark.parametrize("other", [{"job": "other"}, {"source_cluster": "log:///other"}], ids=["job", "cluster"])
def test_messages_and_dead_letters_of_another_writer_do_not_count_as_stored(other: dict[str, str]) -> None:
    """Two jobs, or one job name with two clusters of one name: each stores its copy, and a repetition finds only its own."""

    async def run() -> None:
        cluster, spec = await cluster_of(), spec_of(delivery=WITH_DEAD_LETTERS)
        batches = batches_of([message(n, BAD if n == 4 else None) for n in range(9)])
        for writer in ({}, other):
            counts = await move(cluster, spec, batches, Replay(), **writer)  # type: ignore[arg-type]
            assert (counts.stored, counts.dead, counts.skipped) == (8, 1, 0)
            counts = await move(cluster, spec, batches, Replay(), **writer)  # type: ignore[arg-type]
            assert (counts.stored, counts.dead, counts.skipped) == (0, 0, 9)
        assert payloads(cluster.stored("copy")[1]) == [b"%d" % n for n in range(9) if n != 4] * 2
        assert sum(map(len, cluster.stored("dead"))) == 2

    run_in_virtual_time(run)


def test_messages_of_a_source_that_another_writer_stored_are_not_missed() -> None:
    """Two jobs divide a source. The one that is interrupted resumes, although the other has stored messages behind its own."""

    async def run() -> None:
        cluster, spec = await cluster_of(), spec_of()
        even, odd = ([message(n) for n in range(40) if n % 2 == rest] for rest in range(2))
        await move(cluster, spec, batches_of(even[:8]), job="even")
        await move(cluster, spec, batches_of(odd), job="odd")
        counts = await move(cluster, spec, batches_of(even), Replay(), job="even")
        assert (counts.stored, counts.skipped) == (12, 8)
        assert sorted(int(payload or b"") for payload in payloads(cluster.stored("copy")[1])) == list(range(40))

    run_in_virtual_time(run)


def test_two_targets_that_are_one_topic_under_two_names_get_two_copies() -> None:
    async def run() -> None:
        cluster = await cluster_of()
        cluster.broker.topics["alias"] = cluster.broker.topics["copy"]
        spec, batches = spec_of(*(Target(cluster="here", topic=topic) for topic in ("copy", "alias"))), batches_of([message(0)])
        for _ in range(2):
            await move(cluster, spec, batches, Replay())
        assert payloads(cluster.stored("copy")[1]) == [b"0", b"0"]

    run_in_virtual_time(run)


@pytest.mark.parametrize("earlier_name", ["there", "log"], ids=["by name", "by URL"])
def test_messages_that_name_no_writer_are_stored_again_with_a_warning(
    earlier_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An earlier version stored them, or another one's job or a route of the gateway did: it is unknown which."""

    async def run() -> None:
        cluster, spec = await cluster_of(), spec_of()
        earlier = await MemoryCluster.outbound(cluster, OutboundSpec("copy"))
        await earlier.send(1, Share(batch([message(n) for n in range(5)], Partition(earlier_name, "orders", "1", 1))))
        source = SOURCE if earlier_name == "there" else Partition("log:///there", "orders", "1", 1)
        batches = [batch([message(n) for n in range(8)], source)]
        counts = await move(cluster, spec, batches, Replay(may_be_unnamed=True), source)
        assert (counts.stored, counts.skipped) == (8, 0)
        assert [record.message.partition(" whose")[0] for record in caplog.records] == [
            f"{source}: here/copy stores messages of this source up to position 4"
        ]
        caplog.clear()
        counts = await move(cluster, spec, batches, Replay(may_be_unnamed=True), source)
        assert (counts.stored, counts.skipped) == (0, 8)
        assert not caplog.records

    run_in_virtual_time(run)


@pytest.mark.parametrize("arrives", [True, False])
def test_messages_that_a_broker_has_accepted_and_not_stored_are_waited_for(
    arrives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pulsar reports the last sequence id that a producer sent, even if the message is not on disk yet or never will be."""

    async def run() -> None:
        cluster = await cluster_of()
        ends = {("here", topic): await find_ends(cluster, topic) for topic in ("copy", "dead")}
        await move(cluster, spec_of(), batches_of([message(n) for n in range(6)]))
        loop = asyncio.get_running_loop()
        reports_stored_at, resume_stored = loop.time() + 20, FlakyOutbound.resume

        async def resume(
            outbound: FlakyOutbound, source: Partition, since: Mapping[int, Position] | None = None
        ) -> Mapping[int, Position]:
            is_early = outbound.spec.topic == "copy" and loop.time() < reports_stored_at
            return {1: (9,)} if is_early else await resume_stored(outbound, source, since)

        monkeypatch.setattr(FlakyOutbound, "resume", resume)
        if arrives:
            late = await MemoryCluster.outbound(cluster, OutboundSpec("copy", writer=cluster.specs[0].writer))
            loop.call_at(reports_stored_at - 5, lambda: late.send(1, Share(batch([message(n) for n in range(6, 10)]))))
        counts = await move(
            cluster, spec_of(delivery=WITH_DEAD_LETTERS), batches_of([message(n) for n in range(15)]), Replay(ends)
        )
        assert payloads(cluster.stored("copy")[1]) == [b"%d" % n for n in range(15)]
        assert (counts.dead, counts.skipped) == (0, 10 if arrives else 6)

    run_in_virtual_time(run)


def test_the_bytes_of_buffered_batches_are_bounded() -> None:
    async def run() -> None:
        cluster = await cluster_of()
        cluster.broker.faults.receipt_delay_s = 1.0
        batches_read = max_unstored = 0

        async def read() -> object:
            nonlocal batches_read, max_unstored
            for n in range(200):
                batches_read += 1
                max_unstored = max(max_unstored, batches_read - len(cluster.stored("copy")[1]))
                yield Batch(SOURCE, [message(n)], count=1, size=10_000, first=(n,), next=(n + 1,))

        transfer = Transfer(spec_of(), SOURCE, "job", find_cluster=cluster.find, budget=Budget(100_000))
        counts = await transfer.run(read())  # type: ignore[arg-type]
        assert counts.stored == 200
        assert max_unstored <= 100_000 // 10_000 + 2

    run_in_virtual_time(run)


STEPS = 120
"""More iterations of the event loop than the transfer of the next test needs."""


def test_a_crash_at_any_step_neither_loses_nor_duplicates_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task crashes after each possible number of event loop iterations, and is repeated."""
    monkeypatch.setattr(transfer_module, "FIRST_PAUSE_S", 0.0)
    was_finished: list[bool] = []

    async def run(steps: int) -> None:
        cluster = await cluster_of(["store", "lose the response"])
        spec, batches = (
            spec_of(delivery=WITH_DEAD_LETTERS),
            batches_of([message(n, BAD if n in (3, 7) else None) for n in range(12)], 2),
        )
        ends = {("here", topic): await find_ends(cluster, topic) for topic in ("copy", "dead")}
        moving = spawn(move(cluster, spec, batches), "moving", log_errors=False)
        for _ in range(steps):
            await asyncio.sleep(0)
        was_finished.append(moving.done())
        cluster.crashed.set()
        await cancel(moving)
        await asyncio.sleep(1)  # until the broker has stored everything that it received
        cluster.restart()
        await move(cluster, spec, batches, Replay(ends))
        assert payloads(cluster.stored("copy")[1]) == [b"%d" % n for n in range(12) if n not in (3, 7)]
        dead = [split_origin(letter.origin or "") for partition in cluster.stored("dead") for letter in partition]
        assert sorted(dead) == [("there", "orders", "1", (number,)) for number in (3, 7)]

    for steps in range(STEPS):
        run_in_virtual_time(partial(run, steps))
    assert was_finished[-1]
    assert was_finished.count(False) > 40


ACTIONS: st.SearchStrategy[list[Action]] = st.lists(
    st.sampled_from(["store", "store", "lose the response", "fail", "crash before storing", "crash after storing"]), max_size=25
)


@given(
    script=ACTIONS,
    bad=st.frozensets(st.integers(0, 29), max_size=4),
    by=st.sampled_from(["modulo", "key"]),
    size=st.integers(1, 7),
    knows_since=st.booleans(),
)
@example(script=["store", "crash after storing"], bad=frozenset({0, 1}), by="modulo", size=1, knows_since=True)
@example(script=["lose the response", "crash before storing", "fail"], bad=frozenset({4}), by="key", size=3, knows_since=True)
def test_failures_and_crashes_neither_lose_nor_duplicate_messages(
    script: list[Action], bad: frozenset[int], by: str, size: int, knows_since: bool
) -> None:
    """A task is repeated until an attempt does not crash. Then each message is stored in the target or as a dead letter."""

    async def run() -> None:
        cluster = await cluster_of(script)
        rule = PartitionRule(by=by)
        spec = spec_of(
            Target(cluster="here", topic="copy", partitions=rule),
            Target(cluster="here", topic="other"),
            delivery=WITH_DEAD_LETTERS,
        )
        messages = [message(n, BAD if n in bad else None, key=f"key {n % 4}", properties=(("n", str(n)),)) for n in range(30)]
        ends = {("here", topic): await find_ends(cluster, topic) for topic in ("copy", "other", "dead")}
        replay: Replay | None = None
        while (counts := await move_or_crash(cluster, spec, batches_of(messages, size), replay)) is None:
            replay = Replay(ends if knows_since else {})
        for topic in ("copy", "other"):
            numbers = [int(stored.property("n") or "") for partition in cluster.stored(topic) for stored in partition]
            letters = [
                int(letter.property("n") or "")
                for partition in cluster.stored("dead")
                for letter in partition
                if letter.property("mqbridge.dead.target") == f"here/{topic}"
            ]
            assert sorted(numbers + letters) == list(range(30))
            assert set(letters) == bad
            for partition in cluster.stored(topic):
                order = [int(stored.property("n") or "") for stored in partition]
                assert order == sorted(order)
        assert counts.stored + counts.skipped + counts.dead == 60

    with suppress(asyncio.CancelledError):
        run_in_virtual_time(run)
