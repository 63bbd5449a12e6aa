"""Explains a TLS failure in one sentence that names the option to change."""

import ssl

from mqbridge.net.tls.settings import TlsSettings

_NAME_MISMATCH = frozenset({62, 64})
"""X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH"""
_EXPIRED, _NOT_YET_VALID = 10, 9
"""X509_V_ERR_CERT_HAS_EXPIRED, X509_V_ERR_CERT_NOT_YET_VALID"""
_EXPLANATIONS = (
    ("UNKNOWN_CA", "the server does not know the authority of our certificate: see tls.certificate"),
    ("CERTIFICATE_REQUIRED", "the server demands a certificate of ours: give tls.certificate and tls.key"),
    ("CERTIFICATE_EXPIRED", "the server says that our certificate has expired: renew tls.certificate"),
    ("CERTIFICATE_REVOKED", "the server says that our certificate was revoked: renew tls.certificate"),
    ("BAD_CERTIFICATE", "the server does not accept our certificate, or demands one: see tls.certificate"),
    ("CERTIFICATE_UNKNOWN", "the server does not accept our certificate: see tls.certificate"),
    ("ACCESS_DENIED", "the server refuses our certificate: see tls.certificate"),
    ("PROTOCOL_VERSION", "the server speaks no TLS version that we accept: see tls.minimum_version"),
    ("UNSUPPORTED_PROTOCOL", "the server speaks only TLS versions older than tls.minimum_version"),
    ("HANDSHAKE_FAILURE", "the server found no common cipher, or demands a certificate of ours: see tls.certificate"),
    ("ALERT_INTERNAL_ERROR", "the server failed; some servers do so if they do not know our authority: see tls.certificate"),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS: is this its port without TLS?"),
    ("HTTP_REQUEST", "it does not speak TLS but HTTP: is this the port of a web interface?"),
    ("RECORD_LAYER_FAILURE", "it does not speak TLS: is this its port without TLS?"),
)
"""Parts of OpenSSL's error texts (TLS alerts of the server, and errors of our side) with their explanations.

The first part that occurs in an error text decides."""


def is_permanent(error: Exception) -> bool:
    """Return True if a retry cannot help, as after a TLS alert.

    A retry can help if the connection ended without an alert: a load balancer may have had no servers yet.
    """
    return isinstance(error, ssl.SSLError) and not isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError))


def explain_tls(error: Exception, settings: TlsSettings, name: str) -> str:
    """Explain a TLS failure in one sentence, in which "it" is the server that the caller names before.

    `name` is the name that the server's certificate must contain.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return _explain_untrusted(error, settings, name)
    if isinstance(error, (ConnectionResetError, BrokenPipeError, EOFError, ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return "it ended the connection during the TLS handshake: is this its port for TLS, and does it demand tls.certificate?"
    text = str(error).upper().replace(" ", "_")
    return next((problem for part, problem in _EXPLANATIONS if part in text), f"TLS failed: {error}")


def _explain_untrusted(error: ssl.SSLCertVerificationError, settings: TlsSettings, name: str) -> str:
    """Explain why the server's certificate was rejected."""
    if error.verify_code in _NAME_MISMATCH:
        return f"its certificate is not for {name}: give the name that it is for as tls.server_name"
    if error.verify_code == _EXPIRED:
        return "its certificate, or one that signed it, has expired: it must be renewed at the server"
    if error.verify_code == _NOT_YET_VALID:
        return "its certificate is not valid yet: check the clocks of the server and of this machine"
    authorities = settings.authorities or "by default those of this platform"
    return f"its certificate is signed by no authority that tls.authorities holds ({authorities}): {error.verify_message}"
