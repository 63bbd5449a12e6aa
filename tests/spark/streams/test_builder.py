"""StreamBuilder without Spark: passes over batches of rows, and errors for invalid topologies."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructField, StructType, TimestampType

from mqbridge.spark.streams import (
    Fold,
    JsonCodec,
    Pair,
    PickleCodec,
    StreamBuilder,
    StreamConfig,
    StreamJob,
    Time,
    Window,
    WindowBuilder,
)
from mqbridge.spark.streams.accumulators import restore_state, save_state
from mqbridge.spark.streams.rip58 import steps
from mqbridge.spark.streams.rip58.aggregates import CodedAccumulator
from mqbridge.spark.streams.rip58.codecs import JSON
from mqbridge.spark.streams.rip58.python_stage import Pass, PassRunner, Step
from mqbridge.spark.streams.rip58.rows import KeyedWriter, PayloadReader, PayloadWriter, TextWriter, ValueReader, Writer


def passed(
    payloads: list[bytes | None], deserialize: Any, chain: list[Step], writer: Writer, **settings: Any
) -> list[dict[str, Any]]:
    """Return the rows that one pass yields for payloads, which have times one second apart."""
    work = Pass(PayloadReader(deserialize), tuple(chain), writer, settings.pop("skip_errors", True), **settings)
    fields = (
        writer.fields
        if not work.only_errors
        else {"payload": PayloadWriter.fields["payload"], "error": TextWriter.fields["text"]}
    )
    schema = StructType([*[StructField(name, kind) for name, kind in fields.items()], StructField("event_time", TimestampType())])
    times = pa.array([second * 1_000_000 for second in range(len(payloads))], pa.int64())
    batch = pa.RecordBatch.from_arrays([pa.array(payloads, pa.binary()), times], names=["payload", "event_time"])
    return [row for made in PassRunner(work, schema)([batch]) for row in made.to_pylist()]


def test_steps_are_one_pass_and_keep_key_and_time() -> None:
    seen: list[int] = []
    chain = [
        steps.FlatMap(range),
        steps.Filter(lambda value: value % 2),
        steps.Foreach(seen.append),
        steps.Map(lambda value: value * 10),
        steps.SelectTimestamp(lambda value: value * 1000),
        steps.KeyBy(lambda value: {"b": value, "a": None}),
    ]
    rows = passed([b"4", None, b"2"], json.loads, chain, KeyedWriter(JSON, lambda value: value / 4))
    assert seen == [1, 3, 1]
    assert [(row["key"], row["value"], row["whole"], row["real"], row["event_time"].timestamp()) for row in rows] == [
        ('{"a":null,"b":10}', b"10", None, 2.5, 10.0),
        ('{"a":null,"b":30}', b"30", None, 7.5, 30.0),
        ('{"a":null,"b":10}', b"10", None, 2.5, 10.0),
    ]


def test_pairs_give_keys_and_serializers_get_them() -> None:
    rows = passed(
        [b"ab"], lambda source: Pair(source[:1].decode(), source[1:]), [], PayloadWriter(lambda key, data: key.encode() + data)
    )
    assert [(row["payload"], row["key"]) for row in rows] == [(b"ab", b"a")]
    rows = passed([b"7"], lambda source: Pair(int(source), None), [], PayloadWriter(lambda _key, _data: None))
    assert [(row["payload"], row["key"]) for row in rows] == [(None, b"7")]


def test_a_failing_record_is_skipped_and_logged_or_kept_or_ends_the_query(caplog: pytest.LogCaptureFixture) -> None:
    payloads: list[bytes | None] = [b"1", b"x", b"0"]
    divide = [steps.Map(lambda value: 1 // value)]
    with caplog.at_level(logging.WARNING):
        assert [row["text"] for row in passed(payloads, int, divide, TextWriter())] == ["(key: None, data: 1)"]
    assert "skipped 2 of 3 records of a batch" in caplog.text
    dead = passed(payloads, int, divide, TextWriter(), only_errors=True)
    assert [row["payload"] for row in dead] == [b"x", b"0"]
    assert dead[1]["error"].startswith("ZeroDivisionError")
    with pytest.raises(ValueError, match="invalid literal"):
        passed(payloads, int, divide, TextWriter(), skip_errors=False)
    assert passed([b"1"], int, [], KeyedWriter(JSON, lambda _: 1 << 70)) == []


@dataclass
class User:
    name: str


def test_codecs() -> None:
    assert JsonCodec().loads(JsonCodec().dumps({"a": [1, 2.5, None]})) == {"a": [1, 2.5, None]}
    assert JsonCodec().loads(b"Infinity") == float("inf"), "as Spark writes doubles"
    assert PickleCodec().loads(PickleCodec().dumps(User("ann"))) == User("ann")
    assert ValueReader(JSON).read(('"k"', None, 5)) == ("k", None, 5)


def test_accumulators_keep_values_and_no_code() -> None:
    fold = CodedAccumulator(Fold(lambda key, value, so_far: f"{so_far or key}{value}"), JSON).for_key('"k"')
    fold.addValue(b"1")
    again = CodedAccumulator(Fold(lambda key, value, so_far: f"{so_far or key}-{value}"), JSON).for_key('"k"')
    restore_state(again, save_state(fold))
    again.addValue(b"2")
    assert again.result({}) == b'"k1-2"'


def test_windows_that_cut_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="not above the size"):
        Window.sliding(Time.seconds(2), Time.seconds(3))
    with pytest.raises(ValueError, match="size must be above 0"):
        Window.tumbling(Time.of(0, "seconds"))
    with pytest.raises(ValueError, match="unknown unit"):
        Time.of(1, "fortnights")
    assert WindowBuilder.slidingWindow(Time.hours(1), Time.minutes(1)) == Window.sliding(
        Time.milliseconds(3_600_000), Time.seconds(60)
    )
    assert str(Time.days(1)) == "86400000 milliseconds"


def test_what_cannot_be_built_is_said_when_it_is_built() -> None:
    builder = StreamBuilder("job")
    stream = builder.source("a", json.loads)
    with pytest.raises(ValueError, match="writes nothing"):
        builder.build()
    counts = stream.keyBy(lambda value: value).count().toRStream()
    for follows in (
        lambda: counts.keyBy(lambda value: value).sum(),
        lambda: counts.keyBy(lambda value: value).window(Window.tumbling(Time.seconds(1))).count(),
        lambda: counts.keyBy(lambda value: value).aggregate(lambda _key, _value, so_far: so_far),
        lambda: counts.join(stream).where(str).equalTo(str).apply(lambda left, _right: left),
    ):
        with pytest.raises(ValueError, match=r"write the results to a topic with sink\(\)"):
            follows()
    closed = stream.keyBy(str).window(Window.tumbling(Time.seconds(1))).count().toRStream()
    with pytest.raises(ValueError, match="before the first window"):
        closed.selectTimestamp(lambda value: value)


def test_foreach_is_an_end_only_where_nothing_follows() -> None:
    builder = StreamBuilder("job")
    stream = builder.source("a", json.loads, deadLetters="dead")
    stream.foreach(print).map(str).print()
    stream.filter(bool).foreach(print)
    assert [output.kind for output in builder.build().outputs] == ["deadLetters", "print", "foreach"]


def test_properties_that_mean_nothing_are_refused() -> None:
    builder = StreamBuilder("job")
    builder.source("a", json.loads).print()
    with pytest.raises(ValueError, match="checkpointLocation"):
        StreamJob(builder.build(), {StreamConfig.TRIGGER: "1 seconds"})
    for name, value in ((StreamConfig.TIME_TYPE, "event"), (StreamConfig.CONSUME_FROM_WHERE, "earliest")):
        with pytest.raises(ValueError, match=f"invalid property {name}='{value}': use"):
            StreamJob(builder.build(), {StreamConfig.CHECKPOINT_LOCATION: "c", name: value})
