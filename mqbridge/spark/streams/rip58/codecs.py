"""Codecs for the values and keys that move between tasks or are stored as state."""

import json
import pickle
from typing import Any, Protocol

import orjson


class Codec(Protocol):
    """Encodes values that move between tasks or are stored as state. The codec itself must be picklable."""

    def dumps(self, value: Any) -> bytes:
        """Return a value as bytes."""

    def loads(self, data: bytes) -> Any:
        """Return the value that these bytes encode."""


class JsonCodec:
    """Encodes JSON values: dicts, lists, strings, numbers, booleans and None. A dataclass is decoded as a dict."""

    def dumps(self, value: Any) -> bytes:
        """Return a value as JSON. Raises TypeError for a value that JSON cannot represent."""
        return orjson.dumps(value)

    def loads(self, data: bytes) -> Any:
        """Return the value of JSON text. It may contain numbers as Spark writes them, such as NaN."""
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError:
            return json.loads(data)


class PickleCodec:
    """Encodes any picklable object. The object's class must stay importable as long as the checkpoint is used."""

    def dumps(self, value: Any) -> bytes:
        """Return the pickled object."""
        return pickle.dumps(value)

    def loads(self, data: bytes) -> Any:
        """Return the unpickled object."""
        return pickle.loads(data)  # noqa: S301 - our own checkpoint and shuffle


JSON = JsonCodec()
"""The default codec of StreamBuilder."""


def key_text(key: Any) -> str:
    """Return a key as JSON text, by which Spark groups rows. The order of the names in a dict does not change the text."""
    return orjson.dumps(key, option=orjson.OPT_SORT_KEYS).decode()
