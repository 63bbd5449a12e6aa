"""What a target is: a function of bytes, and inputs to begin with."""

import contextlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message as Protobuf

from mqbridge.errors import ProtocolError
from mqbridge.message import Message

MAX_INPUT_BYTES = 64 << 10
"""Small inputs find what large ones do, and thousands of times faster; limits on large ones have tests of their own."""


class Target(NamedTuple):
    """`read` raises nothing but `allowed`. Each of `seeds` is read without even that."""

    read: Callable[[bytes], object]
    seeds: Sequence[bytes]
    allowed: tuple[type[Exception], ...] = (ProtocolError,)

    def __call__(self, data: bytes) -> None:
        """Read, and let out what must not come out."""
        with contextlib.suppress(*self.allowed):
            self.read(data)


class Choice(NamedTuple):
    """Many small readers behind one target: the first byte of an input chooses."""

    readers: Sequence[Callable[[bytes], object]]

    def __call__(self, data: bytes) -> object:
        """Let the chosen reader read the rest."""
        return self.readers[data[0] % len(self.readers)](data[1:]) if data else None

    def each(self, change: Callable[[Callable[[bytes], object]], Callable[[bytes], object]]) -> "Choice":
        """With a function of its own for each reader, changed so that the fuzzer can tell one from the other.

        What a library in C does shows in no coverage: to the fuzzer seeds for different readers would all be the same.
        """
        return Choice([change(lambda data, reader=reader: reader(data)) for reader in self.readers])  # type: ignore[misc]

    def seed(self, reader: Callable[[bytes], object], data: bytes) -> bytes:
        """An input for this reader."""
        return bytes([self.readers.index(reader)]) + data


def text_reader(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    """A reader of text for bytes; what is no UTF-8 would not have got this far."""
    return lambda data: parse(data.decode(errors="replace"))


def halves(data: bytes) -> list[bytes]:
    """The same bytes in up to three pieces, as a connection may bring them; where they are cut depends on them."""
    first = data[0] * len(data) >> 8 if data else 0
    second = first + (data[-1] * (len(data) - first) >> 8) if data else 0
    return [data[:first], data[first:second], data[second:]]


def must_equal(found: object, expected: object) -> None:
    """What was read twice, or in two ways, is the same."""
    if found != expected:
        raise AssertionError(f"{found!r:.500} is not {expected!r:.500}")


def check_message(message: Message) -> None:
    """Every field can be read, and is what the model says that it is."""
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
    """Text is text: the protobuf library gives what is no UTF-8 as bytes."""
    for field, value in message.ListFields():
        each = list(value) if field.is_repeated else [value]
        if field.type == field.TYPE_STRING:
            assert all(type(one) is str for one in each), f"{field.full_name} is {value!r:.200}"
        elif field.type == field.TYPE_MESSAGE:
            for one in each:
                check_texts(one)


_SAMPLES = {
    FieldDescriptor.CPPTYPE_STRING: "x", FieldDescriptor.CPPTYPE_BOOL: True, FieldDescriptor.CPPTYPE_DOUBLE: 0.5,
    **dict.fromkeys((FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64), 7),
    **dict.fromkeys((FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64), 7),
}  # fmt: skip


def filled(kind: type[Protobuf], depth: int = 2) -> Protobuf:
    """A message of this kind with something in every field, and in those of its parts."""
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
