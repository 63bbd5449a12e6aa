"""Conversion between messages and RocketMQ's records and send requests.

`table` has the rules for each field. `write_block` and `read_block` convert the property string of a message; `request` encodes
messages to whole send requests, and `stored` decodes stored records to messages.
"""
