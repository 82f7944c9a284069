"""Why there is no connection to the relay: one sentence for each way in which it can fail.

Each says what to do. `lasting` in the error tells what does not pass while one waits: a
certificate, a wrong address. Nothing here does I/O; the client asks, and the command line and
the sidecar show what it says.
"""

import errno
import os
import socket
import ssl
from typing import NamedTuple
from urllib.parse import urlsplit

from websockets.exceptions import (
    ConnectionClosed,
    InvalidMessage,
    InvalidProxy,
    InvalidProxyStatus,
    InvalidStatus,
    InvalidURI,
    ProxyError,
)

from hoptell import frames
from hoptell.errors import (
    ConfigurationError,
    HoptellError,
    LoginRefused,
    RelayUnreachable,
    Replaced,
)

LOGIN_FIXES = {
    frames.CLOSE_BAD_HELLO: "use the same version of hoptell here and on the relay",
    frames.CLOSE_NAME_REFUSED: "use another HOPTELL_NAME, or other HOPTELL_ROLES",
    frames.CLOSE_BAD_TOKEN: "set HOPTELL_TOKEN to the relay's token, or to your own as a member",
    frames.CLOSE_BAD_VERSION: "use the same version of hoptell here and on the relay",
}
"""What to do about each close code that refuses a login."""


class _Why(NamedTuple):
    problem: str
    fix: str | None
    lasting: bool = False


def failure(
    error: Exception, address: str, waited: float, through_proxy: bool = False
) -> HoptellError:
    """The sentence for an attempt to connect that failed, after `waited` seconds at most."""
    if _is_the_proxys(error, through_proxy):
        why = _proxy_explanation(error, address)
    else:
        why = _explanation(error, address, waited)
    if isinstance(error, InvalidURI):
        return ConfigurationError(why.problem, why.fix)
    return RelayUnreachable(why.problem, why.fix, lasting=why.lasting)


def close(closed: ConnectionClosed, address: str, name: str) -> HoptellError:
    """What it means for the peer `name` that its connection ended in this way."""
    if closed.rcvd is None:
        return RelayUnreachable(f"the connection to {address} was lost")
    code, reason = closed.rcvd.code, printable(closed.rcvd.reason)
    if code in frames.CLOSES_FOR_GOOD:
        said = reason or LOGIN_FIXES[code]
        return LoginRefused(f"{address} does not let {name} in: {said}", code=code, said=reason)
    if code == frames.CLOSE_REPLACED:
        return Replaced(
            f"another session went online as {name}",
            "stop it, or give one of the two another HOPTELL_NAME (this one comes back when the"
            " name is free)",
        )
    return RelayUnreachable(f"{address} closed the connection ({code} {reason}".rstrip() + ")")


def _explanation(error: Exception, address: str, waited: float) -> _Why:
    host = urlsplit(address).hostname or ""
    match error:
        case ssl.SSLCertVerificationError():
            return _certificate_explanation(error, host)
        case OSError() if _is_refusal(error):
            return _Why(
                f"no relay answers at {address}",
                "start one with `hoptell relay`, or set HOPTELL_RELAY",
            )
        case ssl.SSLError() | ConnectionError() if address.startswith("wss:"):
            return _Why(
                f"{address} does not speak TLS as wss:// needs",
                "use ws://, or give the relay HOPTELL_TLS_CERT and HOPTELL_TLS_KEY",
                lasting=isinstance(error, ssl.SSLError),
            )
        case socket.gaierror() | UnicodeError():
            again = isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN
            return _Why(
                f"the host name {host} cannot be found",
                "check HOPTELL_RELAY and the network",
                lasting=not again,
            )
        case TimeoutError():
            return _Why(
                f"{address} did not answer within {waited:g} s",
                "check HOPTELL_RELAY, the network and its firewalls",
            )
        case OSError():
            return _Why(
                f"there is no way to {address} ({error.strerror or type(error).__name__})",
                "check HOPTELL_RELAY and the network",
            )
        case InvalidURI():
            problem = f"HOPTELL_RELAY is {address}, which is not ws://host:port or wss://host"
            return _Why(problem, None, lasting=True)
        case InvalidStatus():
            return _status_explanation(error.response.status_code, address)
        case InvalidMessage() if isinstance(error.__cause__, EOFError):
            return _Why(
                f"{address} closed the connection before answering",
                "check that the relay is up, and whether it needs wss://",
            )
        case _:
            return _Why(
                f"what answers at {address} is not a hoptell relay",
                "check HOPTELL_RELAY, and whether it needs wss://",
                lasting=True,
            )


def _is_the_proxys(error: Exception, through_proxy: bool) -> bool:
    if isinstance(error, InvalidProxy | ProxyError | ImportError):
        return True
    # Behind a proxy, TLS is the first that is about the relay itself.
    return through_proxy and isinstance(error, OSError) and not isinstance(error, ssl.SSLError)


def _proxy_explanation(error: Exception, address: str) -> _Why:
    host = urlsplit(address).hostname
    match error:
        case InvalidProxyStatus():
            said = f"HTTP {error.response.status_code}"
        case OSError() if error.strerror:
            said = error.strerror
        case ImportError():
            said = "SOCKS needs the Python package python-socks"
        case _:
            said = type(error).__name__
    return _Why(
        f"the proxy of this machine does not lead to {address} ({said})",
        f"correct HTTPS_PROXY, or add {host} to NO_PROXY",
    )


def _certificate_explanation(error: ssl.SSLCertVerificationError, host: str) -> _Why:
    match error.verify_code:
        case 10:
            why = f"the certificate of {host} has expired", "renew it on the relay"
        case 9:
            why = f"the certificate of {host} is not valid yet", "check the clocks on both sides"
        case 18 | 19 | 20 | 21:
            file = os.environ.get("SSL_CERT_FILE")
            if file and not os.access(file, os.R_OK):
                why = f"SSL_CERT_FILE names {file!r}, which cannot be read", "correct it"
            else:
                why = (
                    f"this machine does not know who signed the certificate of {host}",
                    "set SSL_CERT_FILE to its signer's certificate (or to its own if it signed"
                    " itself)",
                )
        case 62 | 64:
            why = (
                f"the certificate is not for {host}",
                "put the name that it is for in HOPTELL_RELAY",
            )
        case _:
            why = (
                f"the certificate of {host} is not accepted ({error.verify_message})",
                "give the relay another one",
            )
    return _Why(*why, lasting=True)


def _status_explanation(status: int, address: str) -> _Why:
    if status in (500, 502, 503, 504):
        return _Why(
            f"a proxy answers at {address} with HTTP {status}, but the relay behind it does not",
            "start the relay, or correct the proxy",
        )
    if status in (301, 302, 303, 307, 308):
        return _Why(
            f"{address} redirects to another address (HTTP {status})",
            "set HOPTELL_RELAY to the final one",
            lasting=True,
        )
    return _Why(
        f"what answers at {address} is not a hoptell relay (HTTP {status})",
        "check HOPTELL_RELAY, and that a proxy in between lets WebSocket through",
        lasting=True,
    )


def _is_refusal(error: OSError) -> bool:
    # With several addresses of one host asyncio puts all their errors into one sentence.
    refused = errno.ECONNREFUSED
    return error.errno == refused or f"[Errno {refused}]" in str(error)


def shown_address(url: str) -> str:
    """The relay's URL as it may be shown: a query could hold a secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def printable(text: str) -> str:
    """What the relay says, in one line that a terminal shows as it is."""
    return "".join(c if c.isprintable() else " " for c in text[:500]).strip()
