"""Headers of transactions. A half message is an ordinary send with `SysFlag.PREPARED`."""

from dataclasses import dataclass

from mqbridge.rocketmq.wire.headers.base import Header

COMMIT = 8
ROLLBACK = 12
STATE_UNKNOWN = 0


@dataclass(slots=True)
class EndTransactionHeader(Header):
    """END_TRANSACTION. The first offset is the queue offset in the response to the send; `commit_or_rollback` is 8, 12 or 0."""

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
    """CHECK_TRANSACTION_STATE; the body is the half message as one record. Answered by END_TRANSACTION."""

    tran_state_table_offset: int
    commit_log_offset: int
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None
    bname: str | None = None
