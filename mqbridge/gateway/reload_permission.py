"""Decides who may reload the configuration over HTTP.

A reload runs the commands of secrets, connects to clusters, and replaces routes. So a server that listens on all addresses, as
in a container, must not do it for everybody who can reach the port. Clients on this machine may, as they may send SIGHUP; others
need the token of the configuration.
"""

import hmac
import ipaddress

from starlette.requests import Request

from mqbridge.errors import MqbridgeError
from mqbridge.net.secret import Secret

PROXY_HEADERS = ("x-forwarded-for", "forwarded", "x-real-ip")
"""Headers by which a proxy says that the request comes from elsewhere, although the proxy itself may be on this machine."""


async def why_not_permitted(request: Request, token: Secret | None) -> str | None:
    """Return why this request may not reload the configuration; None if it may."""
    if _is_local(request):
        return None
    if token is None:
        return "only clients on this machine may reload; set http.reload_token for others"
    try:
        expected = await token.read()
    except (MqbridgeError, ValueError) as error:
        return f"http.reload_token cannot be read: {error}"
    sent = request.headers.get("authorization", "")
    if hmac.compare_digest(sent.encode(), f"Bearer {expected}".encode()):
        return None
    return "the header `Authorization: Bearer TOKEN` with the token of http.reload_token is needed"


def _is_local(request: Request) -> bool:
    if request.client is None or any(header in request.headers for header in PROXY_HEADERS):
        return False
    try:
        address = ipaddress.ip_address(request.client.host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)  # an IPv4 client of a server that listens on [::]
    return (mapped or address).is_loopback
