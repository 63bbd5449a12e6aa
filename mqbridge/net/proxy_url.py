"""Checks the address of a forward proxy without loading the HTTP client, which commands that open no connection do not need."""

from urllib.parse import urlsplit

PROXY_SCHEMES = ("http", "https")
"""Schemes of the address of a forward proxy."""


def check_proxy_url(url: str) -> str:
    """Return the address of a proxy, `http[s]://[user:password@]host:port`. Raises ValueError, without the password."""
    try:
        parsed = urlsplit(url.strip())
        is_valid = parsed.port != 0  # raises ValueError if it is no number
    except ValueError:
        is_valid = False
    if (
        not is_valid
        or parsed.scheme not in PROXY_SCHEMES
        or not parsed.hostname
        or parsed.path not in ("", "/")
        or parsed.query
        or parsed.fragment
    ):
        problem = "a proxy is http://host:port or https://host:port, with user:password@ before the host if it needs them"
        raise ValueError(problem) from None
    return url.strip().rstrip("/")
