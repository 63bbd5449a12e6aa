"""Addresses of name servers: `host` or `host:port`."""

from mqbridge.net.addresses import split_address

DEFAULT_PORT = 9876
"""Port of an address that contains none."""


def parse_name_servers(text: str) -> list[str]:
    """Parse addresses like `a:9876;b`, separated by `;` or `,`. Raises ValueError."""
    parts = [part.strip() for part in text.replace(",", ";").split(";") if part.strip()]
    if not parts:
        raise ValueError("no name server is given: at least one address host:port is needed")
    return [_normalize(part) for part in parts]


def _normalize(part: str) -> str:
    """Return the address as `host:port`, with DEFAULT_PORT if it has no port."""
    try:
        return join_address(*split_address(part, DEFAULT_PORT))
    except ValueError as error:
        raise ValueError(f"{part!r} is not the host:port of a name server") from error


def join_address(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
