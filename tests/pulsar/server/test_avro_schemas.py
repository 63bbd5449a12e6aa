"""The rules of Avro schemas: those that a real broker showed, and that data of readable schemas really can be read."""

import io
import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mqbridge.pulsar.server import avro_schemas
from mqbridge.pulsar.server.avro_schemas import InvalidAvro, identity, parse_avro, unreadable
from tests.pulsar.server.avro_pairs import CONTRADICTIONS, DEFAULTS, PAIRS, array, enum, field, fixed, mapping, record


def parse(schema: Any) -> avro_schemas.AvroType:
    return parse_avro(json.dumps(schema).encode())


def verdict(old: Any, new: Any) -> str:
    old_type, new_type = parse(old), parse(new)
    if identity(old_type) == identity(new_type):
        return "same"
    new_reads, old_reads = unreadable(new_type, old_type) is None, unreadable(old_type, new_type) is None
    return {(True, True): "both", (True, False): "new", (False, True): "old", (False, False): "neither"}[new_reads, old_reads]


@pytest.mark.parametrize(
    ("old", "new", "answer"), [pair[1:] for pair in (*PAIRS, *DEFAULTS)], ids=[pair[0] for pair in (*PAIRS, *DEFAULTS)]
)
def test_schemas_are_compatible_if_a_broker_says_so(old: Any, new: Any, answer: str) -> None:
    assert verdict(old, new) == answer


@pytest.mark.parametrize(("old", "new"), [pair[1:3] for pair in CONTRADICTIONS], ids=[pair[0] for pair in CONTRADICTIONS])
def test_an_invalid_default_counts_where_it_is_used(old: Any, new: Any) -> None:
    is_used = old["fields"][0]["name"] != new["fields"][-1]["name"] and len(new["fields"]) > len(old["fields"])
    assert verdict(old, new) == ("old" if is_used else "both")


@pytest.mark.parametrize(
    "schema",
    [
        record(name="a-b"),
        record(field("a b", "string")),
        record(field("a$", "string")),
        record(field("a", "string"), field("a", "int")),
        record(field("a", ["int", "int"])),
        record(field("a", ["int", ["null"]])),
        record(field("a", [array("int"), array("string")])),
        record(field("a", {"type": {"type": {"type": "int"}}})),
        record(field("a", enum("A")), field("b", enum("A"))),
        record(field("a", "int", order="sideways")),
        record(field("a", "int", aliases="x")),
        record(field("a", None)),
        record({"name": "a"}),
        record({"type": "int"}),
        record(name="int"),
        {"type": "record", "name": "R"},
        {"type": "record", "fields": []},
        {"type": "array"},
        {"type": "map"},
        {"type": "enum", "name": "E"},
        enum("A", "A"),
        enum("a-b"),
        enum("A", default="B"),
        fixed(-1),
        {"type": "fixed", "name": "F"},
        {"type": "fixed", "name": "F", "size": True},
        "R",
        5,
        None,
    ],
    ids=str,
)
def test_what_a_broker_refuses_is_invalid(schema: Any) -> None:
    with pytest.raises(InvalidAvro):
        parse(schema)


@pytest.mark.parametrize(
    "schema",
    [
        record(),
        record(namespace="x-y"),
        record(field("é", "string")),
        record(field("a", "int", default="x")),
        record(field("a", [])),
        record(field("a", {"type": "bytes", "logicalType": "decimal"})),
        record(field("a", ["null", "R"])),
        record(field("r", ["null", "R"]), name="x.y.R"),
        record(name="a..b"),
        record(name=".R"),
        record(namespace=""),
        enum(),
        fixed(0),
        array("int"),
        mapping("int"),
        "int",
    ],
    ids=str,
)
def test_what_a_broker_accepts_is_valid(schema: Any) -> None:
    assert identity(parse(schema)) == identity(parse(schema))


@pytest.mark.parametrize(
    "text", [b"", b"{", b"\xff", b"[" * 100_000, b'{"type":"array","items":' * 3_000 + b'"int"' + b"}" * 3_000]
)
def test_text_that_is_no_schema_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidAvro):
        parse_avro(text)


def test_a_schema_with_too_many_types_is_refused() -> None:
    with pytest.raises(InvalidAvro, match="types"):
        parse(record(*(field(f"f{number}", "int") for number in range(avro_schemas.MAX_TYPES))))


def test_a_comparison_that_is_too_large_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_schemas, "MAX_COMPARISONS", 10)
    deep: Any = "int"
    for _ in range(20):
        deep = array(deep)
    reader = writer = parse(deep)
    assert "too large" in str(unreadable(reader, writer))


def test_a_default_that_contains_itself_is_no_default() -> None:
    endless = record(field("a", "int"), field("b", record(field("n", "N", default={}), name="N"), default={}))
    assert unreadable(parse(endless), parse(record(field("a", "int")))) is not None


