"""Rows are divided into batches by source and topic, and the transfers of a task run concurrently within its budget."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from mqbridge.adapter.receipt import MessageFailure, Receipt
from mqbridge.errors import ClusterError, ConfigError, DeliveryError, Failure
from mqbridge.message import NO_SOURCE, Batch, Partition, Share
from mqbridge.spark.arrow.rows import RowBuilder
from mqbridge.spark.options import Usage, parse_options
from mqbridge.spark.schema import format_source, message_schema
from mqbridge.spark.sink import task as sink_task
from mqbridge.spark.sink.driver import check_streams, written_topics
from mqbridge.spark.sink.rows import RowReader, Stream
from mqbridge.spark.sink.settings import SinkSettings, sink_settings
from mqbridge.spark.sink.task import TaskResult, TaskWriter
from mqbridge.spark.sink.writer import make_stream_writer, make_writer
from mqbridge.spark.transfer.counts import Counts
from mqbridge.spark.transfer.spec import PartitionMode, Replay
from mqbridge.spark.transfer.target_partitions import BatchPartition, RowPartitions
from tests.spark.transfer.flaky import BAD, SOURCE, FlakyCluster, FlakyOutbound, batch, message, run_in_virtual_time

SCHEMA = message_schema()


def rows_of(*batches: Batch, is_part: bool = False) -> pa.RecordBatch:
    """Return the rows of several batches as one record batch."""
    builder = RowBuilder(is_part=is_part)
    return pa.Table.from_batches([builder.build(each) for each in batches]).combine_chunks().to_batches()[0]


def replace_column(rows: pa.RecordBatch, name: str, values: Sequence[Any]) -> pa.RecordBatch:
    index = rows.schema.get_field_index(name)
    return rows.set_column(index, name, pa.array(values, rows.schema.field(name).type))


def make_reader(
    rows: pa.RecordBatch, *, by_topic: bool = False, partition_mode: PartitionMode = "auto", deduplicate: bool = True
) -> RowReader:
    return RowReader(rows.schema, by_topic=by_topic, partition_mode=partition_mode, deduplicate=deduplicate)


def positions_of(streams: Any) -> list[tuple[Stream, list[tuple[int, ...]]]]:
    return [(stream, [each.position for each in stream_batch.messages]) for stream, stream_batch in streams]


OTHER = Partition("there", "orders", "2", 2)


def test_mixed_rows_are_divided_by_source_in_order() -> None:
    first, second = batch([message(n) for n in range(4)]), batch([message(n) for n in range(4)], OTHER)
    rows = rows_of(first, second).take(pa.array([0, 4, 1, 5, 2, 6, 3, 7]))
    positions = [(n,) for n in range(4)]
    assert positions_of(make_reader(rows).streams(rows)) == [(Stream(SOURCE, None), positions), (Stream(OTHER, None), positions)]


def test_rows_are_divided_by_the_column_topic_if_it_names_the_target() -> None:
    rows = rows_of(batch([message(n) for n in range(4)]))
    rows = replace_column(rows, "topic", ["x", "y", None, "x"])
    assert positions_of(make_reader(rows, by_topic=True).streams(rows)) == [
        (Stream(SOURCE, "x"), [(0,), (3,)]),
        (Stream(SOURCE, "y"), [(1,)]),
        (Stream(SOURCE, ""), [(2,)]),
    ]
    assert [stream for stream, _ in make_reader(rows).streams(rows)] == [Stream(SOURCE, None)]


def test_the_column_partition_counts_if_it_differs_from_the_source_partition() -> None:
    rows = rows_of(batch([message(n) for n in range(3)]))

    def handles(values: Sequence[int | None], **options: Any) -> list[object]:
        changed = replace_column(rows, "partition", values)
        return [stream_batch.handle for _, stream_batch in make_reader(changed, **options).streams(changed)]

    assert handles([1, 1, 1]) == [None]
    assert handles([0, 0, 0]) == [BatchPartition(0)]
    assert handles([1, 0, None]) == [RowPartitions([None, 0, None])]
    assert handles([1, 1, 1], partition_mode="column") == [BatchPartition(1)]
    assert handles([0, 0, 0], partition_mode="rule") == [None]
    no_source = replace_column(rows, "source", [None] * 3).drop_columns(["topic"])
    (stream_batch,) = [stream_batch for _, stream_batch in make_reader(no_source).streams(no_source)]
    assert (stream_batch.partition, stream_batch.handle) == (NO_SOURCE, BatchPartition(1))


def test_rows_of_a_source_must_ascend_across_record_batches() -> None:
    first, second = rows_of(batch([message(1), message(2)])), rows_of(batch([message(2), message(3)]))
    ordered = make_reader(first)
    list(ordered.streams(first))
    with pytest.raises(ConfigError, match="position 2 follows 2, so the sink cannot know which of them are stored"):
        list(ordered.streams(second))
    unordered = make_reader(first, deduplicate=False)
    assert [len(list(unordered.streams(rows))) for rows in (second, first)] == [1, 1]


def test_rows_of_a_part_of_a_range_are_an_error_with_deduplication() -> None:
    rows = rows_of(batch([message(1)]), is_part=True)
    with pytest.raises(ConfigError, match="deduplicate=false"):
        list(make_reader(rows).streams(rows))
    assert len(list(make_reader(rows, deduplicate=False).streams(rows))) == 1


@pytest.mark.parametrize(
    "fields", [{"properties": (("text", "x" * 50_000),)}, {"key": "x" * 50_000}, {"attributes": b"x" * 50_000}]
)
def test_held_bytes_include_all_fields_of_the_rows(fields: dict[str, Any]) -> None:
    rows = rows_of(batch([message(n, **fields) for n in range(20)]), batch([message(n) for n in range(20)], OTHER))
    large, small = (stream_batch.held_bytes for _, stream_batch in make_reader(rows).streams(rows))
    assert large > 20 * 50_000
    assert small < 20 * 1000


# --- the writer of a task ---------------------------------------------------------------------------------------------


def settings_of(schema: StructType = SCHEMA, **options: str) -> SinkSettings:
    return sink_settings(parse_options({"url": "log:///nowhere", **options}, Usage.WRITE), schema)


async def cluster_of(settings: SinkSettings, *topics: str, **config: Any) -> FlakyCluster:
    (name,) = settings.spec.clusters
    cluster = FlakyCluster(name, broker="here", **config)
    for topic in topics:
        await cluster.create(topic, 2)
    return cluster


def test_a_task_writes_several_sources_and_topics_concurrently() -> None:
    async def run() -> None:
        settings = settings_of(createTopics="2", deadLetterTopic="dead")
        cluster = await cluster_of(settings)
        writer = TaskWriter(settings, "job", cluster.find, None)
        rows = rows_of(*(batch([message(n) for n in range(20)], Partition("there", "orders", str(i), i)) for i in range(4)))
        rows = replace_column(rows, "topic", ["x", "y"] * 40)
        await writer.write(list(make_reader(rows, by_topic=True).streams(rows)))
        result = await writer.finish()
        assert list(map(len, cluster.stored("x"))) == list(map(len, cluster.stored("y"))) == [20, 20]
        assert result.counts.stored == result.counts.received == 80
        assert len(result.streams) == 8
        assert {topic for _, topic in written_topics(settings.spec, result.counts)} == {"x", "y", "dead"}
        assert not any(outbound.is_open for outbound in cluster.opened)

    run_in_virtual_time(run)


def test_the_number_of_open_transfers_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_task, "MAX_STREAMS", 3)

    async def run() -> None:
        settings = settings_of(topic="copy")
        cluster = await cluster_of(settings, "copy")
        writer = TaskWriter(settings, "job", cluster.find, None)
        sources = [Partition("there", "orders", str(i), i) for i in range(6)]
        for n in range(5):
            for source in sources:
                await writer.write([(Stream(source, None), batch([message(n)], source))])
                await asyncio.sleep(0.01)
                assert sum(outbound.is_open for outbound in cluster.opened) <= 3
        counts = (await writer.finish()).counts
        assert counts.stored == 30
        for stored in cluster.stored("copy"):
            origins = [(each.origin or "").rsplit("|", 1) for each in stored]
            for source_name in {name for name, _ in origins}:
                assert [position for name, position in origins if name == source_name] == ["0", "1", "2", "3", "4"]

    run_in_virtual_time(run)


def test_rows_without_a_topic_become_dead_letters() -> None:
    async def run() -> None:
        settings = settings_of(deadLetterTopic="dead")
        cluster = await cluster_of(settings, "copy", "dead")
        writer = TaskWriter(settings, "job", cluster.find, Replay())
        await writer.write([(Stream(NO_SOURCE, ""), batch([message(0).replace(position=())], NO_SOURCE))])
        await writer.write([(Stream(SOURCE, ""), batch([message(5)]))])
        counts = (await writer.finish()).counts
        assert (counts.dead, counts.stored) == (2, 0)
        assert sum(map(len, cluster.stored("dead"))) == 2

    run_in_virtual_time(run)


@pytest.mark.parametrize("topic", ["missing", "{topic}", "{what}", "a{", "a}b", "{{x}}"])
@pytest.mark.parametrize("exists", [True, False])
def test_topics_of_rows_are_no_templates_and_missing_ones_make_dead_letters(topic: str, exists: bool) -> None:
    async def run() -> None:
        settings = settings_of(deadLetterTopic="dead")
        cluster = await cluster_of(settings, "orders", "dead", *([topic] if exists else []))
        for replay in (None, Replay()):
            writer = TaskWriter(settings, "job", cluster.find, replay)
            await writer.write([(Stream(SOURCE, topic), batch([message(n) for n in range(3)]))])
            await writer.finish()
        stored = cluster.stored(topic if exists else "dead")
        assert sum(map(len, stored)) == 3
        assert cluster.stored("orders") == [[], []]
        if not exists:
            reasons = {letter.property("mqbridge.dead.reason") for partition in stored for letter in partition}
            assert reasons == {f"the target topic {topic!r} does not exist"}

    run_in_virtual_time(run)


def test_rows_without_a_topic_fail_the_task_without_a_dead_letter_topic() -> None:
    async def run() -> None:
        settings = settings_of()
        cluster = await cluster_of(settings)
        writer = TaskWriter(settings, "job", cluster.find, None)
        await writer.write([(Stream(SOURCE, ""), batch([message(5)]))])
        with pytest.raises(DeliveryError, match="its column `topic` is NULL"):
            await writer.finish()

    run_in_virtual_time(run)


def test_the_error_of_a_transfer_is_raised_when_more_rows_are_written() -> None:
    async def run() -> None:
        settings = settings_of(topic="copy", inFlightBytes="64KiB")
        cluster = await cluster_of(settings, "copy")
        writer = TaskWriter(settings, "job", cluster.find, None)
        with pytest.raises(DeliveryError, match="it is bad"):  # noqa: PT012 - any of these calls may raise it
            for n in range(100_000):
                await writer.write([(Stream(SOURCE, None), batch([message(n, BAD if n == 50 else None)]))])
        await writer.abort()
        assert not any(outbound.is_open for outbound in cluster.opened)

    run_in_virtual_time(run)


def test_a_task_stops_sending_when_the_gate_raises() -> None:
    async def run() -> None:
        settings = settings_of(topic="copy")
        cluster = await cluster_of(settings, "copy")
        sent = 0

        async def gate() -> None:
            nonlocal sent
            sent += 1
            if sent > 10:
                raise ClusterError("another attempt has begun", Failure.FATAL)

        writer = TaskWriter(settings, "job", cluster.find, None, gate)
        with pytest.raises(ClusterError, match="another attempt has begun"):  # noqa: PT012 - any of these calls may raise it
            await writer.write([(Stream(SOURCE, None), batch([message(n)])) for n in range(50)])
            await writer.finish()
        await writer.abort()
        assert sum(map(len, cluster.stored("copy"))) <= 10

    run_in_virtual_time(run)


def test_a_task_without_new_rows_stops_resending_when_the_watch_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target is down, the batches have passed the gate, and no more rows arrive. So nobody calls the gate any more."""

    async def run() -> None:
        settings = settings_of(topic="copy", writeTimeout="10m")
        cluster = await cluster_of(settings, "copy")
        loop, sent = asyncio.get_running_loop(), list[float]()

        def send(_: FlakyOutbound, __: int, share: Share) -> "asyncio.Future[Receipt]":
            sent.append(loop.time())
            lost = Receipt(failures=[MessageFailure(index, Failure.RETRY, "it is down") for index in range(share.count)])
            receipt: asyncio.Future[Receipt] = loop.create_future()
            loop.call_later(1, receipt.set_result, lost)
            return receipt

        monkeypatch.setattr(FlakyOutbound, "send", send)
        superseded_at = loop.time() + 60

        async def watch() -> None:
            await asyncio.sleep(superseded_at - loop.time())
            raise ClusterError("another attempt has begun", Failure.FATAL)

        writer = TaskWriter(settings, "job", cluster.find, None, watch=watch)
        await writer.write([(Stream(SOURCE, None), batch([message(n)])) for n in range(20)])
        await asyncio.sleep(300)
        assert superseded_at - 20 < max(sent) <= superseded_at
        with pytest.raises(ClusterError, match="another attempt has begun"):
            await writer.write([(Stream(SOURCE, None), batch([message(20)]))])
        with pytest.raises(ClusterError, match="another attempt has begun"):
            await writer.finish()
        await writer.abort()
        assert not any(outbound.is_open for outbound in cluster.opened)

    run_in_virtual_time(run)


