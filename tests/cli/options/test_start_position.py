import contextlib
import time
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.adapter.inbound import Start
from mqbridge.adapter.topics import Topic
from mqbridge.cli.options.start_position import (
    Timestamp,
    format_timestamp,
    parse_start_position,
    parse_timestamp,
    select_partitions,
)
from mqbridge.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", Start.EARLIEST),
        ("BEGINNING", Start.EARLIEST),
        ("latest", Start.LATEST),
        ("end", Start.LATEST),
        ("12", (12,)),
        ("12:3", (12, 3)),
        ("-1:-1:0", (-1, -1, 0)),
        ("@1700000000123", Timestamp(1_700_000_000_123)),
        ("2023-11-14T22:13:20.123Z", Timestamp(1_700_000_000_123)),
        ("2023-11-15T00:13:20.123+02:00", Timestamp(1_700_000_000_123)),
    ],
)
def test_start_positions(text: str, position: object) -> None:
    assert parse_start_position(text, "-o") == position


def test_a_time_without_a_zone_is_local() -> None:
    assert parse_timestamp("2023-11-14 22:13") == int(datetime(2023, 11, 14, 22, 13).astimezone().timestamp() * 1000)


@pytest.mark.parametrize(
    ("text", "offset_ms"), [("now", 0), ("now-15m", -900_000), ("now+1h30m", 5_400_000), ("now-250ms", -250)]
)
def test_times_from_now(text: str, offset_ms: int) -> None:
    before = time.time_ns() // 1_000_000
    now = parse_timestamp(text) - offset_ms
    assert before <= now <= time.time_ns() // 1_000_000


@pytest.mark.parametrize("text", ["", "noon", "now*5m", "now-5", "now-", "@", "@x", "12:", "1 2", "2023-13-01"])
def test_an_invalid_start_position_is_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is neither a position nor a time\. Use earliest"):
        parse_start_position(text, "-o")


@given(st.text(alphabet="now+-@0123456789:TZ.hms ", max_size=20))
def test_any_text_is_a_start_position_or_rejected(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert parse_start_position(text, "-o") is not None


@pytest.mark.parametrize(
    ("ms", "text"), [(1_700_000_000_123, "2023-11-14 22:13:20.123Z"), (0, "1970-01-01 00:00:00.000Z"), (10**18, f"@{10**18}")]
)
def test_times_are_formatted_in_utc(ms: int, text: str) -> None:
    assert format_timestamp(ms) == text


def test_partitions_by_name_or_index() -> None:
    topic = Topic("t", ("a:0", "a:1", "b:0"))
    assert select_partitions(topic, []) == ("a:0", "a:1", "b:0")
    assert select_partitions(topic, ["2", "a:0"]) == ("a:0", "b:0")
    with pytest.raises(ConfigError, match=r"no partition 3, c:0\. It has a:0, a:1, b:0"):
        select_partitions(topic, ["3", "c:0"])
