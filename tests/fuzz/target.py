"""A fuzz target: a function of bytes, and inputs to start with."""

import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message as Protobuf

from mqbridge.errors import ProtocolError
from mqbridge.message import Message

MAX_INPUT_BYTES = 64 << 10
"""Small inputs find the same faults as large ones, thousands of times faster; limits of large inputs have their own tests."""


class Target(NamedTuple):
    """`read` may only raise `allowed`; it decodes each of `seeds` without an error."""

    read: Callable[[bytes], object]
    seeds: Sequence[bytes]
    allowed: tuple[type[Exception], ...] = (ProtocolError,)

    def __call__(self, data: bytes) -> None:
        """Decode the input; raise every exception that a decoder must not raise."""
        with contextlib.suppress(*self.allowed):
            self.read(data)


class Choice(NamedTuple):
    """Many small readers behind one target: the first byte of an input chooses."""

    readers: Sequence[Callable[[bytes], object]]

    def __call__(self, data: bytes) -> object:
        """Pass the rest of the input to the chosen reader."""
        return self.readers[data[0] % len(self.readers)](data[1:]) if data else None

    def each(self, change: Callable[[Callable[[bytes], object]], Callable[[bytes], object]]) -> "Choice":
        """Return a choice with a separate function for each reader, changed so that the fuzzer distinguishes them.

        Coverage does not include C libraries, so without this the fuzzer could not distinguish seeds of different readers.
        """
        return Choice([change(lambda data, reader=reader: reader(data)) for reader in self.readers])  # type: ignore[misc]

    def seed(self, reader: Callable[[bytes], object], data: bytes) -> bytes:
        """Return an input for this reader."""
        return bytes([self.readers.index(reader)]) + data


def text_reader(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    """Adapt a reader of text to bytes; invalid UTF-8 is replaced, because callers of such readers decode first."""
    return lambda data: parse(data.decode(errors="replace"))


def halves(data: bytes) -> list[bytes]:
    """Split the bytes into up to three pieces, as a connection may deliver them; the bytes determine where."""
    first = data[0] * len(data) >> 8 if data else 0
    second = first + (data[-1] * (len(data) - first) >> 8) if data else 0
    return [data[:first], data[first:second], data[second:]]


def must_equal(found: object, expected: object) -> None:
    """Raise AssertionError if two results of decoding the same bytes differ."""
    if found != expected:
        raise AssertionError(f"{found!r:.500} is not {expected!r:.500}")


def check_message(message: Message) -> None:
    """Check that every field can be read, and has the type that the model declares."""
    fields = message.as_dict()
    texts = [
        fields["msg_type"],
        fields["origin"],
        fields["defect"],
        *fields["keys"],
        *(part for pair in fields["properties"] for part in pair),
    ]
    assert all(text is None or type(text) is str for text in texts), fields
    assert all(type(fields[name]) in {bytes, type(None)} for name in ("payload", "attributes", "ordering_key")), fields
    assert type(fields["key"]) in {str, bytes, type(None)}, fields
    numbers = [fields[name] for name in ("event_time", "publish_time", "deliver_at", "delivery_count", "hops")]
    assert all(number is None or type(number) is int for number in numbers), fields


def check_texts(message: Protobuf) -> None:
    """Check that texts are `str`: the protobuf library returns text that is not UTF-8 as bytes."""
    for field, value in message.ListFields():
        each = list(value) if field.is_repeated else [value]
        if field.type == field.TYPE_STRING:
            assert all(type(text) is str for text in each), f"{field.full_name} is {value!r:.200}"
        elif field.type == field.TYPE_MESSAGE:
            for part in each:
                check_texts(part)


_SAMPLES = {
    FieldDescriptor.CPPTYPE_STRING: "x", FieldDescriptor.CPPTYPE_BOOL: True, FieldDescriptor.CPPTYPE_DOUBLE: 0.5,
    **dict.fromkeys((FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64), 7),
    **dict.fromkeys((FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64), 7),
}  # fmt: skip


def filled(kind: type[Protobuf], depth: int = 2) -> Protobuf:
    """Return a message of this kind with a value in every field, nested messages included."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        if field.type == field.TYPE_MESSAGE:
            if depth:
                part = getattr(message, field.name)
                (part.add() if field.is_repeated else part).MergeFrom(filled(field.message_type._concrete_class, depth - 1))
            continue
        value = field.enum_type.values[0].number if field.type == field.TYPE_ENUM else _SAMPLES[field.cpp_type]
        value = b"x" if field.type == field.TYPE_BYTES else value
        if field.is_repeated:
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)
    return message
