r"""A message as text: kcat's format strings, and one JSON object per message.

%t topic      %p partition   %o position   %k key        %s payload      %S payload length, -1 for a tombstone
%K key length, -1 without a key        %T event time, or else publish time, ms    %h properties k=v,...
%g msg_type   %a attributes  %y ordering key  %i index keys a,b  %D deliver at, ms
%n delivery count            %%            and \n \r \t \0 \\ \xHH
"""

import base64
import re
from collections.abc import Callable
from typing import Any

from mqbridge.cli.output.escape import escape_raw, text_bytes
from mqbridge.errors import ConfigError
from mqbridge.message import Message, Partition, format_position

DEFAULT_FORMAT = r"%s\n"
HELP = (
    "%t topic %p partition %o position %k key %K its length %s payload %S its length %T time (ms) %h properties %g type "
    "%a attributes %y ordering key %i index keys %D delivery time (ms) %n deliveries."
)

# `lone` is a percent sign or a backslash at the end of the format: it stands for itself.
_TOKEN = re.compile(r"%(?P<field>.)|\\x(?P<hex>[0-9A-Fa-f]{2})|\\(?P<escape>.)|(?P<text>[^%\\]+)|(?P<lone>.)", re.DOTALL)
_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}

MessageWriter = Callable[[Partition, Message], bytes]
"""Formats a message of a partition, or one part of it."""


def _bytes(value: str | bytes | None) -> bytes:
    """Return the value as bytes; empty for None."""
    return text_bytes(value) if isinstance(value, str) else value or b""


def _number(value: int | None) -> bytes:
    """Return the decimal digits; empty for None."""
    return b"" if value is None else b"%d" % value


_FIELD_WRITERS: dict[str, MessageWriter] = {
    "t": lambda partition, _: partition.topic.encode(),
    "p": lambda partition, _: partition.name.encode(),
    "o": lambda _, message: format_position(message.position).encode(),
    "k": lambda _, message: _bytes(message.key),
    "s": lambda _, message: message.payload or b"",
    "S": lambda _, message: _number(-1 if message.payload is None else len(message.payload)),
    "K": lambda _, message: _number(-1 if message.key is None else len(_bytes(message.key))),
    "T": lambda _, message: _number(message.publish_time if message.event_time is None else message.event_time),
    "h": lambda _, message: text_bytes(",".join(f"{key}={value}" for key, value in message.properties)),
    "g": lambda _, message: _bytes(message.msg_type),
    "a": lambda _, message: _bytes(message.attributes),
    "y": lambda _, message: _bytes(message.ordering_key),
    "i": lambda _, message: text_bytes(",".join(message.keys)),
    "D": lambda _, message: _number(message.deliver_at),
    "n": lambda _, message: _number(message.delivery_count),
}


def compile_format(text: str) -> MessageWriter:
    """Compile the format into a function that formats a message. Raises ConfigError for an unknown token."""
    writers: list[MessageWriter] = [_writer(token, text) for token in _TOKEN.finditer(text)]
    return lambda partition, message: b"".join([write(partition, message) for write in writers])


def _writer(token: re.Match[str], text: str) -> MessageWriter:
    """Return the function that formats one token of the format `text`."""
    field, escape = token["field"], token["escape"]
    if field is not None and field != "%":
        if field not in _FIELD_WRITERS:
            raise ConfigError(
                f"the format {text!r} uses %{field}, which is unknown",
                hint=f"Known: {' '.join('%' + name for name in _FIELD_WRITERS)} %%",
            )
        return _FIELD_WRITERS[field]
    if escape is not None and escape not in _ESCAPES:
        raise ConfigError(f"the format {text!r} uses \\{escape}, which is unknown", hint=r"Known: \n \r \t \0 \\ \xHH")
    if token["hex"]:
        literal = bytes.fromhex(token["hex"])
    else:
        literal = _ESCAPES[escape] if escape is not None else text_bytes(field or token["text"] or token["lone"])
    return lambda _, __: literal


def as_json(partition: Partition, message: Message) -> dict[str, Any]:
    r"""Return a message for JSON. Fields that are None, an empty tuple or 0 are left out, but not a payload of None.

    Bytes that are not UTF-8 are in `<name>_base64`; inside a text they are escaped, as \xb4.
    """
    fields: dict[str, Any] = {
        "topic": partition.topic,
        "partition": partition.name,
        "position": format_position(message.position),
    }
    for name, value in message.as_dict().items():
        if name == "position" or (name != "payload" and value in (None, (), 0)):
            continue
        if isinstance(value, bytes):
            fields.update(_text_or_base64(name, value))
        elif name == "properties":
            fields[name] = [list(map(escape_raw, pair)) for pair in value]
        elif name == "keys":
            fields[name] = list(map(escape_raw, value))
        else:
            fields[name] = escape_raw(value) if isinstance(value, str) else value
    return fields


def _text_or_base64(name: str, value: bytes) -> dict[str, str]:
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}
