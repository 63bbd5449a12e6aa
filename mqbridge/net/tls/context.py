"""Makes an SSL context from TLS settings; an error names the option whose file is unusable."""

import ssl
from pathlib import Path

from mqbridge.errors import ClusterError, Failure
from mqbridge.net.tls.settings import TlsSettings

_TLS_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


async def make_context(settings: TlsSettings) -> ssl.SSLContext:
    """Make a context for connections to servers. Raises ClusterError (FATAL) that names the option if a file is unusable."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = _TLS_VERSIONS[settings.minimum_version]
    context.check_hostname = settings.verify == "full"
    context.verify_mode = ssl.CERT_NONE if settings.verify == "none" else ssl.CERT_REQUIRED
    if settings.verify != "none":
        _load_authorities(context, settings.authorities)
    if settings.certificate is not None:
        # Always pass a password, even an empty one: without a password OpenSSL would ask for it at the terminal.
        password = await settings.key_password.read() if settings.key_password is not None else ""
        _load_certificate(context, settings.certificate, settings.key or settings.certificate, password)
    return context


def _load_authorities(context: ssl.SSLContext, path: Path | None) -> None:
    """Load the authorities from a file or a folder; those of the platform if `path` is None."""
    try:
        if path is None:
            context.load_default_certs()
        elif path.is_dir():
            context.load_verify_locations(capath=path)
        else:
            context.load_verify_locations(cafile=path)
    except (OSError, ValueError) as error:
        raise _unusable_file_error("tls.authorities", path, error, "a file of PEM certificates") from error


def _load_certificate(context: ssl.SSLContext, certificate: Path, key: Path, password: str) -> None:
    try:
        context.load_cert_chain(certificate, key, password=password)
    except (OSError, ValueError) as error:
        if "KEY_VALUES_MISMATCH" in str(error):
            raise ClusterError(f"tls.key {key} is not the key of tls.certificate {certificate}", Failure.FATAL) from error
        if _is_encrypted(key):
            problem = "tls.key_password does not open it" if password else "give tls.key_password"
            raise ClusterError(f"tls.key {key} is encrypted: {problem}", Failure.FATAL) from error
        if key != certificate and _has_certificates(certificate):
            raise _unusable_file_error("tls.key", key, error, "a PEM file with the private key") from error
        expected = "a PEM file with the certificate and its chain, and with the private key if tls.key is not set"
        raise _unusable_file_error("tls.certificate", certificate, error, expected) from error


def _has_certificates(path: Path) -> bool:
    """Return True if the file contains valid certificates; OpenSSL's error does not tell which of two files is invalid."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except OSError:
        return False
    return True


def _is_encrypted(key: Path) -> bool:
    """Return True if the key file contains `ENCRYPTED`; OpenSSL's error is the same for a wrong password and for a wrong file."""
    try:
        return b"ENCRYPTED" in key.read_bytes()
    except OSError:
        return False


def _unusable_file_error(option: str, path: Path | None, error: Exception, expected: str) -> ClusterError:
    """Make the error about an option's unusable file; `path` None: the platform's file.

    It omits OpenSSL's own text, which names OpenSSL's source files.
    """
    is_system_error = isinstance(error, OSError) and not isinstance(error, ssl.SSLError)
    why = getattr(error, "strerror", None) if is_system_error else "its content is invalid"
    file = "" if path is None else f" {path}"
    return ClusterError(f"{option}{file} cannot be used: {why}; it has to be {expected}", Failure.FATAL)
