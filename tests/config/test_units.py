import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.config.units import format_duration, format_size, parse_duration, parse_size, split_listen_address


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("30s", 30), ("5m", 300), ("1h30m", 5400), ("2d", 172800), ("1.5s", 1.5), ("1m 30s", 90), ("0s", 0)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "s", "30 parsecs", "-5s", "1e3s", "5m-1s", "³s"])
def test_invalid_durations_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("4096", 4096), ("512KiB", 512 << 10), ("32MiB", 32 << 20), ("1MB", 10**6), ("1.5KiB", 1536), ("2 GiB", 2 << 30)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "1.5", "1.0001KiB", "-1", "12TB", "1kb", "1 M"])
def test_invalid_sizes_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@given(st.integers(min_value=0, max_value=10**10))
def test_formatted_durations_parse_to_the_same_value(milliseconds: int) -> None:
    seconds = milliseconds / 1000
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=1e-12)


@given(st.integers(min_value=0, max_value=1 << 50))
def test_formatted_sizes_parse_to_the_same_value(size: int) -> None:
    assert parse_size(format_size(size)) == size


@given(st.text(max_size=12))
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    for parse in (parse_duration, parse_size):
        try:
            value = parse(text)
        except ValueError:
            continue
        assert value >= 0


@pytest.mark.parametrize(
    ("text", "parts"),
    [("127.0.0.1:8098", ("127.0.0.1", 8098)), ("[::1]:0", ("::1", 0)), ("gw.example:65535", ("gw.example", 65535))],
)
def test_addresses(text: str, parts: tuple[str, int]) -> None:
    assert split_listen_address(text) == parts


@pytest.mark.parametrize("text", ["localhost", ":80", "host:", "host:65536", "::1:80", "a b:1", "host:x"])
def test_invalid_addresses_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address"):
        split_listen_address(text)
