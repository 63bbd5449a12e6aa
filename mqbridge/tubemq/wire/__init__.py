"""Bytes <-> typed calls of TubeMQ's RPC, without a socket or a clock; the client's out is the listener's in.

`frame` (blocks) holds `rpc` (the envelope) holds the protobuf messages of `pb`; `text` are the strings inside those, `payload`
what a message's bytes consist of, `codes` the error codes.
"""
