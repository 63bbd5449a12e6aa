"""mqbridge: a protocol gateway between Apache InLong TubeMQ, Apache Pulsar and Apache RocketMQ, and a client for each.

    from mqbridge import PulsarClient, RocketMQClient, TubeMQClient

All clients have the same interface, see `mqbridge.library.contract`. To read the gateway's code, begin with `mqbridge.message`,
`mqbridge.adapter` and `mqbridge.errors`: the message model, the contract with the systems, and the exception tree.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mqbridge.pulsar.library.client import PulsarClient
    from mqbridge.rocketmq.library.client import RocketMQClient
    from mqbridge.tubemq.library.client import TubeMQClient

__all__ = ["PulsarClient", "RocketMQClient", "TubeMQClient", "__version__"]

__version__ = "0.2.0"

_CLIENTS = {
    "PulsarClient": "mqbridge.pulsar.library.client",
    "RocketMQClient": "mqbridge.rocketmq.library.client",
    "TubeMQClient": "mqbridge.tubemq.library.client",
}
"""The module of each client class. It is imported when the class is first used: the import takes a tenth of a second, and many
commands use no client."""


def __getattr__(name: str) -> Any:
    if name in _CLIENTS:
        return getattr(import_module(_CLIENTS[name]), name)
    raise AttributeError(f"module 'mqbridge' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_CLIENTS])
