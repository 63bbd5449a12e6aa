"""What all mappings share: the bounded cache, lazy properties, parse templates and the parser of property strings."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mqbridge.mapping.bounded_cache import BoundedCache, total_length
from mqbridge.mapping.lazy_properties import NO_NAMES, LazyMessage, PropertyNames, property_names, split_properties
from mqbridge.mapping.parse_templates import MAX_BYTES, MAX_CREDIT, PRICE, ParseTemplate, ParseTemplates
from mqbridge.mapping.property_string import PropertyStringParser, StringForm, string_format
from mqbridge.message import Message


def test_a_cache_makes_a_value_once() -> None:
    made: list[str] = []
    cache: BoundedCache[str, int] = BoundedCache(lambda key: made.append(key) or len(key))  # type: ignore[func-returns-value]
    assert (cache["ab"], cache["ab"], cache.get("ab"), cache.get("c")) == (2, 2, 2, None)
    assert made == ["ab"]


def test_a_full_cache_is_emptied() -> None:
    cache = BoundedCache(str, entries=3, length=None)
    for key in range(4):
        assert cache[key] == str(key)
    assert dict(cache) == {3: "3"}


def test_a_cache_does_not_keep_long_keys() -> None:
    cache = BoundedCache(bytes.decode, longest=3)
    assert (cache[b"abc"], cache[b"abcd"]) == ("abc", "abcd")
    assert list(cache) == [b"abc"]
    names: BoundedCache[tuple[str, ...], int] = BoundedCache(len, longest=3, length=total_length)
    assert (names["ab", "c"], names["ab", "cd"]) == (2, 2)
    assert list(names) == [("ab", "c")]


def test_a_cache_without_a_maker_gives_what_was_kept() -> None:
    cache: BoundedCache[str, int] = BoundedCache()
    with pytest.raises(KeyError):
        cache["a"]
    assert cache.keep("a", 1) == cache["a"] == 1


def test_a_value_that_cannot_be_made_is_not_kept() -> None:
    cache = BoundedCache(bytes.decode)
    for _ in range(2):
        with pytest.raises(UnicodeDecodeError):
            cache[b"\xff"]
    assert not cache


def test_names_are_shared_and_targets_prepare_once() -> None:
    names, values = split_properties((("a", "1"), ("ü", "2")))
    assert names is property_names((b"a", "ü".encode()))
    assert (names.texts, values) == (("a", "ü"), (b"1", b"2"))
    prepared: list[PropertyNames] = []
    for _ in range(2):
        names.target_cache("test", prepared.append)
    assert prepared == [names]
    assert split_properties(()) == (NO_NAMES, ())


def test_a_changed_lazy_message_is_an_ordinary_one() -> None:
    lazy = LazyMessage.__new__(LazyMessage)
    lazy.property_names, lazy.values = split_properties((("a", "1"),))
    lazy.lengths, lazy.payload, lazy.key, lazy.keys, lazy.msg_type, lazy.attributes = None, b"x", None, (), None, None
    lazy.event_time = lazy.publish_time = None
    lazy.delivery_count, lazy.position = 0, (1,)
    assert lazy.properties == (("a", "1"),)
    changed = lazy.replace(msg_type="t")
    assert type(changed) is Message
    assert (changed.properties, changed.msg_type, changed.position) == ((("a", "1"),), "t", (1,))


def test_templates_are_paid_for() -> None:
    templates = ParseTemplates[ParseTemplate]()
    made = 0

    def make() -> ParseTemplate:
        nonlocal made
        made += 1
        return ParseTemplate(b"a=1", [2, 1])

    for length in range(1, 2 * MAX_CREDIT // PRICE):
        templates.learn(length, make)
    assert made == len(templates.by_length) == MAX_CREDIT // PRICE
    templates.read += PRICE
    templates.learn(1000, make)
    templates.learn(1001, make)
    assert (1000 in templates.by_length, 1001 in templates.by_length) == (True, False)
    templates.read += PRICE
    templates.learn(MAX_BYTES + 1, make)
    assert MAX_BYTES + 1 not in templates.by_length


def parser(*, terminated: bool, empty_values: bool) -> PropertyStringParser[StringForm]:
    return PropertyStringParser(b"=", b",", StringForm, terminated=terminated, empty_values=empty_values)


@pytest.mark.parametrize("terminated", [True, False])
@pytest.mark.parametrize("empty_values", [True, False])
@given(data=st.lists(st.sampled_from([b"=", b",", b"a", b"%", b"bc"])).map(b"".join))
@example(data=b"a=1,b=2")
@example(data=b"a=1,b=2,")
@example(data=b"a=,b=,")
def test_a_split_string_has_the_pairs_that_a_search_finds(data: bytes, terminated: bool, empty_values: bool) -> None:
    found = parser(terminated=terminated, empty_values=empty_values).split(data)
    items = data.split(b",")
    if terminated:
        *items, rest = items
    regular = all(item.count(b"=") == 1 for item in items) and bool(items) and (not terminated or not rest)
    if not regular or (not empty_values and any(item.endswith(b"=") for item in items)):
        assert found is None
        return
    assert found is not None
    form, values = found
    assert [b"=".join(pair) for pair in zip(form.names, values, strict=True)] == items
    assert string_format(form.names, b"=", b",", terminated=terminated) % values == data


@pytest.mark.parametrize("terminated", [True, False])
def test_a_template_splits_strings_of_the_same_cut(terminated: bool) -> None:
    strings = parser(terminated=terminated, empty_values=True)
    end = b"," if terminated else b""
    assert strings.split(b"a=12,b=3" + end) is not None
    template = strings.templates.by_length[8 + terminated]
    fields = template.unpack(b"a=xy,b=z" + end)
    assert (fields[::2], fields[1::2]) == (template.fixed, (b"xy", b"z"))
    assert (template.separators, template.ends, template.lengths) == (2, 1 + terminated, (2, 1))
    assert template.unpack(b"ab=x,b=z" + end)[::2] != template.fixed
