"""The `tls` options of a cluster, the same for every system."""

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from mqbridge.config.base import Options
from mqbridge.net.tls.settings import MinimumVersion, TlsSettings, Verify
from mqbridge.net.tls.tls import Tls
from mqbridge.secret import Secret


class TlsOptions(Options):
    """How connections to the cluster's servers are encrypted; files are read again when they change."""

    authorities: Path | None = Field(
        default=None,
        description="PEM file, or folder prepared by `openssl rehash`, with the authorities that sign the servers' certificates;"
        " without it those that the platform trusts.",
    )
    certificate: Path | None = Field(
        default=None, description="PEM file with the gateway's own certificate, for servers that ask for one."
    )
    key: Path | None = Field(default=None, description="PEM file with its key, when that is not in the certificate's file.")
    key_password: Secret | None = Field(default=None, description="Password of the key.")
    server_name: str | None = Field(
        default=None,
        min_length=1,
        description="The name that the servers' certificates must hold, when it is not the host that is connected to.",
    )
    minimum_version: MinimumVersion = Field(default="1.2", description="The oldest TLS version that is spoken.")
    verify: Verify = Field(
        default="full",
        description="`full` verifies authority and name; `authority` takes any server that the authorities have signed; `none`"
        " takes anybody, so anybody on the way can read and change everything: for a laboratory only.",
    )

    @model_validator(mode="after")
    def _belongs_together(self) -> Self:
        if self.certificate is None and (self.key is not None or self.key_password is not None):
            raise ValueError("key and key_password are of a certificate: give tls.certificate")
        return self

    def make(self, cluster: str) -> Tls:
        """TLS of the cluster with this name."""
        return Tls(TlsSettings(**dict(self)), name=cluster)


def _switched_on(value: Any) -> Any:
    if value in ("true", True):
        return {}
    return None if value in ("false", False) else value


TlsChoice = Annotated[TlsOptions | None, BeforeValidator(_switched_on, json_schema_input_type=TlsOptions | bool | None)]
"""The options, or `true` for TLS with all defaults."""
