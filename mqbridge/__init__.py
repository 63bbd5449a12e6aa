"""mqbridge: a protocol gateway between Apache InLong TubeMQ, Apache Pulsar and Apache RocketMQ.

Read `mqbridge.message`, `mqbridge.adapter` and `mqbridge.errors` first: the model, the contract and the exception tree.
"""

__version__ = "0.1.0"
