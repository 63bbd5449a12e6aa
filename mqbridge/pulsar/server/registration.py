"""Registers the server with the gateway: `SERVER` is its entry point in `pyproject.toml`."""

from mqbridge.adapter.inbound import Sharing
from mqbridge.listener.server import ProtocolServer, ServedSystem, Services
from mqbridge.pulsar.mapping.unit_format import FORMAT


def _make(services: Services) -> ProtocolServer:
    from mqbridge.pulsar.server.server import PulsarServer  # noqa: PLC0415 - commands that serve nothing do not load it

    return PulsarServer(services)


SERVER = ServedSystem(
    system="pulsar",
    port=6650,
    web_port=8080,
    unit_format=FORMAT,
    default_topics="persistent://public/default/{topic}",
    answers_in_order=True,
    make=_make,
    sharing=frozenset(Sharing),
    numbers_messages=True,
    parks_messages=True,
)
