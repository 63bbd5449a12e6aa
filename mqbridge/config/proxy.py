"""The option `admin_proxy` of a cluster: a forward proxy for the calls of its web interfaces."""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, PlainSerializer

from mqbridge.net.proxy_url import check_proxy_url

PROXY_DESCRIPTION = (
    "A forward proxy for the calls to `admin_url` and to the web addresses of Brokers: `http://host:3128`, with `user:password@` "
    "before the host if it needs them. Without it there is no proxy: variables such as HTTP_PROXY have no effect."
)


def _no_empty_text(value: Any) -> Any:
    """Take an empty text for a missing option, so that a file can insert a variable that need not be set."""
    return value or None


def _check(url: str | None) -> str | None:
    return None if url is None else check_proxy_url(url)


def _strip_user(url: str | None) -> str | None:
    """Leave out user and password when the configuration is shown."""
    return url and re.sub(r"://[^/]*@", "://", url)


AdminProxy = Annotated[str | None, BeforeValidator(_no_empty_text), AfterValidator(_check), PlainSerializer(_strip_user)]
"""The type of `admin_proxy`: the address of a forward proxy; null for none."""
