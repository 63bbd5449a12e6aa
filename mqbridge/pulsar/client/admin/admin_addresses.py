"""Parser of `admin_url`, the addresses of the REST interface: `http://user:password@a:8080,b:8080`."""

SCHEMES = ("http://", "https://")


def parse_admin_url(text: str) -> list[str]:
    """Return one URL per address; all have the scheme and the credentials of the first address. Raises ValueError."""
    first, *others = (part.strip().rstrip("/") for part in text.split(","))
    scheme = next((scheme for scheme in SCHEMES if first.startswith(scheme)), None)
    if scheme is None or first == scheme:
        # The text is not shown: it may contain a password.
        raise ValueError("the first address of admin_url is not http://host:port or https://host:port")
    credentials, at, _ = first.removeprefix(scheme).rpartition("@")
    urls = [first]
    for other in others:
        host = other.removeprefix(scheme)
        if not host or "://" in host:
            raise ValueError(f"{other.rpartition('@')[2]!r} is not {scheme}host:port like the first address")
        if "@" in host:
            raise ValueError("only the first address may contain user and password; write a comma in the user or password as %2C")
        urls.append(f"{scheme}{credentials}{at}{host}")
    return urls
