"""Bytes <-> typed calls of TubeMQ's RPC, without a socket or a clock.

A `frame` contains, divided into blocks, an `rpc` envelope, which contains a protobuf message of `pb`. `string_formats` parses
structured strings inside the protobuf messages, `payload` parses the data of a message, and `codes` lists the error codes.
"""
