"""The compiled module `mqbridge_native`, where it is installed: decoders and encoders of native batches.

The plain code of the mapping packages gives the same and takes over where the module is not installed. No other module imports it.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from types import ModuleType

    from mqbridge.message import Message

OFF = os.environ.get("MQBRIDGE_NATIVE") == "0"
"""The plain code was asked for."""

compiled: "ModuleType | None"
try:
    import mqbridge_native as compiled
except ImportError:
    compiled = None
if OFF:
    compiled = None

T = TypeVar("T", bound="Message")


def is_native(messages: "Sequence[Message]") -> bool:
    """Whether these are messages that the compiled module decoded, of which nothing is a Python object yet."""
    return compiled is not None and isinstance(messages, compiled.Messages)


def pick(messages: "Sequence[Message]", indexes: Sequence[int]) -> "Sequence[Message]":
    """The messages at these indexes."""
    if is_native(messages):
        return messages.part(indexes)  # type: ignore[attr-defined, no-any-return]
    return [messages[index] for index in indexes]
