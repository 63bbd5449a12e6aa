"""Example of an mqbridge adapter for another system. Its topics are folders with files of JSON lines.

    FOLDER/TOPIC/0.jsonl       partition 0: one line per message; a position is (line number,)
    FOLDER/.groups/GROUP.json  committed offsets of a group

Read the modules in this order: `records` (the mapping), `storage` (the client: files and groups), `cluster` (the methods of the
contract). Only one process at a time may write to a partition, or consume as a group. Any number of processes may read.
"""
