"""The common part of the client libraries: `PulsarClient`, `TubeMQClient` and `RocketMQClient` share the interface in `contract`.

Each client is in the `library/` folder of its system. The gateway does not use these clients: it uses the `client/` folders.
"""
