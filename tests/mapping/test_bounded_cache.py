"""The bounded cache, which all mappings share."""

from typing import Any

import pytest

from mqbridge.mapping.bounded_cache import BoundedCache, total_length
from mqbridge.pulsar.adapter import outbound as pulsar_outbound
from mqbridge.pulsar.wire import single_metadata
from mqbridge.rocketmq.adapter import outbound as rocketmq_outbound


def test_a_cache_makes_a_value_once() -> None:
    computed: list[str] = []
    cache: BoundedCache[str, int] = BoundedCache(lambda key: computed.append(key) or len(key))  # type: ignore[func-returns-value]
    assert (cache["ab"], cache["ab"], cache.get("ab"), cache.get("c")) == (2, 2, 2, None)
    assert computed == ["ab"]


def test_a_full_cache_is_emptied() -> None:
    cache = BoundedCache(str, max_entries=3, length=None)
    for key in range(4):
        assert cache[key] == str(key)
    assert dict(cache) == {3: "3"}


def test_a_cache_does_not_keep_long_keys() -> None:
    cache = BoundedCache(bytes.decode, max_length=3)
    assert (cache[b"abc"], cache[b"abcd"]) == ("abc", "abcd")
    assert list(cache) == [b"abc"]
    names: BoundedCache[tuple[str, ...], int] = BoundedCache(len, max_length=3, length=total_length)
    assert (names["ab", "c"], names["ab", "cd"]) == (2, 2)
    assert list(names) == [("ab", "c")]


def test_a_cache_without_a_function_returns_kept_values_only() -> None:
    cache: BoundedCache[str, int] = BoundedCache()
    with pytest.raises(KeyError):
        cache["a"]
    assert cache.keep("a", 1) == cache["a"] == 1


def test_an_exception_of_the_function_is_raised_and_not_cached() -> None:
    cache = BoundedCache(bytes.decode)
    for _ in range(2):
        with pytest.raises(UnicodeDecodeError):
            cache[b"\xff"]
    assert not cache


@pytest.mark.parametrize(
    ("cache", "short", "long"),
    [
        (pulsar_outbound._JAVA_HASHES, b"key", bytes(1000)),
        (rocketmq_outbound._HASH_CACHE, b"key", bytes(1000)),
        (single_metadata._PROPERTY_PREFIXES, ("name", 5), ("n" * 1000, 5)),
    ],
    ids=["keys to Pulsar", "keys to RocketMQ", "names to Pulsar"],
)
def test_caches_do_not_keep_long_texts(cache: dict[Any, Any], short: Any, long: Any) -> None:
    for key in (short, long):
        assert cache[key] == cache[key]
    assert short in cache
    assert long not in cache
