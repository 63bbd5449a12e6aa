"""The compiled module `mqbridge_native`, where it is installed: decoders and encoders of native batches.

The plain code of the mapping packages gives the same and takes over where it is not. No other module imports `mqbridge_native`.
"""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from types import ModuleType

OFF = os.environ.get("MQBRIDGE_NATIVE") == "0"
"""The plain code was asked for."""


def _load() -> "ModuleType | None":
    if OFF:
        return None
    try:
        import mqbridge_native  # noqa: PLC0415 - may be absent
    except ImportError:
        return None
    module: ModuleType = mqbridge_native
    return module


compiled = _load()
"""The module; None without it."""

T = TypeVar("T")


def is_native(messages: Sequence[Any]) -> bool:
    """Whether these are messages that the compiled module decoded, of which nothing is a Python object yet."""
    return compiled is not None and isinstance(messages, compiled.Messages)


def pick(messages: Sequence[T], indexes: Sequence[int]) -> Sequence[T]:
    """The messages at these indexes."""
    if is_native(messages):
        return messages.part(indexes)  # type: ignore[attr-defined, no-any-return]
    return [messages[index] for index in indexes]
