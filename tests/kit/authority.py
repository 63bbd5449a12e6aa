"""A certificate authority for tests with locked clusters. Certificates are PEM files for mqbridge and PKCS12 files for Java.

Elliptic curve keys are used, which are created in milliseconds.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

STORE_PASSWORD = "changeit"
VALID = timedelta(days=30)
BACKDATED = timedelta(hours=1)
"""Certificates are valid from this long ago, because clocks of a container and its host may differ."""
PEM = serialization.Encoding.PEM


@dataclass(frozen=True)
class Identity:
    """Files of a certificate and its key. `store` is a PKCS12 file for Java with both and the authority's certificate."""

    name: str
    certificate: Path
    key: Path
    store: Path


class Authority:
    """Signs certificates. `certificate` is its own certificate, `trust_store` the same for Java (password STORE_PASSWORD)."""

    def __init__(self, folder: Path, name: str = "mqbridge tests") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        now = datetime.now(UTC)
        self._certificate = (
            _builder(self._name, self._name, self._key, now - BACKDATED, now + VALID)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = folder / "authority.pem"
        self.certificate.write_bytes(self._certificate.public_bytes(PEM))
        self.trust_store = folder / "authority.p12"
        trusted = pkcs12.PKCS12Certificate(self._certificate, b"authority")
        encryption = serialization.BestAvailableEncryption(STORE_PASSWORD.encode())
        self.trust_store.write_bytes(pkcs12.serialize_java_truststore([trusted], encryption))

    def issue(
        self,
        name: str,
        *,
        hosts: Iterable[str] = ("localhost", "127.0.0.1"),
        begins: timedelta = -BACKDATED,
        ends: timedelta = VALID,
        file: str | None = None,
        password: str | None = None,
    ) -> Identity:
        """Create a certificate for servers and clients, valid from now + `begins` to now + `ends`.

        The files are named by `file` (default: `name`). With `password` the key is encrypted.
        """
        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
        certificate = (
            _builder(_name(name), self._name, key, now + begins, now + ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        identity = Identity(name, *(self.folder / f"{file or name}{end}" for end in (".pem", ".key", ".p12")))
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            encryption = serialization.BestAvailableEncryption(password.encode())
        identity.certificate.write_bytes(certificate.public_bytes(PEM))
        # Java servers require the format PKCS8.
        identity.key.write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, encryption))
        store = serialization.BestAvailableEncryption(STORE_PASSWORD.encode())
        identity.store.write_bytes(
            pkcs12.serialize_key_and_certificates(name.encode(), key, certificate, [self._certificate], store)
        )
        return identity


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, begins: datetime, ends: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    """Return the key usage. Since Python 3.13, an authority's certificate must state that it may sign certificates."""
    return x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        key_cert_sign=signs_certificates, crl_sign=signs_certificates, encipher_only=False, decipher_only=False,
    )  # fmt: skip
