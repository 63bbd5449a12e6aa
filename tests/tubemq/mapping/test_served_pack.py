"""Units become the messages of a response to a get, with the compiled module as with the plain code."""

from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mqbridge.errors import RemoteProtocolError
from mqbridge.message import Unit
from mqbridge.native import compiled
from mqbridge.tubemq.mapping import served_pack
from mqbridge.tubemq.mapping.served_pack import encode_pack, encode_pack_plain, message_type
from mqbridge.tubemq.mapping.unit_format import unit_of_data
from mqbridge.tubemq.wire.payload import checksum, join_payload
from mqbridge.tubemq.wire.pb.broker_pb2 import GetMessageResponseB2C, TransferedMessage
from tests.strategies import attribute_strings, tubemq_natives

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
FLAGS = st.sampled_from([0, 1, 2, 3, -1, (1 << 31) - 1, -(1 << 31)])
_items = st.sampled_from(
    [b"$msgType$=t", b"$msgType$=u", b"$msgType$=", b"=$msgType$", b"x$msgType$=t=u", b"$msgType$==", b"a=t", b""]
)
contents = st.one_of(
    tubemq_natives().map(lambda native: (native.payLoadData, native.flag)),
    st.builds(join_payload, attribute_strings | st.lists(_items, max_size=4).map(b",".join), st.binary(max_size=200)),
    st.tuples(st.binary(max_size=20), FLAGS),
)


@pytest.fixture(scope="module", params=["plain", "compiled"], autouse=True)
def _implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run every test with the plain code and with the compiled module."""
    if request.param == "compiled" and compiled is None:
        pytest.skip("the compiled module is not installed, or is turned off")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "plain":
            patch.setattr(served_pack, "compiled", None)
        yield


def typed(attributes: bytes | None) -> Unit:
    return unit_of_data(*join_payload(attributes, b"body"))


def refusal(data: bytes, types: frozenset[str] = frozenset()) -> str:
    with pytest.raises(RemoteProtocolError) as refused:
        encode_pack([typed(None), Unit(data, 1, None)], [5, 8], types)
    return str(refused.value)


def test_the_bytes_of_a_message() -> None:
    expected = bytes.fromhex("221b 08ffffffffffffffffff01 1092d3db8107 1a06 68656c6c6f30 2001")
    assert encode_pack([unit_of_data(b"hello0", 1)], [-1]) == (expected, 1)
    assert encode_pack([], []) == (b"", 0)


@given(st.lists(st.tuples(contents, INT64), max_size=5))
@example([((b"x" * 5000, -1), -1), ((b"", 0), 0)])
def test_the_fields_are_those_that_protobuf_writes(messages: list[tuple[tuple[bytes, int], int]]) -> None:
    units, ids = [unit_of_data(*content) for content, _ in messages], [message_id for _, message_id in messages]
    expected = [
        TransferedMessage(messageId=message_id, checkSum=checksum(data), payLoadData=data, flag=flag)
        for (data, flag), message_id in messages
    ]
    response = GetMessageResponseB2C(messages=expected).SerializePartialToString()
    assert encode_pack(units, ids) == (response, len(units))


@given(st.lists(contents, max_size=6), st.frozensets(st.sampled_from(["t", "u", "", "$msgType$", "größe", "\udcff", "\ud800"])))
def test_units_with_other_types_are_left_out(messages: list[tuple[bytes, int]], types: frozenset[str]) -> None:
    units = [unit_of_data(*content) for content in messages]
    encoded = {name.encode("utf-8", "surrogatepass") for name in types}
    is_served = [not types or message_type(*content) in encoded for content in messages]
    data, count = encode_pack(units, range(len(units)), types)
    assert (data, count) == encode_pack_plain(units, range(len(units)), encoded)
    response = GetMessageResponseB2C.FromString(data + b"\x08\x01\x10\x00")
    assert [message.messageId for message in response.messages] == [index for index, served in enumerate(is_served) if served]
    assert count == sum(is_served)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        (b"$msgType$=t1,$msgTime$=202611202350,k=v1", b"t1"),
        (b"k=v1,$msgType$=t1", b"t1"),
        ("$msgType$=größe".encode(), "größe".encode()),
        (b"$msgType$=\xff", b"\xff"),
        (b"$msgType$=a=b", b"a"),
        (b"$msgType$=a,$msgType$=b", b"b"),
        (b"$msgType$=a,$msgType$", b"a"),
        (b"$msgType$=a,$msgType$=", b"a"),
        (b"$msgType$=a,$msgType$==", b"a"),
        (b"$msgType$=a,$msgType$==b", None),
        (b"$msgType$=a,x$msgType$y=b", b"b"),
        (b"$msgType$=a,k=$msgType$", b"$msgType$"),
        (b"$msgType$=a,=$msgType$", b"$msgType$"),
        (b"$msgType$=a,==$msgType$", None),
        (b"$msgType$ = a", b" a"),
        (b"$msgType$", None),
        (b"$msgtype$=a", None),
        (b"", None),
        (None, None),
    ],
)
def test_the_type_is_the_one_by_which_java_consumers_filter(attributes: bytes | None, expected: bytes | None) -> None:
    """See parseSystemHeader of Java's class Message: the last item that contains the name has the type."""
    unit = typed(attributes)
    assert message_type(*join_payload(attributes, b"body")) == expected
    for wanted in ("a", "b", "t1", "größe", " a", "$msgType$"):
        assert encode_pack([unit], [1], frozenset({wanted, "other"}))[1] == (wanted.encode() == expected)


@pytest.mark.parametrize(
    "data", [b"$msgType$=t", b"\x7f\xff\xff\xff$msgType$=t", b"\xff\xff\xff\xff$msgType$=t", b"\0\0\0\x0c$msgType$=t"]
)
def test_data_without_an_attribute_block_has_no_type(data: bytes) -> None:
    assert message_type(data, 1) is None
    assert message_type(join_payload(b"$msgType$=t", b"")[0], 2) is None
    assert encode_pack([unit_of_data(data, 1)], [1], frozenset({"t"})) == (b"", 0)


def test_a_damaged_unit_is_refused_with_its_index_even_if_a_filter_would_leave_it_out() -> None:
    damaged = {
        b"": "it has 0 bytes, and a unit has 8 at least",
        b"\0\0\0\7\0\0\0": "it has 7 bytes, and a unit has 8 at least",
        b"\0\0\0\x09\0\0\0\0": "its size is 9, and it has 8 bytes",
        b"\0\0\0\x07\0\0\0\0": "its size is 7, and it has 8 bytes",
        b"\xff\xff\xff\xff\0\0\0\0": "its size is -1, and it has 8 bytes",
    }
    for types in (frozenset[str](), frozenset({"t"})):
        assert {data: refusal(data, types) for data in damaged} == {
            data: f"unit 1 cannot be served: {problem}" for data, problem in damaged.items()
        }


def test_there_is_one_id_for_each_unit() -> None:
    for ids in ([1], [1, 2, 3], range(0)):
        with pytest.raises(ValueError, match="zip"):
            encode_pack([typed(None), typed(None)], ids)
