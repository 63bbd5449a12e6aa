"""Avro schemas as a broker's registry understands them: parsed, compared for equality, and checked for who can read whose data.

The rules are those that a broker 4.0 showed, which are not quite those of the Avro specification:

- names of records are not compared, except to choose a branch of a union;
- an enum that lacks symbols of the writer counts as readable: only the message with such a symbol fails;
- enums and fixed types are compared by their names without namespaces; a branch of a union is chosen by its full name, unless
  both unions have the same branches in the same order;
- a default is checked against its type only where it is used: where the writer has no such field;
- the reader's aliases rename the types and fields of the writer everywhere; they must not make two fields of one name;
- logical types count for nothing: only the type below counts.

Defaults of numbers are checked a little more strictly than by a broker: it accepts 1.5 for an int when a consumer comes, refuses
it when a producer comes, and accepts nothing any more in a topic whose first schema has such a default. JSON schemas of SDKs are
Avro schemas too, and those of the type Protobuf (not ProtobufNative) are Avro schemas made from messages.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

MAX_TYPES = 20_000
"""Maximum number of types in a schema, including those of fields."""
MAX_DEPTH = 100
"""Maximum depth of types in each other; names that refer to other types do not count."""
MAX_COMPARISONS = 200_000
"""Maximum number of pairs of types that one check compares: unions of unions would take long, and all clients would wait."""
CACHED_SCHEMAS = 256
"""Number of parsed schemas that are kept."""

_PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_RECORDS = frozenset({"record", "error"})
_NAMED = _RECORDS | {"enum", "fixed"}
_READABLE: Mapping[str, frozenset[str]] = {
    "long": frozenset({"int"}),
    "float": frozenset({"int", "long"}),
    "double": frozenset({"int", "long", "float"}),
    "string": frozenset({"bytes"}),
    "bytes": frozenset({"string"}),
}
"""Primitive types of writers that a primitive type of a reader can read, besides itself."""
_INTEGERS: Mapping[str, int] = {"int": 31, "long": 63}
"""Bits of a number without its sign."""
_DEFAULTS: Mapping[str, type | tuple[type, ...]] = {
    "null": type(None),
    "boolean": bool,
    "float": (int, float, str),
    "double": (int, float, str),
    "bytes": str,
    "string": str,
    "fixed": str,
}
"""Types of defaults in JSON. Numbers may be text, such as "NaN"."""
_TYPE_KEYS = frozenset({"type", "name", "namespace", "doc", "aliases", "fields", "items", "values", "symbols", "size"})
"""Attributes of types that are no user's properties."""
_FIELD_KEYS = frozenset({"type", "name", "doc", "aliases", "default", "order"})
_ORDERS = frozenset({"ascending", "descending", "ignore"})


NO_DEFAULT = object()
"""What stands for the default of a field that has none."""


class InvalidAvro(ValueError):
    """Not an Avro schema, or one beyond the limits; the text says why."""


@dataclass(slots=True, eq=False)
class AvroField:
    """A field of a record. `extra` is what equality compares besides the name and the type: default, order and properties."""

    name: str
    type: "AvroType"
    default: Any
    """The default as parsed JSON; NO_DEFAULT if it has none."""
    aliases: tuple[str, ...]
    extra: str


@dataclass(slots=True, eq=False)
class AvroType:
    """A type; `kind` is a primitive type, `record`, `enum`, `fixed`, `array`, `map` or `union`.

    name      full name of a named type, with its namespace
    aliases   full names that a named type had before
    inner     the items of an array, the values of a map, or the branches of a union
    fields    of a record
    size      of a fixed type
    symbols   of an enum
    extra     what equality compares besides: symbols and properties
    """

    kind: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    inner: tuple["AvroType", ...] = ()
    fields: tuple[AvroField, ...] = ()
    size: int = 0
    symbols: tuple[str, ...] = ()
    extra: str = ""
    by_name: dict[str, AvroField] = field(default_factory=dict)
    """The fields by name."""


@lru_cache(maxsize=CACHED_SCHEMAS)
def parse_avro(definition: bytes) -> AvroType:
    """Parse a schema. Raises InvalidAvro."""
    try:
        parsed = json.loads(definition)
    except (ValueError, RecursionError) as error:
        raise InvalidAvro(f"no JSON: {error}") from error
    return _Parser().parse(parsed, "", 0)


