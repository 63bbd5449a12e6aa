"""Default ports of a Master."""

DEFAULT_PORT = 8715
DEFAULT_TLS_PORT = 8716


def default_port(*, is_encrypted: bool) -> int:
    """Return the Master's default port."""
    return DEFAULT_TLS_PORT if is_encrypted else DEFAULT_PORT