def test_the_bytes_that_a_task_buffers_are_bounded_while_nothing_is_stored() -> None:
    async def run() -> None:
        settings = settings_of(topic="copy", inFlightBytes="64KiB")
        cluster = await cluster_of(settings, "copy")
        cluster.broker.faults.hold_receipts = True
        writer = TaskWriter(settings, "job", cluster.find, None)
        number = 0
        with pytest.raises(TimeoutError):  # noqa: PT012 - a write blocks when the budget is used up
            async with asyncio.timeout(5):
                for number in range(1000):
                    to_write = Batch(
                        SOURCE, [message(number)], count=1, size=10, first=(number,), next=(number + 1,), held_bytes=2000
                    )
                    await writer.write([(Stream(SOURCE, None), to_write)])
        assert number * 2000 <= 64 << 10
        cluster.broker.release_receipts()
        assert (await writer.finish()).counts.stored >= number - 1

    run_in_virtual_time(run)


# --- options ----------------------------------------------------------------------------------------------------------


def test_a_column_or_an_option_must_name_the_topic() -> None:
    payload_only = StructType([StructField("payload", StringType())])
    with pytest.raises(ConfigError, match="no target topic is named"):
        settings_of(payload_only)
    assert settings_of(payload_only, topic="copy").topic_from == "spec"
    assert settings_of(StructType([*payload_only, StructField("topic", StringType())])).topic_from == "column"
    with pytest.raises(ConfigError, match="partitions=column is set, and the rows have no column partition"):
        settings_of(payload_only, topic="copy", partitions="column")
    assert settings_of(StructType([*payload_only, StructField("partition", IntegerType())]), topic="copy", partitions="column")


def test_contradictory_options_are_an_error() -> None:
    with pytest.raises(ConfigError, match="stampOrigin=false"):
        settings_of(topic="copy", stampOrigin="false")
    assert not settings_of(topic="copy", stampOrigin="false", deduplicate="false").spec.delivery.stamp_origin
    with pytest.raises(ConfigError, match="never replaced"):
        make_writer({"url": "log:///nowhere", "topic": "copy"}, SCHEMA, overwrite=True)
    with pytest.raises(ConfigError, match="never replaced"):
        make_stream_writer({"url": "log:///nowhere", "topic": "copy"}, SCHEMA, overwrite=True)
    with pytest.raises(ConfigError, match="there is no option 'topik'"):
        make_writer({"url": "log:///nowhere", "topik": "copy"}, SCHEMA, overwrite=False)


def test_rows_of_a_source_for_one_topic_in_two_tasks_are_an_error() -> None:
    first = TaskResult(Counts(), {(format_source(SOURCE), None), (format_source(OTHER), "x")})
    check_streams([first, TaskResult(Counts(), {(format_source(OTHER), "y")})])
    with pytest.raises(ConfigError, match="were written by several tasks"):
        check_streams([first, TaskResult(Counts(), {(format_source(OTHER), "x")})])
