"""Headers of transactions.

A transaction begins with a half message, which is an ordinary send with `SysFlag.PREPARED` and is not delivered before the
producer commits it. The broker asks the producer for the state of a half message that was neither committed nor rolled back.

`tran_state_table_offset` is the queue offset of the half message, `commit_log_offset` its physical offset. `msg_id` is the unique
id that its producer made, `offset_msg_id` the offset id that the broker made (see `ids`), and `transaction_id` the one in the
response to its send, normally the unique id too. `bname` is the name of the broker, which proxies need and brokers ignore.
"""

from dataclasses import dataclass

from mqbridge.rocketmq.wire.headers.base import Header

COMMIT = 8
ROLLBACK = 12
STATE_UNKNOWN = 0
"""Values of `commit_or_rollback`."""


@dataclass(slots=True)
class EndTransactionHeader(Header):
    """END_TRANSACTION: commit or roll back.

    The offsets come from the response to the send, or from the check. `from_transaction_check`: this answers a
    CHECK_TRANSACTION_STATE; None means no, like False.
    """

    producer_group: str
    tran_state_table_offset: int
    commit_log_offset: int
    commit_or_rollback: int
    msg_id: str
    transaction_id: str | None = None
    from_transaction_check: bool | None = None
    topic: str | None = None
    bname: str | None = None


@dataclass(slots=True)
class CheckTransactionHeader(Header):
    """CHECK_TRANSACTION_STATE, a request by the broker, to which the producer reacts with END_TRANSACTION.

    The body is the half message as one record.
    """

    tran_state_table_offset: int
    commit_log_offset: int
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None
    bname: str | None = None
