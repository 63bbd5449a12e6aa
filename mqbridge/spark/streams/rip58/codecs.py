"""How values and keys travel between tasks, and lie in state."""

import json
import pickle
from typing import Any, Protocol

import orjson


class Codec(Protocol):
    """How values travel between tasks and lie in state. It is pickled."""

    def dumps(self, value: Any) -> bytes:
        """The bytes of a value."""

    def loads(self, data: bytes) -> Any:
        """The value of these bytes."""


class JsonCodec:
    """Values as JSON has them: dicts, lists, texts, numbers, booleans and None. A dataclass comes back as a dict."""

    def dumps(self, value: Any) -> bytes:
        """Raises TypeError for what JSON has not."""
        return orjson.dumps(value)

    def loads(self, data: bytes) -> Any:
        """Numbers as Spark writes them too, NaN included."""
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            return json.loads(data)


class PickleCodec:
    """Any object that can be pickled: its class has to be importable for as long as the checkpoint lives."""

    def dumps(self, value: Any) -> bytes:
        """A pickle."""
        return pickle.dumps(value)

    def loads(self, data: bytes) -> Any:
        """The object."""
        return pickle.loads(data)  # noqa: S301 - our own checkpoint and shuffle


JSON = JsonCodec()


def key_text(key: Any) -> str:
    """A key as JSON, the same text for equal keys."""
    return orjson.dumps(key, option=orjson.OPT_SORT_KEYS).decode()
