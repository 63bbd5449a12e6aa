"""The compiled module `mqbridge_native`, where it is installed: decoders and encoders of native batches.

The plain code of the mapping packages gives the same and takes over where it is not. No other module imports `mqbridge_native`.
Whoever starts something for a person says `remark` once.
"""

import os
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from mqbridge import __version__

SWITCH = "MQBRIDGE_NATIVE"
"""Environment variable; with `0` the plain code runs."""
REMEDY = "in a checkout `make setup` builds it where cargo is; docs/compiled.md has other ways"


class Found(NamedTuple):
    """The module, or the reason why it is not used."""

    module: ModuleType | None
    reason: str = ""
    fault: bool = False
    """It is installed and cannot be used."""


def find() -> Found:
    """Import the module. One of another version is not used: the two are made for each other."""
    if os.environ.get(SWITCH) == "0":
        return Found(None, f"{SWITCH}=0 turns it off")
    try:
        import mqbridge_native  # noqa: PLC0415 - may be absent
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "mqbridge_native":
            return Found(None, f"it is not installed; {REMEDY}")
        return Found(None, f"it cannot be loaded ({error}); {REMEDY}", fault=True)
    version = getattr(mqbridge_native, "VERSION", None)
    if version != __version__:
        return Found(None, f"its version is {version}, and mqbridge's is {__version__}; {REMEDY}", fault=True)
    return Found(mqbridge_native)


_found = find()
compiled = _found.module
"""The module; None without it."""
fault = _found.fault
"""Whether it is installed and cannot be used, which is worth a warning."""
state, remark = "in use", ""
if compiled is None:
    state = f"not in use: {_found.reason}"
    remark = f"running without the compiled module (same results, more CPU per message): {_found.reason}"

T = TypeVar("T")


def is_native(messages: Sequence[Any]) -> bool:
    """Whether these are messages that the compiled module decoded, of which nothing is a Python object yet."""
    return compiled is not None and isinstance(messages, compiled.Messages)


def pick(messages: Sequence[T], indexes: Sequence[int]) -> Sequence[T]:
    """The messages at these indexes."""
    if is_native(messages):
        return messages.part(indexes)  # type: ignore[attr-defined, no-any-return]
    return [messages[index] for index in indexes]
