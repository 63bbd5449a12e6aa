"""Settings of a broker, the bodies of GET_BROKER_CONFIG and UPDATE_BROKER_CONFIG: lines of NAME=VALUE, and comments."""

from collections.abc import Mapping


def encode_settings(settings: Mapping[str, object]) -> bytes:
    """Encode the settings to change."""
    return "".join(f"{name}={value}\n" for name, value in settings.items()).encode()


def decode_settings(body: bytes) -> dict[str, str]:
    """Decode all settings. Bytes that are not UTF-8 are replaced, because no setting that mqbridge uses has any."""
    pairs = (line.partition("=") for line in body.decode(errors="replace").splitlines() if line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}