class _Parser:
    """Parses one schema, whose named types it knows by full name."""

    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}
        self._count = 0

    def parse(self, schema: Any, namespace: str, depth: int) -> AvroType:
        self._count += 1
        if self._count > MAX_TYPES or depth > MAX_DEPTH:
            raise InvalidAvro(f"more than {MAX_TYPES} types, or deeper than {MAX_DEPTH}")
        if isinstance(schema, str):
            return AvroType(schema) if schema in _PRIMITIVES else self._refer(schema, namespace)
        if isinstance(schema, list):
            return self._union([self.parse(branch, namespace, depth + 1) for branch in schema])
        if not isinstance(schema, dict) or not isinstance(kind := schema.get("type"), str):
            raise InvalidAvro(f"no type: {_short(schema)}")
        if kind in _PRIMITIVES:
            return AvroType(kind, extra=_properties(schema, _TYPE_KEYS))
        if kind in _NAMED:
            return self._define(kind, schema, namespace, depth)
        if kind in {"array", "map"}:
            key = "items" if kind == "array" else "values"
            if key not in schema:
                raise InvalidAvro(f"{kind} without {key}: {_short(schema)}")
            inner = self.parse(schema[key], namespace, depth + 1)
            return AvroType(kind, inner=(inner,), extra=_properties(schema, _TYPE_KEYS))
        return self._refer(kind, namespace)

    def _refer(self, name: str, namespace: str) -> AvroType:
        """Return the named type to which a name refers: in the namespace around it, or in none."""
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        found = self._named.get(full.removeprefix(".")) or self._named.get(name.rpartition(".")[2])
        if found is None:
            raise InvalidAvro(f"{_short(name)} is not a defined name")
        return found

    def _union(self, branches: list[AvroType]) -> AvroType:
        kinds = [branch.name if branch.kind in _NAMED else branch.kind for branch in branches]
        if "union" in kinds:
            raise InvalidAvro("a union directly in a union")
        if len(kinds) != len(set(kinds)):
            raise InvalidAvro(f"a type twice in a union: {_short(kinds)}")
        return AvroType("union", inner=tuple(branches))

    def _define(self, kind: str, schema: dict[str, Any], namespace: str, depth: int) -> AvroType:
        namespace, simple = _split_name(schema, namespace)
        if simple in _PRIMITIVES:
            raise InvalidAvro(f"a type has the name of a primitive type: {simple}")
        name = f"{namespace}.{simple}" if namespace else simple
        if name in self._named:
            raise InvalidAvro(f"{_short(name)} is defined twice")
        aliases = tuple(
            alias.removeprefix(".") if "." in alias or not namespace else f"{namespace}.{alias}" for alias in _aliases(schema)
        )
        made = AvroType("record" if kind in _RECORDS else kind, name, aliases)
        self._named[name] = made  # before its fields, which may refer to it
        ignored = _TYPE_KEYS
        if kind == "enum":
            made.symbols = _symbols(schema)
            made.extra = " ".join(made.symbols)
            ignored = ignored | {"default"}
        elif kind == "fixed":
            made.size = _size(schema)
        else:
            self._add_fields(made, schema, namespace, depth)
        made.extra += _properties(schema, ignored)
        return made

    def _add_fields(self, record: AvroType, schema: dict[str, Any], namespace: str, depth: int) -> None:
        fields = schema.get("fields")
        if not isinstance(fields, list):
            raise InvalidAvro(f"a record without fields: {_short(schema)}")
        for each in fields:
            if not isinstance(each, dict) or not isinstance(name := each.get("name"), str) or "type" not in each:
                raise InvalidAvro(f"a field without name or type: {_short(each)}")
            _check_name(name)
            if name in record.by_name:
                raise InvalidAvro(f"a field twice in record {record.name}: {_short(name)}")
            order = each.get("order", "ascending")
            if not isinstance(order, str) or order.lower() not in _ORDERS:
                raise InvalidAvro(f"an unknown order: {_short(order)}")
            default = json.dumps(each["default"], sort_keys=True) if "default" in each else ""
            record.by_name[name] = AvroField(
                name,
                self.parse(each["type"], namespace, depth + 1),
                each.get("default", NO_DEFAULT),
                tuple(_aliases(each)),
                f"{default} {order.lower()} {_properties(each, _FIELD_KEYS)}",
            )
        record.fields = tuple(record.by_name.values())


