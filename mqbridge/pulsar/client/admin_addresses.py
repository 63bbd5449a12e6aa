"""Parser of the REST interface's addresses: `http://user:password@a:8080,b:8080`."""

SCHEMES = ("http://", "https://")


def parse_admin_url(text: str) -> list[str]:
    """Return one URL per address, each with the scheme and the credentials of the first. Raises ValueError."""
    first, *others = (part.strip().rstrip("/") for part in text.split(","))
    scheme = next((scheme for scheme in SCHEMES if first.startswith(scheme)), None)
    if scheme is None or first == scheme:
        raise ValueError(f"{first!r} is not http://host:port")
    credentials, at, _ = first.removeprefix(scheme).rpartition("@")
    found = [first]
    for other in others:
        host = other.removeprefix(scheme)
        if not host or "://" in host:
            raise ValueError(f"{other!r} is not {scheme}host:port, as the first address is")
        if "@" in host:
            raise ValueError("the first address alone has user and password; a comma in these is written %2C")
        found.append(f"{scheme}{credentials}{at}{host}")
    return found
