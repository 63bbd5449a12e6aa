"""Bytes <-> typed calls of TubeMQ's RPC, without a socket or a clock.

A `frame` (blocks) carries an `rpc` envelope, which carries a protobuf message of `pb`. `string_formats` parses the structured
strings inside those, `payload` the data of a message, `codes` names the error codes.
"""
