"""TLS that the relay serves itself: `wss://` and `https://` (HOPTELL_TLS_CERT, HOPTELL_TLS_KEY)."""

import ssl
from pathlib import Path

from hoptell.errors import ConfigurationError


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """A context for a listening socket: TLS 1.2 or newer, and the ciphers that ssl recommends.

    Raises:
        ConfigurationError: a file cannot be read, or the two do not belong together.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    load(context, certificate, key)
    return context


def load(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Read the files again; connections that come from now on get the new certificate.

    Raises:
        ConfigurationError: as `server_context`; the context is as before.
    """
    # Into another one first: a failure in the middle would leave a half-changed context.
    for target in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), context):
        try:
            target.load_cert_chain(certificate, key, password=_no_password)
        except ssl.SSLError as error:
            raise ConfigurationError(_problem(certificate, key, error)) from None
        except OSError as error:
            raise ConfigurationError(
                f"cannot read HOPTELL_TLS_CERT ({certificate}) or HOPTELL_TLS_KEY ({key}):"
                f" {error.strerror}"
            ) from None


def _no_password() -> str:
    """A key with a passphrase would have OpenSSL ask for it on the terminal: it is refused."""
    return ""


def _problem(certificate: Path, key: Path, error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"the key {key} does not belong to the certificate {certificate}: give its own"
    return (
        f"the certificate {certificate} or the key {key} is not PEM, or has a passphrase: give a"
        " PEM certificate chain and its key without one"
    )
