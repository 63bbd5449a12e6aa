"""The `auth` options of a cluster, and authentication methods of plugins.

A plugin registers a factory in the entry point group `mqbridge.pulsar_auth`, under the name that is given as `method`. The
factory gets the other options of `auth` as configured and returns an `Auth`; it raises ValueError for invalid options. It is
called when the configuration is checked and again for each cluster, so it must only create the object.
"""

from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, model_serializer, model_validator

from mqbridge.config.problems import nearest
from mqbridge.pulsar.client.auth import NO_AUTH, Auth, BasicAuth, TlsAuth, TokenAuth
from mqbridge.secret import HIDDEN, Secret

GROUP = "mqbridge.pulsar_auth"
BUILT_IN = {"token": {"token"}, "basic": {"user", "password"}, "tls": set[str]()}
"""Built-in methods and their required options."""

Factory = Callable[[dict[str, Any]], Auth]


class AuthOptions(BaseModel):
    """Authentication of the gateway, to brokers and to the REST interface."""

    model_config = ConfigDict(extra="allow", frozen=True, hide_input_in_errors=True)

    method: str = Field(
        default="",
        description="`token`, `basic`, `tls` (by the client certificate of `tls`), or the name of a plugin, whose options stand"
        " beside it. It may be left out where `token` or `password` says it.",
    )
    token: Secret | None = Field(
        default=None, description="For `token`: the token; a file or command is asked at every connection."
    )
    user: str | None = Field(default=None, min_length=1, description="For `basic`.")
    password: Secret | None = Field(default=None, description="For `basic`.")

    @model_validator(mode="wrap")
    @classmethod
    def _method_and_options(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if isinstance(value, dict) and not value.get("method"):
            method = "token" if "token" in value else "basic" if "password" in value else None
            if method is None:
                raise ValueError(f"give method: one of {', '.join(_known())}")
            value = {**value, "method": method}
        made = handler(value)
        given = made.given.keys()
        if made.method in BUILT_IN:
            needed = BUILT_IN[made.method]
            if missing := sorted(needed - given):
                raise ValueError(f"method {made.method} needs {' and '.join(missing)}")
            if unknown := sorted(given - needed):
                raise ValueError(
                    f"method {made.method} has no option {unknown[0]!r}. {nearest(unknown[0], needed) or ''}".rstrip(". ")
                )
        else:
            made.make(None)
        return made

    @property
    def plugin_options(self) -> dict[str, Any]:
        """Options of a plugin's method."""
        return dict(self.__pydantic_extra__ or {})

    def make(self, certificate: Path | None) -> Auth:
        """Create the authentication method; `certificate` is the client certificate of `tls`. Plugins may raise ValueError."""
        match self.method:
            case "token" if self.token is not None:
                return TokenAuth(self.token)
            case "basic" if self.user is not None and self.password is not None:
                return BasicAuth(self.user, self.password)
            case "tls" if certificate is not None:
                return TlsAuth(certificate)
        return _plugin(self.method)(self.given)

    @property
    def given(self) -> dict[str, Any]:
        """Options besides `method` that are set."""
        own = {name: value for name, value in self if name != "method" and name in type(self).model_fields and value is not None}
        return {**own, **self.plugin_options}

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Leave out the options of plugins, any of which may be a secret."""
        return ((name, getattr(self, name)) for name in type(self).model_fields)

    @model_serializer(mode="wrap")
    def _shown(self, handler: Callable[[Self], dict[str, Any]]) -> dict[str, Any]:
        return {**handler(self), **dict.fromkeys(self.plugin_options, HIDDEN)}


def auth_of(options: AuthOptions | None, certificate: Path | None) -> Auth:
    """Return the authentication method of a cluster."""
    return NO_AUTH if options is None else options.make(certificate)


def _plugins() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _known() -> list[str]:
    return [*BUILT_IN, *sorted(_plugins())]


def _plugin(method: str) -> Factory:
    """Load the factory of a plugin. Raises ValueError if it does not exist or cannot be loaded."""
    entry = _plugins().get(method)
    if entry is None:
        hint = nearest(method, _known()) or ""
        raise ValueError(f"there is no method {method!r}, and no plugin {GROUP} of this name. {hint}".rstrip(". "))
    try:
        factory: Factory = entry.load()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"the plugin of method {method!r} cannot be loaded: {error}") from error
    return factory
