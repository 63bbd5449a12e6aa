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
from mqbridge.net.secret import HIDDEN, Secret
from mqbridge.pulsar.client.connection.auth import NO_AUTH, Auth, BasicAuth, TlsAuth, TokenAuth

ENTRY_POINT_GROUP = "mqbridge.pulsar_auth"
"""Group of Python entry points in which plugins register themselves."""
BUILT_IN = {"token": {"token"}, "basic": {"user", "password"}, "tls": set[str]()}
"""Built-in methods and their required options; `tls` needs none, because the cluster's `tls` has the certificate."""

AuthFactory = Callable[[dict[str, Any]], Auth]
"""Function that a plugin registers: it takes the options of `auth` besides `method`."""


class AuthOptions(BaseModel):
    """Authentication of the gateway, to brokers and to the REST interface."""

    model_config = ConfigDict(extra="allow", frozen=True, hide_input_in_errors=True)

    method: str = Field(
        default="",
        description="`token`, `basic`, `tls` (by the client certificate of `tls`), or the name of a plugin, whose options stand"
        " beside it. It may be left out if `token` or `password` is given.",
    )
    token: Secret | None = Field(
        default=None, description="For `token`: the token; a file is read, and a command run, again for every connection."
    )
    user: str | None = Field(default=None, min_length=1, description="For `basic`: the name of the user.")
    password: Secret | None = Field(default=None, description="For `basic`: the password of the user.")

    @model_validator(mode="wrap")
    @classmethod
    def _check_method_and_options(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Derive a missing method from the options, and check that the method has exactly the options that it needs."""
        if isinstance(value, dict) and not value.get("method"):
            method = "token" if "token" in value else "basic" if "password" in value else None
            if method is None:
                raise ValueError(f"the option method is missing: give one of {', '.join(_method_names())}")
            value = {**value, "method": method}
        options = handler(value)
        given = options.given_options.keys()
        if options.method in BUILT_IN:
            required = BUILT_IN[options.method]
            if missing := sorted(required - given):
                raise ValueError(f"method {options.method} needs {' and '.join(missing)}")
            if unknown := sorted(given - required):  # `rstrip`: errors end without a full stop
                raise ValueError(
                    f"method {options.method} has no option {unknown[0]!r}. {nearest(unknown[0], required) or ''}".rstrip(". ")
                )
        else:
            options.make(certificate=None)  # called only for the check: the plugin's factory checks its options
        return options

    @property
    def plugin_options(self) -> dict[str, Any]:
        """The options that only a plugin knows: all keys that are not fields of this model."""
        return dict(self.__pydantic_extra__ or {})

    def make(self, certificate: Path | None) -> Auth:
        """Create the authentication method. Raises ValueError if a plugin is missing or refuses its options.

        `certificate` is the client certificate of `tls`, None without one; only the method `tls` uses it.
        """
        match self.method:
            case "token" if self.token is not None:
                return TokenAuth(self.token)
            case "basic" if self.user is not None and self.password is not None:
                return BasicAuth(self.user, self.password)
            case "tls" if certificate is not None:
                return TlsAuth(certificate)
        # Not a built-in method: these have their options by now (`PulsarCluster` checks that `tls` has a certificate).
        return _load_plugin(self.method)(self.given_options)

    @property
    def given_options(self) -> dict[str, Any]:
        """Options besides `method` that are set."""
        own = {name: value for name, value in self if name != "method" and name in type(self).model_fields and value is not None}
        return {**own, **self.plugin_options}

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Leave out the options of plugins, any of which may be a secret."""
        return ((name, getattr(self, name)) for name in type(self).model_fields)

    @model_serializer(mode="wrap")
    def _serialize(self, handler: Callable[[Self], dict[str, Any]]) -> dict[str, Any]:
        """Hide the values of plugin options, any of which may be a secret."""
        return {**handler(self), **dict.fromkeys(self.plugin_options, HIDDEN)}


def make_auth(options: AuthOptions | None, certificate: Path | None) -> Auth:
    """Create the authentication method of a cluster; `NO_AUTH` without `auth` options."""
    return NO_AUTH if options is None else options.make(certificate)


def _plugins() -> dict[str, EntryPoint]:
    """Return the entry points of installed plugins by method name."""
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}


def _method_names() -> list[str]:
    return [*BUILT_IN, *sorted(_plugins())]


def _load_plugin(method: str) -> AuthFactory:
    """Load the factory of a plugin. Raises ValueError if the plugin is not installed or cannot be loaded."""
    entry = _plugins().get(method)
    if entry is None:
        hint = nearest(method, _method_names()) or ""
        raise ValueError(
            f"method {method!r} is neither built in nor the name of an installed plugin ({ENTRY_POINT_GROUP}). {hint}".rstrip(
                ". "
            )
        )
    try:
        factory: AuthFactory = entry.load()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"the plugin of method {method!r} cannot be loaded: {error}") from error
    return factory
