"""An adapter for mqbridge that keeps topics as folders of JSON lines: an example to copy from.

    FOLDER/TOPIC/0.jsonl       one file per partition, one line per message; a position is (line number,)
    FOLDER/.groups/GROUP.json  how far a group has read

Read it in this order: `records` (what a message is in this system), `storage` (the "client": files and groups), `cluster` (the
contract's methods). One process at a time may write a partition or consume as a group; any number may read.
"""