def _split_name(schema: dict[str, Any], namespace: str) -> tuple[str, str]:
    """Return the namespace and the simple name of a definition."""
    name = schema.get("name")
    if not isinstance(name, str):
        raise InvalidAvro(f"a type without a name: {_short(schema)}")
    before, dot, simple = name.rpartition(".")
    if dot:
        namespace = before
    elif isinstance(own := schema.get("namespace"), str):
        namespace = own
    _check_name(simple)
    return namespace, simple


def _check_name(name: str) -> None:
    """Names consist of letters (of any script), digits and `_`, and begin with no digit."""
    if not name or not (name[0].isalpha() or name[0] == "_") or not name.replace("_", "a").isalnum():
        raise InvalidAvro(f"not a name: {_short(name)}")


def _aliases(schema: dict[str, Any]) -> list[str]:
    aliases = schema.get("aliases", [])
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise InvalidAvro(f"aliases are no list of names: {_short(aliases)}")
    return aliases


def _symbols(schema: dict[str, Any]) -> tuple[str, ...]:
    symbols = schema.get("symbols")
    if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
        raise InvalidAvro(f"an enum without symbols: {_short(schema)}")
    for symbol in symbols:
        _check_name(symbol)
    if len(symbols) != len(set(symbols)):
        raise InvalidAvro(f"a symbol twice in an enum: {_short(symbols)}")
    default = schema.get("default")
    if default is not None and default not in symbols:
        raise InvalidAvro(f"the default is no symbol of the enum: {_short(default)}")
    return tuple(symbols)


def _size(schema: dict[str, Any]) -> int:
    size = schema.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise InvalidAvro(f"a fixed type without a size: {_short(schema)}")
    return size


def _properties(schema: dict[str, Any], ignored: frozenset[str]) -> str:
    found = {key: value for key, value in schema.items() if key not in ignored}
    return json.dumps(found, sort_keys=True) if found else ""


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 100 else text[:100] + "…"


def identity(schema: AvroType) -> str:
    """Return a text that is the same for schemas which a broker takes for equal: they differ only in docs, aliases and spaces."""
    parts: list[str] = []
    written: set[str] = set()

    def write(type_: AvroType) -> None:
        parts.append(f"{type_.kind} {json.dumps(type_.name)} {type_.size} {type_.extra}(")
        if type_.name not in written:
            if type_.name:
                written.add(type_.name)
            for each in type_.fields:
                parts.append(f"{each.name} {each.extra}:")
                write(each.type)
            for inner in type_.inner:
                write(inner)
        parts.append(")")

    write(schema)
    return "".join(parts)


def unreadable(reader: AvroType, writer: AvroType) -> str | None:
    """Return why data of the writer's schema cannot be read with the reader's; None if it can."""
    return _Check(reader).problem(reader, writer)


