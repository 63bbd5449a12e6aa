"""The errors for denied access: each names the missing credential or permission, and what to do about it."""

from mqbridge.errors import Failure, NotPermitted
from mqbridge.rocketmq.wire.access_denials import AccessDenial, DenialReason, ResourceType
from mqbridge.rocketmq.wire.codes import Status, request_name
from mqbridge.rocketmq.wire.request_permissions import action_of


class AccessRefused(NotPermitted):
    """The broker refuses our credentials (`of_credentials`), or these lack a permission."""

    def __init__(self, problem: str, failure: Failure, *, of_credentials: bool) -> None:
        super().__init__(problem, Status.NO_PERMISSION, failure)
        self.of_credentials = of_credentials


_ACTION_WORDS = {
    ("Pub", ResourceType.TOPIC): "produce to",
    ("Sub", ResourceType.TOPIC): "consume",
    ("Sub", ResourceType.GROUP): "consume as",
    ("Get", ResourceType.TOPIC): "query",
    ("Get", ResourceType.GROUP): "query",
    ("Create", ResourceType.TOPIC): "create",
    ("Delete", ResourceType.TOPIC): "delete",
    ("Delete", ResourceType.GROUP): "delete",
    ("Update", ResourceType.TOPIC): "move groups of",
    ("Update", ResourceType.GROUP): "move",
}
"""Verb of the error by action and type of resource. The only update of a topic or a group is to reset offsets."""


def access_refused(
    denial: AccessDenial, code: int, address: str, access_key: str | None, credentials_failure: Failure
) -> AccessRefused:
    """Return the error for a denied request with this request code.

    `access_key` is None if the request was not signed. The error's `failure` is `credentials_failure` if the credentials are
    refused, FATAL if they lack a permission.
    """
    if denial.of_credentials:
        return AccessRefused(_credentials_problem(denial, code, address, access_key), credentials_failure, of_credentials=True)
    return AccessRefused(_permission_problem(denial, code, address, access_key), Failure.FATAL, of_credentials=False)


def _credentials_problem(denial: AccessDenial, code: int, address: str, access_key: str | None) -> str:
    if access_key is None or denial.reason is DenialReason.NO_CREDENTIALS:  # the request was not signed
        return f"{address} requires credentials: set auth.access_key and auth.secret_key"
    refusal = f"{address} refuses access key {access_key!r} ({request_name(code)})"
    if denial.reason is DenialReason.UNKNOWN_USER:
        return f"{refusal}: no such user: check auth.access_key, or create the user"
    if denial.reason is DenialReason.DISABLED:
        return f"{refusal}: the user is disabled: have an administrator enable it"
    return f"{refusal}: the signature does not match its secret key: check auth.secret_key"


def _permission_problem(denial: AccessDenial, code: int, address: str, access_key: str | None) -> str:
    resource_type = denial.resource_type
    name = denial.resource
    action = action_of(code, denial.resource_type)
    if not name:  # access control 1.0 names no resource if a request is only for administrators
        return (
            f"access key {access_key!r} may not administer ({request_name(code)} at {address}): "
            "give its account admin: true in plain_acl.yml, or have an administrator do it"
        )
    verb = _ACTION_WORDS.get((action, resource_type), "use")
    problem = f"access key {access_key!r} may not {verb} {resource_type.value} {name!r}"
    request = f"{request_name(code)} at {address}"
    if denial.version == 1:
        return f"{problem} ({request}): give its account {resource_type.value}Perms {name}={action.upper()} in plain_acl.yml"
    resource = f"{resource_type.value.capitalize()}:{name}"
    # `createAcl` replaces the actions granted for the resource, and a consumer needs both Sub and Get.
    actions = "Sub,Get" if action in ("Sub", "Get") and resource_type is not ResourceType.CLUSTER else action
    return (
        f"{problem} ({request}, from {denial.source}): grant it with "
        f"`mqadmin createAcl -s User:{access_key} -r {resource} -a {actions} -d Allow`, "
        "which replaces the user's other permissions for it"
    )
