"""Conversion between messages and RocketMQ's records and send requests.

`table` has the rules for each field. `write_block` and `read_block` convert the property string of a message; `request` makes
whole send requests of messages, and `stored` makes messages of stored records.
"""
