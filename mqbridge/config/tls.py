"""The `tls` options of a cluster, the same for every system."""

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from mqbridge.config.base import Options
from mqbridge.net.secret import Secret
from mqbridge.net.tls.settings import MinimumVersion, TlsSettings, Verify
from mqbridge.net.tls.tls import Tls


class TlsOptions(Options):
    """TLS of the connections to the cluster's servers. If a file changes, new connections use its new content."""

    authorities: Path | None = Field(
        default=None,
        description="PEM file, or folder prepared by `openssl rehash`, with the authorities that sign the servers' certificates. "
        "The default is the authorities that the platform trusts.",
    )
    certificate: Path | None = Field(
        default=None, description="PEM file with the gateway's own certificate, for servers that require client certificates."
    )
    key: Path | None = Field(
        default=None, description="PEM file with the key of `certificate`, if it is not in the certificate's file."
    )
    key_password: Secret | None = Field(default=None, description="Password of the key.")
    server_name: str | None = Field(
        default=None,
        min_length=1,
        description="The name that the servers' certificates must contain, if it is not the host name of the connection.",
    )
    minimum_version: MinimumVersion = Field(default="1.2", description="The oldest TLS version that is accepted.")
    verify: Verify = Field(
        default="full",
        description="`full` verifies the authority and the name of the server's certificate. `authority` does not verify the "
        "name: any server with a certificate from the authorities is accepted. `none` accepts any server, so anyone on the "
        "network path can read and change all data and credentials: use it only for tests.",
    )

    @model_validator(mode="after")
    def _check_key_has_certificate(self) -> Self:
        if self.certificate is None and (self.key is not None or self.key_password is not None):
            raise ValueError("key and key_password require a certificate: give tls.certificate")
        return self

    def make(self, cluster: str) -> Tls:
        """Return the TLS contexts and certificate expiry times of a cluster; `cluster` is its name, for the log."""
        return Tls(TlsSettings(**dict(self)), name=cluster)


def _read_switch(value: Any) -> Any:
    """Convert `true` to empty options and `false` to None; other values are validated as options."""
    if value in ("true", True):
        return {}
    return None if value in ("false", False) else value


TlsChoice = Annotated[TlsOptions | None, BeforeValidator(_read_switch, json_schema_input_type=TlsOptions | bool | None)]
"""The type of `tls`: the options, `true` for TLS with all defaults, `false` or null for no TLS."""