# --- data that can be read ---------------------------------------------------------------------------------------------


PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
DEFAULTS: dict[str, Any] = {
    "null": None,
    "boolean": True,
    "int": 1,
    "long": 2,
    "float": 1.5,
    "double": 2.5,
    "bytes": "b",
    "string": "s",
}


def _unique(types: list[Any]) -> list[Any]:
    """Keep one branch of each kind."""
    return list(
        {
            json.dumps(type_) if isinstance(type_, str) else type_["type"] + type_.get("name", ""): type_ for type_ in types
        }.values()
    )


def _named(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> Any:
    kind = draw(st.sampled_from(["record", "enum", "fixed"]))
    number = draw(st.integers(0, 1))
    if kind == "enum":
        return enum(*draw(st.lists(st.sampled_from("ABC"), min_size=1, unique=True)), name=f"E{number}")
    if kind == "fixed":
        return fixed(draw(st.integers(1, 2)), name=f"F{number}")
    fields = []
    for name in draw(st.lists(st.sampled_from("abc"), unique=True)):
        type_ = draw(inner)
        extra = {"default": DEFAULTS[type_]} if isinstance(type_, str) and draw(st.booleans()) else {}
        fields.append(field(name, type_, **extra))
    return record(*fields, name=f"N{number}")


@st.composite
def named_types(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> Any:
    return _named(draw, inner)


TYPES = st.recursive(
    st.sampled_from(PRIMITIVES),
    lambda inner: st.one_of(
        inner.map(array),
        inner.map(mapping),
        st.lists(inner.filter(lambda type_: not isinstance(type_, list)), min_size=1, max_size=3).map(_unique),
        named_types(inner),
    ),
    max_leaves=6,
)


@st.composite
def data_of(draw: st.DrawFn, type_: Any) -> Any:
    if isinstance(type_, list):
        return draw(data_of(draw(st.sampled_from(type_))))
    kind = type_ if isinstance(type_, str) else type_["type"]
    simple: dict[str, st.SearchStrategy[Any]] = {
        "null": st.none(),
        "boolean": st.booleans(),
        "int": st.integers(-(2**31), 2**31 - 1),
        "long": st.integers(-(2**63), 2**63 - 1),
        "float": st.floats(width=32, allow_nan=False),
        "double": st.floats(allow_nan=False),
        "bytes": st.sampled_from([b"", b"a", b"bc"]),  # fastavro decodes bytes that are read as text
        "string": st.text("abc é", max_size=3),
    }
    if kind in simple:
        return draw(simple[kind])
    if kind == "array":
        return draw(st.lists(data_of(type_["items"]), max_size=2))
    if kind == "map":
        return draw(st.dictionaries(st.sampled_from("xy"), data_of(type_["values"]), max_size=2))
    if kind == "enum":
        return draw(st.sampled_from(type_["symbols"]))
    if kind == "fixed":
        return draw(st.binary(min_size=type_["size"], max_size=type_["size"]))
    return {each["name"]: draw(data_of(each["type"])) for each in type_["fields"]}


def _changed(draw: st.DrawFn, type_: Any) -> Any:
    """Change a type a little, as people do; it may become unreadable."""
    if isinstance(type_, list):
        changed = _unique([_changed(draw, branch) for branch in type_])
        return changed if draw(st.booleans()) else changed[::-1]
    if isinstance(type_, str):
        return draw(st.sampled_from([type_, type_, type_, *PRIMITIVES]))
    if type_["type"] == "array":
        return array(_changed(draw, type_["items"]))
    if type_["type"] == "map":
        return mapping(_changed(draw, type_["values"]))
    if type_["type"] != "record":
        return type_
    fields = [
        field(each["name"], _changed(draw, each["type"]))
        for each in type_["fields"]
        if draw(st.integers(0, 3)) or not isinstance(each["type"], str)
    ]
    if draw(st.booleans()):
        fields.append(field("new", "int", default=7))
    return {**type_, "fields": fields}


@st.composite
def changed(draw: st.DrawFn, type_: Any) -> Any:
    return _changed(draw, type_)


@given(st.data())
def test_data_of_a_readable_schema_can_be_read(data: st.DataObject) -> None:
    """Except for symbols that the reader's enum lacks, which a broker does not look at."""
    fastavro = pytest.importorskip("fastavro")
    old = record(field("v", data.draw(TYPES)), name="Root")
    new = data.draw(changed(old))
    try:
        old_type, new_type = parse(old), parse(new)
    except InvalidAvro:  # a name twice
        assume(False)
    value = data.draw(data_of(old))
    if unreadable(new_type, old_type) is not None:
        return
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(old), value)
    stream.seek(0)
    fastavro.schemaless_reader(stream, fastavro.parse_schema(old), fastavro.parse_schema(new))
    assert stream.read() == b""
