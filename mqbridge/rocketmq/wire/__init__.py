"""RocketMQ's remoting protocol, sans-IO: bytes <-> commands, records and bodies.

A frame is a `command`. Its fields are one of `headers`; its body is one of `bodies` (JSON, decoded by `fastjson`), a run of
stored `record`s or a `batch` of messages to store. `properties`, `compression` and `tags` encode the parts of a message; `ids`,
`delay_levels`, `receipts` and `signing` the strings and numbers beside it; `codes` has the request and response codes.
"""