class _Check:
    """One check of a reader's schema against a writer's.

    Types may contain themselves: a pair of types that is being checked counts as readable, so that what decides is whether the
    rest of it is.
    """

    def __init__(self, reader: AvroType) -> None:
        self._known: dict[tuple[int, int], str | None] = {}
        self._type_names: dict[str, str] = {}
        """The reader's names of types by their aliases."""
        self._field_names: dict[str, dict[str, str]] = {}
        """The reader's names of fields by their aliases, by the name of the record."""
        for type_ in _named_types(reader):
            self._type_names.update(dict.fromkeys(type_.aliases, type_.name))
            if aliases := {alias: each.name for each in type_.fields for alias in each.aliases}:
                self._field_names[type_.name] = aliases

    def problem(self, reader: AvroType, writer: AvroType) -> str | None:
        pair = id(reader), id(writer)
        if pair in self._known:
            return self._known[pair]
        if len(self._known) >= MAX_COMPARISONS:
            return "the schemas are too large to compare"
        self._known[pair] = None
        self._known[pair] = found = self._compare(reader, writer)
        return found

    def _compare(self, reader: AvroType, writer: AvroType) -> str | None:
        if writer.kind == "union":
            is_parallel = reader.kind == "union" and self._are_parallel(reader, writer)
            readers = reader.inner if is_parallel else (reader,) * len(writer.inner)
            found = (self.problem(each, branch) for each, branch in zip(readers, writer.inner, strict=True))
            return next((problem for problem in found if problem is not None), None)
        if reader.kind == "union":
            branch = self._branch(reader, writer)
            return f"no branch of the union reads {_title(writer)}" if branch is None else self.problem(branch, writer)
        if reader.kind != writer.kind:
            return None if writer.kind in _READABLE.get(reader.kind, ()) else f"{_title(reader)} cannot read {_title(writer)}"
        if reader.kind in {"array", "map"}:
            return self.problem(reader.inner[0], writer.inner[0])
        if reader.kind == "record":
            return self._compare_fields(reader, writer)
        if not self._has_simple_name_of(reader, writer):
            return f"{_title(reader)} cannot read {_title(writer)}"
        if reader.size != writer.size:
            return f"{_title(reader)} of {reader.size} bytes cannot read {writer.size} bytes"
        return None

    def _compare_fields(self, reader: AvroType, writer: AvroType) -> str | None:
        written = self._written_fields(writer)
        if len(written) < len(writer.fields):
            return f"aliases give two fields of {_title(writer)} the same name"
        for each in reader.fields:
            if each.name in written:
                if (found := self.problem(each.type, written[each.name].type)) is not None:
                    return f"field {each.name}: {found}"
            elif each.default is NO_DEFAULT:
                return f"field {each.name} of {_title(reader)} has no default"
            elif not _is_default(each.type, each.default, 0):
                return f"field {each.name} of {_title(reader)} has a default that is no {_title(each.type)}"
        return None

    def _written_fields(self, writer: AvroType) -> Mapping[str, AvroField]:
        """Return the fields of a writer's record by the names that the reader has for them."""
        aliases = self._field_names.get(self._name(writer))
        if aliases is None:
            return writer.by_name
        return {aliases.get(each.name, each.name): each for each in writer.fields}

    def _branch(self, union: AvroType, writer: AvroType) -> AvroType | None:
        """Return the branch that reads a writer's type; the one of the same name, if there is one, whether it can or not."""
        same_kind = [branch for branch in union.inner if branch.kind == writer.kind]
        if writer.kind != "record":
            others = (branch for branch in union.inner if writer.kind in _READABLE.get(branch.kind, ()))
        else:
            others = (branch for branch in same_kind if self.problem(branch, writer) is None)
        name = self._name(writer)
        return next((branch for branch in same_kind if branch.name == name), None) or next(others, None)

    def _are_parallel(self, reader: AvroType, writer: AvroType) -> bool:
        """Return True if two unions have the same branches in the same order, apart from namespaces."""
        return len(reader.inner) == len(writer.inner) and all(
            mine.kind == theirs.kind and self._has_simple_name_of(mine, theirs)
            for mine, theirs in zip(reader.inner, writer.inner, strict=True)
        )

    def _name(self, writer: AvroType) -> str:
        """Return the reader's name for a writer's type."""
        return self._type_names.get(writer.name, writer.name)

    def _has_simple_name_of(self, reader: AvroType, writer: AvroType) -> bool:
        return reader.name.rpartition(".")[2] == self._name(writer).rpartition(".")[2]


def _named_types(schema: AvroType) -> list[AvroType]:
    found: dict[str, AvroType] = {}
    rest = [schema]
    while rest:
        type_ = rest.pop()
        if type_.name not in found:
            if type_.name:
                found[type_.name] = type_
            rest += type_.inner
            rest += [each.type for each in type_.fields]
    return list(found.values())


def _is_default(type_: AvroType, value: Any, depth: int) -> bool:
    """Return True if a value of JSON is a default of this type."""
    if depth > MAX_DEPTH:  # a record whose default is a record of itself
        return False
    kind, below = type_.kind, depth + 1
    if kind == "union":
        return bool(type_.inner) and _is_default(type_.inner[0], value, below)
    if kind == "array":
        return isinstance(value, list) and all(_is_default(type_.inner[0], each, below) for each in value)
    if kind == "map":
        return isinstance(value, dict) and all(_is_default(type_.inner[0], each, below) for each in value.values())
    if kind == "record":
        return isinstance(value, dict) and all(
            _is_default(each.type, value.get(each.name, each.default), below) for each in type_.fields
        )
    if kind == "enum":
        return value in type_.symbols
    if kind in _INTEGERS:
        bound = 1 << _INTEGERS[kind]
        return isinstance(value, int) and not isinstance(value, bool) and -bound <= value < bound
    return isinstance(value, _DEFAULTS[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _title(type_: AvroType) -> str:
    return f"{type_.kind} {type_.name}" if type_.name else type_.kind
