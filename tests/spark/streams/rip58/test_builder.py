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


def run_pass(
    payloads: list[bytes | None], deserialize: Any, chain: list[Step], writer: Writer, **settings: Any
) -> list[dict[str, Any]]:
    """Return the rows that one pass yields for payloads, whose times are one second apart."""
    python_pass = Pass(PayloadReader(deserialize), tuple(chain), writer, settings.pop("skip_errors", True), **settings)
    fields = (
        writer.fields
        if not python_pass.only_errors
        else {"payload": PayloadWriter.fields["payload"], "error": TextWriter.fields["text"]}
    )
    schema = StructType([*[StructField(name, kind) for name, kind in fields.items()], StructField("event_time", TimestampType())])
    times = pa.array([second * 1_000_000 for second in range(len(payloads))], pa.int64())
    batch = pa.RecordBatch.from_arrays([pa.array(payloads, pa.binary()), times], names=["payload", "event_time"])
    return [row for output in PassRunner(python_pass, schema)([batch]) for row in output.to_pylist()]


def test_consecutive_steps_run_in_one_pass() -> None:
    seen: list[int] = []
    chain = [
        steps.FlatMap(range),
        steps.Filter(lambda value: value % 2),
        steps.Foreach(seen.append),
        steps.Map(lambda value: value * 10),
        steps.SelectTimestamp(lambda value: value * 1000),
        steps.KeyBy(lambda value: {"b": value, "a": None}),
    ]
    rows = run_pass([b"4", None, b"2"], json.loads, chain, KeyedWriter(JSON, lambda value: value / 4))
    assert seen == [1, 3, 1]
    assert [(row["key"], row["value"], row["whole"], row["real"], row["event_time"].timestamp()) for row in rows] == [
        ('{"a":null,"b":10}', b"10", None, 2.5, 10.0),
        ('{"a":null,"b":30}', b"30", None, 7.5, 30.0),
        ('{"a":null,"b":10}', b"10", None, 2.5, 10.0),
    ]


def test_the_key_of_a_pair_is_passed_to_the_serializer_and_written() -> None:
    rows = run_pass(
        [b"ab"], lambda source: Pair(source[:1].decode(), source[1:]), [], PayloadWriter(lambda key, data: key.encode() + data)
    )
    assert [(row["payload"], row["key"]) for row in rows] == [(b"ab", b"a")]
    rows = run_pass([b"7"], lambda source: Pair(int(source), None), [], PayloadWriter(lambda _key, _data: None))
    assert [(row["payload"], row["key"]) for row in rows] == [(None, b"7")]


def test_a_failing_record_is_skipped_or_a_dead_letter_or_fails_the_query(caplog: pytest.LogCaptureFixture) -> None:
    payloads: list[bytes | None] = [b"1", b"x", b"0"]
    divide = [steps.Map(lambda value: 1 // value)]
    with caplog.at_level(logging.WARNING):
        assert [row["text"] for row in run_pass(payloads, int, divide, TextWriter())] == ["(key: None, data: 1)"]
    assert "skipped 2 of 3 records of a batch" in caplog.text
    dead_letters = run_pass(payloads, int, divide, TextWriter(), only_errors=True)
    assert [row["payload"] for row in dead_letters] == [b"x", b"0"]
    assert dead_letters[1]["error"].startswith("ZeroDivisionError")
    with pytest.raises(ValueError, match="invalid literal"):
        run_pass(payloads, int, divide, TextWriter(), skip_errors=False)
    assert run_pass([b"1"], int, [], KeyedWriter(JSON, lambda _: 1 << 70)) == []


@dataclass
class User:
    name: str


def test_codecs_restore_values_also_from_json_that_spark_writes() -> None:
    assert JsonCodec().loads(JsonCodec().dumps({"a": [1, 2.5, None]})) == {"a": [1, 2.5, None]}
    assert JsonCodec().loads(b"Infinity") == float("inf"), "Spark writes doubles like this"
    assert PickleCodec().loads(PickleCodec().dumps(User("ann"))) == User("ann")
    assert ValueReader(JSON).read(('"k"', None, 5)) == ("k", None, 5)


def test_the_state_of_an_accumulator_has_values_but_no_code() -> None:
    fold = CodedAccumulator(Fold(lambda key, value, so_far: f"{so_far or key}{value}"), JSON).for_key('"k"')
    fold.addValue(b"1")
    restarted = CodedAccumulator(Fold(lambda key, value, so_far: f"{so_far or key}-{value}"), JSON).for_key('"k"')
    restore_state(restarted, save_state(fold))
    restarted.addValue(b"2")
    assert restarted.result({}) == b'"k1-2"'


def test_invalid_window_sizes_and_units_are_an_error() -> None:
    with pytest.raises(ValueError, match="at most the size"):
        Window.sliding(Time.seconds(2), Time.seconds(3))
    with pytest.raises(ValueError, match="size must be above 0"):
        Window.tumbling(Time.of(0, "seconds"))
    with pytest.raises(ValueError, match="unknown unit"):
        Time.of(1, "fortnights")
    assert WindowBuilder.slidingWindow(Time.hours(1), Time.minutes(1)) == Window.sliding(
        Time.milliseconds(3_600_000), Time.seconds(60)
    )
    assert str(Time.days(1)) == "86400000 milliseconds"


def test_an_invalid_topology_is_an_error_when_it_is_built() -> None:
    builder = StreamBuilder("job")
    stream = builder.source("a", json.loads)
    with pytest.raises(ValueError, match="writes nothing"):
        builder.build()
    counts = stream.keyBy(lambda value: value).count().toRStream()
    for add_operator in (
        lambda: counts.keyBy(lambda value: value).sum(),
        lambda: counts.keyBy(lambda value: value).window(Window.tumbling(Time.seconds(1))).count(),
        lambda: counts.keyBy(lambda value: value).aggregate(lambda _key, _value, so_far: so_far),
        lambda: counts.join(stream).where(str).equalTo(str).apply(lambda left, _right: left),
    ):
        with pytest.raises(ValueError, match=r"write the results to a topic with sink\(\)"):
            add_operator()
    after_window = stream.keyBy(str).window(Window.tumbling(Time.seconds(1))).count().toRStream()
    with pytest.raises(ValueError, match="before the first window"):
        after_window.selectTimestamp(lambda value: value)


def test_foreach_is_an_output_only_if_no_operator_follows() -> None:
    builder = StreamBuilder("job")
    stream = builder.source("a", json.loads, deadLetters="dead")
    stream.foreach(print).map(str).print()
    stream.filter(bool).foreach(print)
    assert [output.kind for output in builder.build().outputs] == ["deadLetters", "print", "foreach"]


def test_missing_and_invalid_properties_are_an_error() -> None:
    builder = StreamBuilder("job")
    builder.source("a", json.loads).print()
    with pytest.raises(ValueError, match="checkpointLocation"):
        StreamJob(builder.build(), {StreamConfig.TRIGGER: "1 seconds"})
    for name, value in ((StreamConfig.TIME_TYPE, "event"), (StreamConfig.CONSUME_FROM_WHERE, "earliest")):
        with pytest.raises(ValueError, match=f"invalid property {name}='{value}': use"):
            StreamJob(builder.build(), {StreamConfig.CHECKPOINT_LOCATION: "c", name: value})
