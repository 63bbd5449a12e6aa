"""Settings of a broker: the response body of GET_BROKER_CONFIG and the request body of UPDATE_BROKER_CONFIG.

A body is text with a line NAME=VALUE for each setting. Lines that start with `#` are comments.
"""

from collections.abc import Mapping


def encode_settings(settings: Mapping[str, object]) -> bytes:
    """Encode the settings to change, for UPDATE_BROKER_CONFIG."""
    return "".join(f"{name}={value}\n" for name, value in settings.items()).encode()


def decode_settings(body: bytes) -> dict[str, str]:
    """Decode all settings. Bytes that are not UTF-8 are replaced: no setting that mqbridge uses contains them."""
    pairs = (line.partition("=") for line in body.decode(errors="replace").splitlines() if line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}
