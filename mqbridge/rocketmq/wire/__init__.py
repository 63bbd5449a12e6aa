"""RocketMQ's remoting protocol, sans-IO: bytes <-> commands, records and bodies.

A frame is a `command`. Its fields are one of `headers`; its body is one of `bodies` (JSON, decoded by `fastjson`), a run of
stored `record`s or a `batch` of messages to store. `codes` has the request and response codes, `signing` the signature of a
request, `access_denials` the parser of error texts about refused signatures and permissions. `request_permissions` says what
each request needs. `properties`, `compression` and `tags` encode parts of a message. `ids` are message ids, `receipts` the
handles that acknowledge popped messages, and `delay_levels` the delays of a broker.
"""
