"""What the clients for programs share: `PulsarClient`, `TubeMQClient` and `RocketMQClient` have one face, see `contract`.

Each client is in the `library/` of its system. The gateway uses none of this: it stands on the `client/` folders below.
"""
