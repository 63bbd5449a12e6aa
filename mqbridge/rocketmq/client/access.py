"""What a broker refuses for lack of credentials or rights, said so that whoever reads it knows what to do."""

from mqbridge.errors import Failure, ServerRefused
from mqbridge.rocketmq.wire.codes import Code, Status, name_of
from mqbridge.rocketmq.wire.refusals import Kind, Lack, Refusal


class AccessRefused(ServerRefused):
    """The broker does not take our credentials (`of_credentials`), or these do not give the right."""

    def __init__(self, problem: str, failure: Failure, *, of_credentials: bool) -> None:
        super().__init__(problem, Status.NO_PERMISSION, failure)
        self.of_credentials = of_credentials


_SENDS = frozenset({Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.END_TRANSACTION, Code.RECALL_MESSAGE})
_LOOKS = frozenset(
    {
        Code.GET_MAX_OFFSET,
        Code.GET_MIN_OFFSET,
        Code.SEARCH_OFFSET_BY_TIMESTAMP,
        Code.GET_EARLIEST_MSG_STORETIME,
        Code.GET_TOPIC_STATS_INFO,
        Code.GET_TOPIC_CONFIG,
        Code.GET_CONSUME_STATS,
        Code.GET_CONSUMER_CONNECTION_LIST,
        Code.GET_PRODUCER_CONNECTION_LIST,
        Code.GET_CONSUMER_RUNNING_INFO,
        Code.GET_SUBSCRIPTIONGROUP_CONFIG,
        Code.QUERY_TOPIC_CONSUME_BY_WHO,
        Code.QUERY_TOPICS_BY_CONSUMER,
        Code.QUERY_CONSUMER_OFFSET,
        Code.VIEW_MESSAGE_BY_ID,
    }
)
_CHANGES = {
    Code.UPDATE_AND_CREATE_TOPIC: "Create",
    Code.DELETE_TOPIC_IN_BROKER: "Delete",
    Code.DELETE_SUBSCRIPTIONGROUP: "Delete",
    Code.INVOKE_BROKER_TO_RESET_OFFSET: "Update",
}
_MAY_NOT = {
    ("Pub", Kind.TOPIC): "produce to",
    ("Sub", Kind.TOPIC): "consume",
    ("Sub", Kind.GROUP): "consume as",
    ("Get", Kind.TOPIC): "look at",
    ("Get", Kind.GROUP): "look at",
    ("Create", Kind.TOPIC): "create",
    ("Delete", Kind.TOPIC): "delete",
    ("Delete", Kind.GROUP): "delete",
    ("Update", Kind.TOPIC): "move groups of",
    ("Update", Kind.GROUP): "move",
}


def access_refused(refusal: Refusal, code: int, address: str, access_key: str | None, lasting: Failure) -> AccessRefused:
    """The error for a request with this code. `lasting` is what helps after refused credentials."""
    if refusal.of_credentials:
        return AccessRefused(_of_credentials(refusal, code, address, access_key), lasting, of_credentials=True)
    return AccessRefused(_of_rights(refusal, code, address, access_key), Failure.FATAL, of_credentials=False)


def _of_credentials(refusal: Refusal, code: int, address: str, access_key: str | None) -> str:
    if access_key is None or refusal.lack is Lack.CREDENTIALS:
        return f"{address} lets nobody in without credentials: give auth.access_key and auth.secret_key"
    where = f"{address} refuses access key {access_key!r} ({name_of(code)})"
    if refusal.lack is Lack.USER:
        return f"{where}: there is no such user: see auth.access_key, or create the user"
    if refusal.lack is Lack.ENABLED:
        return f"{where}: the user is disabled"
    return f"{where}: the signature is not the one of its secret key: see auth.secret_key"


def _of_rights(refusal: Refusal, code: int, address: str, access_key: str | None) -> str:
    kind, name, action = refusal.kind, refusal.name, _action(code, refusal.kind)
    if not name:  # access control 1.0 has administrators
        return (
            f"access key {access_key!r} may not administer ({name_of(code)} at {address}): "
            "give its account admin: true in plain_acl.yml, or have an administrator do it"
        )
    what = f"access key {access_key!r} may not {_MAY_NOT.get((action, kind), 'use')} {kind.value} {name!r}"
    asked = f"{name_of(code)} at {address}"
    if refusal.version == 1:
        return f"{what} ({asked}): give its account {kind.value}Perms {name}={action.upper()} in plain_acl.yml"
    resource = f"{kind.value.capitalize()}:{name}"
    needed = "Sub,Get" if action in ("Sub", "Get") and kind is not Kind.CLUSTER else action
    return (
        f"{what} ({asked}, from {refusal.source}): grant it with "
        f"`mqadmin createAcl -s User:{access_key} -r {resource} -a {needed} -d Allow`, which replaces what it may do there now"
    )


def _action(code: int, kind: Kind) -> str:
    """What access control 2.0 calls it; 1.0 has Pub and Sub only."""
    if code in _CHANGES:
        return _CHANGES[code]
    if code in _LOOKS or kind is Kind.CLUSTER:
        return "Get"
    return "Pub" if code in _SENDS and kind is Kind.TOPIC else "Sub"  # to a retry topic one sends as its group
