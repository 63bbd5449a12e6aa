"""A broker's settings: a line for each, NAME=VALUE, with comments between them. GET_BROKER_CONFIG and UPDATE_BROKER_CONFIG."""

from collections.abc import Mapping


def encode_settings(settings: Mapping[str, object]) -> bytes:
    """Those that are to be changed."""
    return "".join(f"{name}={value}\n" for name, value in settings.items()).encode()


def decode_settings(body: bytes) -> dict[str, str]:
    """All of them. Bytes that are no UTF-8 are replaced: nobody asks for such a value."""
    pairs = (line.partition("=") for line in body.decode(errors="replace").splitlines() if line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}
