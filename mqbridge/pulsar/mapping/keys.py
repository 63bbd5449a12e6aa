"""Text of a routing key in Pulsar's metadata: a binary key is base64, and a flag of the metadata says so."""

import base64


def encode_key(key: str | bytes | None) -> tuple[str | None, bool]:
    """Return the key as text, and True if the text is base64."""
    return (base64.b64encode(key).decode(), True) if isinstance(key, bytes) else (key, False)


def decode_key(key: str, is_base64: bool) -> str | bytes:
    """Return the key of a message from its text; bytes if the text is base64."""
    if not is_base64:
        return key
    try:
        return base64.b64decode(key, validate=True)
    except ValueError:  # invalid base64 despite the flag: kept as text
        return key
