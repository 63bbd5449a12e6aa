"""A secret and its source: a text in the configuration, an environment variable, a file, or a command.

The source is read again each time the secret is needed (the output of a command is reused for COMMAND_CACHE_S). So a changed
secret is used without a restart. If the source cannot be read, the last value stays in use: a file that is being replaced is
missing for a moment. The value of a secret never appears in a representation, an error, or the dump of a model.
"""

import asyncio
import logging
import math
import shlex
import time
from pathlib import Path
from typing import Any, Self

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from mqbridge.errors import ClusterError, Failure
from mqbridge.net.secret_sources import Unreadable, read_file, read_variable, run_command

log = logging.getLogger(__name__)

COMMAND_CACHE_S = 30.0
"""Time for which the output of a command is reused, unless the caller of `read` passes `fresh=True`."""
MIN_COMMAND_PAUSE_S = 1.0
"""Minimum pause between two runs of a command, also after a failure; hundreds of partitions may need the secret at once."""
HIDDEN = "**********"
"""Text shown instead of a secret."""
SOURCES = ("file", "env", "command")
"""Keys of the configuration for a secret that is not given as its text."""
SECRET_FORMAT = "secret"  # noqa: S105 - a word of the schema
"""Value of `format` that marks a secret in the JSON Schema."""
IS_SHOWN = "isShown"
"""Key in the JSON Schema that marks a value which has the sources of a secret, but is not secret, such as a user name."""


