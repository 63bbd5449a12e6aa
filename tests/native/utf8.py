"""Texts of messages that are not UTF-8: only the plain code reads them."""

from collections.abc import Mapping
from itertools import chain
from typing import Any


def is_utf8(message: Mapping[str, Any]) -> bool:
    """Return False if a text among the fields of a message has bytes that are not UTF-8: lone surrogates stand for them."""
    texts = [message.get("key"), message.get("msg_type"), *message.get("keys", ()), *chain(*message.get("properties", ()))]
    texts += [message.get("attributes"), message.get("origin")]
    try:
        "".join(text for text in texts if isinstance(text, str)).encode()
    except UnicodeEncodeError:
        return False
    return True
