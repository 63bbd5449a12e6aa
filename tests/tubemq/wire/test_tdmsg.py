"""Packed messages: bodies that we write, bodies of other SDKs, and damaged ones."""

import contextlib
import gzip
import tracemalloc
from struct import pack as packed

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqbridge.errors import LocalProtocolError, RemoteProtocolError
from mqbridge.tubemq.wire import tdmsg
from mqbridge.tubemq.wire.tdmsg import Item, is_packed, unpack

items = st.lists(st.builds(Item, st.binary(min_size=1, max_size=60), st.binary(min_size=1, max_size=20)), max_size=8)


def group(attributes: bytes, inner: bytes, *, snappy: bool = False, count: int | None = None) -> bytes:
    body = bytes(cramjam.snappy.compress_raw(inner)) if snappy else inner
    counted = b"" if count is None else packed(">I", count)
    return packed(">H", len(attributes)) + attributes + counted + packed(">IB", len(body) + 1, snappy) + body


def lengths(*data: bytes) -> bytes:
    return b"".join(packed(">I", len(one)) + one for one in data)


@given(items, st.integers(0, 1 << 62))
def test_packed_messages_are_unpacked_unchanged(given_items: list[Item], created: int) -> None:
    """Messages with the same attributes stay in order; groups are in the order of their first messages."""
    found = unpack(tdmsg.pack(given_items, created))
    assert (found.version, found.created) == (2, created)
    texts = list(dict.fromkeys(item.attributes for item in given_items))
    assert found.items == [item for text in texts for item in given_items if item.attributes == text]


@pytest.mark.parametrize("snappy", [False, True])
@pytest.mark.parametrize("version", [0, 1, 2])
def test_versions_0_to_2_are_unpacked(version: int, snappy: bool) -> None:
    prefix = {0: b"", 1: packed(">q", 1_700_000_000_123), 2: packed(">qI", 1_700_000_000_123, 3)}[version]
    count = 2 if version == 2 else None
    groups = group(b"m=1", lengths(b"a", b"bc"), snappy=snappy, count=count) + group(b"m=2", lengths(b"d" * 500), count=count)
    end = bytes((15, version))
    found = unpack(end + prefix + packed(">I", 2) + groups + end)
    assert found.items == [Item(b"a", b"m=1"), Item(b"bc", b"m=1"), Item(b"d" * 500, b"m=2")]
    assert found.created == (None if version == 0 else 1_700_000_000_123)


def test_version_3_has_attributes_of_each_message() -> None:
    inner = lengths(b"a", b"k=1", b"b", b"k=2", b"c")
    body = packed(">q", 5) + packed(">II", 3, 1) + group(b"m=1", packed(">I", len(inner)) + inner)
    assert unpack(b"\x0f\x03" + body + b"\x0f\x03").items == [
        Item(b"a", b"m=1&k=1"),
        Item(b"b", b"m=1&k=2"),
        Item(b"c", b"m=1"),
    ]


@pytest.mark.parametrize(("kind", "flags"), [(0, 0), (0, 4), (1 << 5, 0), (1 << 5, 5), (0, 1)])
def test_version_4_is_unpacked(kind: int, flags: int) -> None:
    inner = lengths(b"a", b"k=1", b"bc", b"k=2") if flags & 1 else lengths(b"a", b"bc")
    body = bytes(cramjam.snappy.compress_raw(inner)) if kind else inner
    shared = b"x=y"
    size = 25 + len(body) + 2 + len(shared) + 2 - 4
    prefix = packed(">IBHHHIHII", size, kind, 12, 34, flags, 1_636_438_935, 2, 0, len(body))
    whole = b"\x0f\x04" + prefix + body + packed(">H", len(shared)) + shared + b"\xee\x01\x0f\x04"
    found = unpack(whole)
    ids = b"" if flags & 4 else b"&bid=12&tid=34"
    common = shared + ids + b"&dt=1636438935000"
    own = (b"&k=1", b"&k=2") if flags & 1 else (b"", b"")
    assert found.items == [Item(b"a", common + own[0]), Item(b"bc", common + own[1])]
    assert found.created == 1_636_438_935_000


