"""Text of messages on the wire: UTF-8, and bytes that are not UTF-8, which some producers write (GBK, for example).

Such a byte is one character of the text, a lone surrogate from U+DC80 to U+DCFF (Python's `surrogateescape`). So a text of any
bytes is encoded to the same bytes again. Other lone surrogates stand for no bytes, so they cannot be encoded.
"""

import re

_RAW_BYTE = re.compile("[\udc80-\udcff]")


def decode_text(data: bytes | str) -> str:
    """Return the text of these bytes; a text, which protobuf returns for UTF-8, is returned as it is."""
    return data if isinstance(data, str) else data.decode("utf-8", "surrogateescape")


def encode_text(text: str) -> bytes:
    """Return the bytes of a text. Raises UnicodeEncodeError for a lone surrogate that stands for no byte."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape")


def percent_encode_raw(text: str) -> str:
    """Return the text with each byte that is not UTF-8 as `%XX`; `unquote(…, errors="surrogateescape")` decodes them."""
    return text if text.isascii() else _RAW_BYTE.sub(lambda match: f"%{ord(match[0]) - 0xDC00:02X}", text)
