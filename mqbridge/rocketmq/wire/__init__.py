"""RocketMQ's remoting protocol: bytes <-> commands, records and bodies, without a socket or a clock.

A frame is a `command`; its fields are one of `headers`, its body one of `bodies` (JSON, which `lenient` reads), `record`s (what
is stored) or a `batch` (what is sent). `properties`, `compression` and `tags` are about what a message consists of, `ids`,
`delays`, `receipts` and `signing` about the strings and numbers that go with it, `codes` about requests and answers. The client's
out is the listener's in.
"""
