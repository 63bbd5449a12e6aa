"""The optional compiled module `mqbridge_native`: decoders and encoders of messages in the formats of the systems.

Without it, the Python code of the mapping packages does the same work. No other module imports `mqbridge_native`. Commands show
`notice` once, at their start.
"""

import os
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from mqbridge import __version__

SWITCH = "MQBRIDGE_NATIVE"
"""The environment variable that disables the compiled module if its value is `0`."""
REMEDY = "in a checkout `make setup` builds it if cargo is installed; docs/how-to/compiled.md has other ways"
"""How to install the module; a part of `notice`."""


class ImportResult(NamedTuple):
    """The compiled module, or None and the reason why it is not used."""

    module: ModuleType | None
    reason: str = ""
    is_broken: bool = False
    """True if the module is installed but unusable."""


def import_compiled() -> ImportResult:
    """Import the compiled module. A module whose version differs from mqbridge's is not used."""
    if os.environ.get(SWITCH) == "0":
        return ImportResult(None, f"{SWITCH}=0 disables it")
    try:
        import mqbridge_native  # noqa: PLC0415 - may be absent
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "mqbridge_native":
            return ImportResult(None, f"it is not installed; {REMEDY}")
        return ImportResult(None, f"it cannot be loaded ({error}); {REMEDY}", is_broken=True)
    version = getattr(mqbridge_native, "VERSION", None)
    if version != __version__:
        return ImportResult(None, f"its version is {version}, and mqbridge's is {__version__}; {REMEDY}", is_broken=True)
    return ImportResult(mqbridge_native)


_import_result = import_compiled()
compiled = _import_result.module
"""The compiled module; None if it is not used."""
is_broken = _import_result.is_broken
"""True if the compiled module is installed but unusable; `notice` is then logged as a warning, otherwise as information."""
state, notice = "in use", ""
"""`state` is shown by `mqbridge --version`; `notice` is shown at the start of commands, and empty if the module is used."""
if compiled is None:
    state = f"not in use: {_import_result.reason}"
    notice = f"running without the compiled module (same results, more CPU per message): {_import_result.reason}"

T = TypeVar("T")


def is_native(messages: Sequence[Any]) -> bool:
    """Return True if the compiled module decoded these messages, and no Python objects were made from them yet."""
    return compiled is not None and isinstance(messages, compiled.Messages)


def pick(messages: Sequence[T], indexes: Sequence[int]) -> Sequence[T]:
    """Return the messages at these indexes, without making Python objects if the compiled module decoded them."""
    if is_native(messages):
        return messages.part(indexes)  # type: ignore[attr-defined, no-any-return]
    return [messages[index] for index in indexes]
