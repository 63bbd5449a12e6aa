"""Helpers for adapters that are not part of the contract.

deadlines         deadlines of closing, as event loop times
unit_ranges       the result of `measure` for systems whose positions are offsets
stored_positions  which messages of a source a target stores already (for `resume`), by packed_positions, which keeps
millions of positions in little memory
receipts          one receipt for a share whose messages are sent by several requests
retention         warnings about limits by age
sharing           the check of the way in which a group shares partitions
"""
