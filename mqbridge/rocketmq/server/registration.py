"""Registers the server with the gateway: `SERVER` is its entry point in `pyproject.toml`."""

from mqbridge.listener.server import MadeTopic, ProtocolServer, ServedSystem, Services
from mqbridge.rocketmq.mapping.unit_format import NAME
from mqbridge.rocketmq.server.topic_names import FIXED_NAMES, dead_topic, retry_topic

_EXAMPLE = "mqbridge-check"
"""A group that stands for all."""


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
    made_topics=(
        MadeTopic(retry_topic(_EXAMPLE), "consumers do not get messages again that they could not process"),
        MadeTopic(dead_topic(_EXAMPLE), "messages that consumers can never process are not put away"),
        MadeTopic(f"half-{'0' * 16}", "transactions are refused", is_internal=True),
    ),
    groups_span_topics=True,
    needs_dense_numbers=True,
    parks_messages=True,
)
