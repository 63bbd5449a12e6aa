"""What a web method is."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from mqbridge.tubemq.server.web.answers import Answer
from mqbridge.tubemq.server.web.requests import Parameters


class WebMethod(NamedTuple):
    """A method: what serves it, and whether it changes something.

    `serve` returns the answer. It raises WebRefusal, RequestRefused, ClusterError and TimeoutError.
    """

    serve: Callable[[Parameters], Awaitable[Answer]]
    modifies: bool = False
