"""The declarations of options, their parsers, and errors that name the wrong option."""

import re

import pytest

from mqbridge.adapter.inbound import Start
from mqbridge.errors import ConfigError
from mqbridge.log.store.settings import LogSettings
from mqbridge.spark.cluster_ref import ClusterRef
from mqbridge.spark.option_values import AtTimestamp, ExplicitOffsets
from mqbridge.spark.options import OPTIONS, Usage, parse_options
from mqbridge.spark.source.settings import source_settings

REF = ClusterRef("log", "log", LogSettings(path="unused.db"))


def test_names_of_options_are_case_insensitive() -> None:
    """Spark passes them in lower case."""
    values = parse_options({"subscribe": "a, b,,a", "startingoffsets": "Earliest", "MAXBYTESPERTRIGGER": "64MiB"}, Usage.STREAM)
    assert values["subscribe"] == ("a", "b")
    assert values["startingOffsets"] is Start.EARLIEST
    assert values["maxBytesPerTrigger"] == 64 << 20
    assert values["failOnDataLoss"] is True
    assert values["minPartitions"] is None


def test_each_option_has_a_valid_default_a_meaning_and_a_unique_name() -> None:
    for option in OPTIONS:
        if option.default is not None:
            option.parse(option.default)
        assert option.meaning.endswith(".")
        assert option.usage_text
    assert len({option.name.lower() for option in OPTIONS}) == len(OPTIONS)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("subscibe", "a", "no option 'subscibe'. Did you mean 'subscribe'?"),
        ("endingoffsets", "latest", "endingOffsets is for batch reads"),
        ("topic", "a", "topic is for writes"),
        ("subscribe", " , ", "subscribe: ' , ' contains no name"),
        ("subscribepattern", "a(", "subscribePattern: 'a(' is not a Python regular expression"),
        ("maxoffsetspertrigger", "0", "maxOffsetsPerTrigger: '0' is not an integer above 0"),
        ("maxbytespertrigger", "5 apples", "maxBytesPerTrigger: '5 apples' is not a size"),
        ("metadatainterval", "5", "metadataInterval: '5' is not a duration"),
        ("failondataloss", "maybe", "failOnDataLoss: 'maybe' is not one of true, false"),
        ("mode", "row", "mode: 'row' is not one of rows, ranges. Did you mean 'rows'?"),
        ("startingtimestamp", "yesterday", "startingTimestamp: 'yesterday' is not a time"),
        ("startingtimestamp", "²", "startingTimestamp: '²' is not a time"),
        ("startingoffsets", "first", "startingOffsets: 'first' is not one of earliest, latest"),
        ("startingoffsets", '{"a": 5}', "startingOffsets: topic 'a' needs positions by partition"),
        ("startingoffsets", '{"a": {"0": -3}}', "startingOffsets: -3 is not a position of partition '0' of topic 'a'"),
        ("startingoffsets", '{"a": {"0": true}}', "startingOffsets: True is not a position"),
        ("startingoffsets", '{"a"', "startingOffsets: '{\"a\"' is not JSON"),
        ("assign", '{"a": []}', "assign: topic 'a' needs a list"),
    ],
)
def test_the_error_names_the_option_and_the_problem(name: str, text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        parse_options({name: text}, Usage.STREAM)


def test_offsets_are_accepted_in_the_forms_of_kafka_and_of_a_checkpoint() -> None:
    def parse(text: str) -> object:
        return parse_options({"startingOffsets": text}, Usage.STREAM)["startingOffsets"]

    assert parse('{"a": {"0": 23, "b:1": "12:3", "2": -2, "3": -1}}') == ExplicitOffsets(
        {"a": {"0": (23,), "b:1": (12, 3), "2": Start.EARLIEST, "3": Start.LATEST}}
    )
    assert parse('{"topics": {"a": {"0": "-1:-1:0"}}, "version": 1}') == ExplicitOffsets({"a": {"0": (-1, -1, 0)}})
    assert parse('{"a": {"0": "-2", "1": "-1"}}') == ExplicitOffsets({"a": {"0": Start.EARLIEST, "1": Start.LATEST}})


@pytest.mark.parametrize(
    ("text", "time_ms"),
    [("1700000000123", 1700000000123), ("2026-01-31T12:00:00Z", 1769860800000), ("2026-01-31T13:00:00+01:00", 1769860800000),
     ("2026-01-31", 1769817600000)],
)  # fmt: skip
def test_times_are_milliseconds_or_iso_texts_in_utc(text: str, time_ms: int) -> None:
    assert parse_options({"startingTimestamp": text}, Usage.BATCH)["startingTimestamp"] == time_ms


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "no option selects topics"),
        ({"subscribe": "a", "assign": '{"a": [0]}'}, "several options select topics: subscribe and assign"),
        ({"subscribe": "a", "startingOffsets": "latest"}, "cannot begin at latest"),
        ({"subscribe": "a", "endingOffsets": "earliest"}, "there is nothing before earliest"),
    ],
)
def test_contradicting_options_are_an_error(given: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        source_settings(parse_options(given, Usage.BATCH), REF, Usage.BATCH)


def test_the_default_begin_and_the_precedence_of_timestamps() -> None:
    batch = source_settings(parse_options({"subscribe": "a"}, Usage.BATCH), REF, Usage.BATCH)
    stream = source_settings(parse_options({"subscribe": "a"}, Usage.STREAM), REF, Usage.STREAM)
    assert (batch.starting, batch.ending, stream.starting) == (Start.EARLIEST, Start.LATEST, Start.LATEST)
    times = {"subscribe": "a", "startingTimestamp": "5", "startingOffsets": "earliest"}
    assert source_settings(parse_options(times, Usage.STREAM), REF, Usage.STREAM).starting == AtTimestamp(5)


def test_patterns_match_whole_names() -> None:
    settings = source_settings(parse_options({"subscribePattern": "orders_.*"}, Usage.STREAM), REF, Usage.STREAM)
    assert settings.topics.includes("orders_eu")
    assert not settings.topics.includes("my_orders_eu")


def test_the_option_queryname_that_spark_adds_is_ignored() -> None:
    assert parse_options({"queryname": "counts", "topic": "a"}, Usage.WRITE)["topic"] == "a"


def test_a_missing_adapter_is_named_with_the_machine_that_lacks_it() -> None:
    with pytest.raises(ConfigError, match="the adapter 'other' of cluster 'far' is not installed on"):
        ClusterRef("far", "other", REF.settings).make_cluster()
