"""Registers the server with the gateway: `SERVER` is its entry point in `pyproject.toml`."""

from mqbridge.listener.server import ProtocolServer, ServedSystem, Services
from mqbridge.tubemq.mapping.unit_format import NAME


def _make(services: Services) -> ProtocolServer:
    from mqbridge.tubemq.server.server import TubeMQServer  # noqa: PLC0415 - commands that serve nothing do not load it

    return TubeMQServer(services)


SERVER = ServedSystem(
    system="tubemq",
    port=8715,
    web_port=8080,
    unit_format=NAME,
    default_topics="{topic}",
    answers_in_order=False,
    make=_make,
    groups_span_topics=True,
)