class Secret:
    """One secret, read from its source. Two secrets are equal if their sources are the same."""

    def __init__(
        self,
        text: str | None = None,
        *,
        file: str | Path | None = None,
        env: str | None = None,
        command: str | list[str] | tuple[str, ...] | None = None,
    ) -> None:
        """Make a secret from exactly one source. A `command` is a program with arguments, as a list or as one shell-like text.

        Raises ValueError unless exactly one source is given, and for a command that cannot be split.
        """
        arguments = {"text": text, "file": file and str(file), "env": env, "command": command}
        sources = [(kind, source) for kind, source in arguments.items() if source]
        if len(sources) != 1:
            given = ", ".join(kind for kind, _ in sources) or "none"
            raise ValueError(f"a secret needs exactly one non-empty source of text, {', '.join(SOURCES)}; given: {given}")
        self._kind, source = sources[0]
        if self._kind == "command" and isinstance(source, str):
            source = shlex.split(source)
        self._source: tuple[str, ...]
        """The program and its arguments for a command; else the text, path or variable name alone."""
        self._source = (source,) if isinstance(source, str) else tuple(source or ())
        if not self._source:
            raise ValueError("the command of a secret names no program")
        self._last: str | None = text
        """The last value that was read; None before the first read. A text in the configuration needs no reading."""
        self._read_at = -math.inf
        """Time of a command's last successful run (`time.monotonic`)."""
        self._failed_at, self._failure = -math.inf, ""
        """Time and reason of a command's last failure."""
        self._logged_failure = ""
        """The last logged failure; "" after a successful read, so that the next failure is logged again."""
        self._lock: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
        """The event loop of the last read, and the lock that lets one caller at a time read the source; None before."""

    # --- reading ----------------------------------------------------------------------------------------------------

    async def read(self, *, fresh: bool = False) -> str:
        """Return the current value; if the source cannot be read, the last value that was read.

        With `fresh`, a command runs again unless it ran in the last MIN_COMMAND_PAUSE_S; otherwise its output is reused for
        COMMAND_CACHE_S.

        Raises ClusterError (FATAL) if the source cannot be read and there is no earlier value.
        """
        if self._kind == "text":
            return self.last
        loop = asyncio.get_running_loop()
        if self._lock is None or self._lock[0] is not loop:  # a program may run several event loops in sequence
            self._lock = loop, asyncio.Lock()
        requested_at = time.monotonic()
        async with self._lock[1]:  # callers that arrive while a command runs use its output
            try:
                self._last = await self._read_source(requested_at, fresh=fresh)
            except Unreadable as error:
                if self._last is None:
                    raise ClusterError(f"the secret from {self.source} cannot be read: {error}", Failure.FATAL) from None
                if str(error) != self._logged_failure:
                    log.warning("the secret from %s cannot be read, using the last value that was read: %s", self.source, error)
                self._logged_failure = str(error)
            else:
                self._logged_failure = ""
        return self.last

    async def _read_source(self, requested_at: float, *, fresh: bool) -> str:
        """Read the source, or return a command's recent output; `requested_at` is the time of the call. Raises Unreadable."""
        if self._kind == "env":
            return read_variable(self._source[0])
        if self._kind == "file":
            return await asyncio.to_thread(read_file, self._source[0])
        if self._failed_at > requested_at - MIN_COMMAND_PAUSE_S:
            raise Unreadable(self._failure)
        if self._last is not None and self._read_at > requested_at - (MIN_COMMAND_PAUSE_S if fresh else COMMAND_CACHE_S):
            return self._last
        try:
            text = await run_command(self._source)
        except Unreadable as error:
            self._failed_at, self._failure = time.monotonic(), str(error)
            raise
        self._read_at = time.monotonic()
        return text

    @property
    def last(self) -> str:
        """The last value that was read. Raises LookupError before the first read."""
        if self._last is None:
            raise LookupError(f"the secret from {self.source} has not been read yet")
        return self._last

    @property
    def source(self) -> str:
        """Name of the source in logs and errors: `the configuration`, `file PATH`, `env NAME` or `command PROGRAM`."""
        return "the configuration" if self._kind == "text" else f"{self._kind} {self._source[0]}"

    @property
    def shown(self) -> str | dict[str, str | list[str]]:
        """The secret as in the configuration, without its text, and without a command's arguments, which may be secret."""
        if self.is_text:
            return HIDDEN
        return {
            self._kind: [self._source[0], *([HIDDEN] * (len(self._source) - 1))] if self._kind == "command" else self._source[0]
        }

    @property
    def is_text(self) -> bool:
        """True if the configuration itself contains the secret's text."""
        return self._kind == "text"

    # --- comparing, pickling, validating ----------------------------------------------------------------------------

    def __repr__(self) -> str:
        return f"Secret({HIDDEN if self.is_text else self.source})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and (self._kind, self._source) == (other._kind, other._source)

    def __hash__(self) -> int:
        return hash((self._kind, self._source))

    def __reduce__(self) -> tuple[Any, ...]:
        value: Any = list(self._source) if self._kind == "command" else self._source[0]
        return _unpickle, (self._kind, value)

    @classmethod
    def parse(cls, value: Any) -> Self:
        """Make a secret from a text, or a mapping with one of `file`, `env`, `command`; a Secret is returned as it is.

        Raises ValueError for any other value.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str) and value:
            return cls(value)
        if not isinstance(value, dict) or len(value) != 1 or not value.keys() <= set(SOURCES):
            raise ValueError("must be a text, or one of {file: PATH}, {env: NAME}, {command: PROGRAM}")
        ((kind, source),) = value.items()
        parts = source if kind == "command" and isinstance(source, (list, tuple)) else [source]
        if not source or not parts or not all(isinstance(part, str) for part in parts):
            raise ValueError(f"{kind} must be a text" + (", or a list of texts" if kind == "command" else ""))
        return cls(**{kind: source})

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            _validate, serialization=core_schema.plain_serializer_function_ser_schema(_serialize)
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        text = {"type": "string", "minLength": 1}
        options = {
            "file": text | {"description": "A file with the secret; it is read again when the secret is needed."},
            "env": text | {"description": "An environment variable with the secret."},
            "command": {
                "description": "A program that prints the secret; it is run again when the secret is needed.",
                "anyOf": [text, {"type": "array", "items": text, "minItems": 1}],
            },
        }
        sources = {"type": "object", "properties": options, "additionalProperties": False, "minProperties": 1, "maxProperties": 1}
        return {"anyOf": [text, sources], "format": SECRET_FORMAT}


def _unpickle(kind: str, value: Any) -> Secret:
    return Secret(value) if kind == "text" else Secret(**{kind: value})


def _validate(value: Any) -> Secret:
    try:
        return Secret.parse(value)
    except ValueError as error:  # pydantic would show the value with a ValueError, but not with this error
        raise PydanticCustomError("secret", "{problem}", {"problem": str(error)}) from None


def _serialize(secret: Secret) -> Any:
    return secret.shown