def test_a_decompression_bomb_is_refused() -> None:
    """The size that snappy data claims is checked first; the sizes of all groups are added up."""
    bomb = b"\xff\xff\xff\xff\x0f" + b"x"
    body = packed(">I", 1) + packed(">H", 1) + b"m" + packed(">IB", len(bomb) + 1, 1) + bomb
    with pytest.raises(RemoteProtocolError, match="unpacks to more"):
        unpack(b"\x0f\x00" + body + b"\x0f\x00")
    quarter = group(b"m", lengths(bytes(tdmsg.MAX_UNPACKED_BYTES // 4)), snappy=True)
    with pytest.raises(RemoteProtocolError, match="unpacks to more"):
        unpack(b"\x0f\x00" + packed(">I", 4) + quarter * 4 + b"\x0f\x00")


@pytest.mark.parametrize("version", [0, 2, 3, 4])
def test_a_small_body_takes_no_more_memory_than_the_limit(version: int) -> None:
    """Each message has a copy of the group's attributes if it has attributes of its own: these copies count too."""
    body = bomb_body(version, shared=b"a=" + b"b" * 65_000, messages=tdmsg.MAX_ITEMS)
    assert len(body) < 300_000
    tracemalloc.start()
    try:
        with contextlib.suppress(RemoteProtocolError):  # without attributes of their own, the messages are within the limit
            assert len(unpack(body).items) == tdmsg.MAX_ITEMS
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * tdmsg.MAX_UNPACKED_BYTES


@pytest.mark.parametrize("version", [3, 4])
def test_messages_with_attributes_of_their_own_are_refused_beyond_the_limit(version: int) -> None:
    with pytest.raises(RemoteProtocolError, match="more than the limit"):
        unpack(bomb_body(version, shared=b"a=" + b"b" * 65_000, messages=2000))
    assert len(unpack(bomb_body(version, shared=b"a=b", messages=2000)).items) == 2000


@pytest.mark.parametrize("version", [0, 2, 3])  # version 4 has at most 65,535
def test_too_many_messages_are_refused(version: int) -> None:
    with pytest.raises(RemoteProtocolError, match="more than"):
        unpack(bomb_body(version, shared=b"m=1", messages=tdmsg.MAX_ITEMS + 1))


def bomb_body(version: int, *, shared: bytes, messages: int) -> bytes:
    """Return a compressed body of many messages of one byte, which have attributes of their own in versions 3 and 4."""
    inner = lengths(b"d", b"a") * messages if version >= 3 else lengths(b"d") * messages
    end = bytes((15, version))
    if version == 4:
        data = bytes(cramjam.snappy.compress_raw(inner))
        prefix = packed(">IBHHHIHII", 0, 1 << 5, 0, 0, 5, 0, 0xFFFF, 0, len(data))
        return end + prefix + data + packed(">H", len(shared)) + shared + b"\xee\x01" + end
    prefix = b"" if version == 0 else packed(">qI", 0, messages)
    if version == 3:
        inner = packed(">I", len(inner)) + inner
    count = messages if version == 2 else None
    return end + prefix + packed(">I", 1) + group(shared, inner, snappy=True, count=count) + end


@pytest.mark.parametrize("item", [Item(b"", b"m"), Item(b"x", b""), Item(b"x", b"m" * 40_000)])
def test_messages_that_cannot_be_packed_are_refused(item: Item) -> None:
    with pytest.raises(LocalProtocolError):
        tdmsg.pack([item], 0)


def test_other_bodies_are_not_packed() -> None:
    for body in (b"", b"hello", b"\x0f\x02", b"\x0f\x09xxxxxx\x0f\x09", gzip.compress(b"x" * 100)):
        assert not is_packed(body)
        with pytest.raises(RemoteProtocolError):
            unpack(body)


@given(st.integers(0, 4), st.binary(min_size=4, max_size=200))
def test_nonsense_is_a_protocol_error(version: int, inner: bytes) -> None:
    end = bytes((15, version))
    try:
        unpack(end + inner + end)
    except RemoteProtocolError:
        return


@given(items, st.data())
def test_damage_is_a_protocol_error_or_other_messages(given_items: list[Item], data: st.DataObject) -> None:
    body = bytearray(tdmsg.pack(given_items, 1))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = unpack(bytes(body))
    except RemoteProtocolError:
        return
    assert sum(len(item.data) for item in found.items) <= tdmsg.MAX_UNPACKED_BYTES
