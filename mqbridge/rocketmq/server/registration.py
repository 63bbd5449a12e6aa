"""Registers the server with the gateway: `SERVER` is its entry point in `pyproject.toml`."""

from mqbridge.listener.server import ProtocolServer, ServedSystem, Services
from mqbridge.rocketmq.mapping.unit_format import NAME
from mqbridge.rocketmq.server.topic_names import FIXED_NAMES


def _make(services: Services) -> ProtocolServer:
    from mqbridge.rocketmq.server.server import RocketMQServer  # noqa: PLC0415 - commands that serve nothing do not load it

    return RocketMQServer(services)


SERVER = ServedSystem(
    system="rocketmq",
    port=9876,
    web_port=None,
    unit_format=NAME,
    default_topics="{topic}",
    answers_in_order=False,
    make=_make,
    fixed_names=FIXED_NAMES,
)
