"""Raw messages: messages that cannot be read (with a `defect`), whose payload is what the source stores of them.

The property `mqbridge.raw` names the form of the payload, such as `pulsar.entry.v1`. The forms are part of the published mapping
(`docs/reference/mapping.md`); a new version of a form has a new name. The property stays a property when a dead letter is read.

A raw message also has copies of the key and the properties that can be read beside the unreadable part, to search by. Copies are
limited, because a dead-letter topic in another system may not store as many properties, and the payload has them all.
"""

from collections.abc import Iterable

from mqbridge.message import Pair

RAW_FORM = "mqbridge.raw"
"""The property that names the form."""
MAX_COPIED_BYTES = 8 << 10
"""Maximum size of the copied properties, and of the copied keys, in characters or bytes. RocketMQ stores 31 KiB of properties, in
which each character may take three bytes."""


def raw_properties(pairs: Iterable[Pair], form: str) -> tuple[Pair, ...]:
    """Return the properties of a raw message of this form: the first ones of `pairs`, up to MAX_COPIED_BYTES, and the form."""
    copied: list[Pair] = []
    size = 0
    for name, value in pairs:
        size += len(name) + len(value)
        if size > MAX_COPIED_BYTES:
            break
        if name != RAW_FORM:
            copied.append((name, value))
    return (*copied, (RAW_FORM, form))


def may_be_copied(*keys: str | bytes | None) -> bool:
    """Return True if a raw message may have these keys, None for a missing one."""
    return sum([len(key) for key in keys if key is not None]) <= MAX_COPIED_BYTES
