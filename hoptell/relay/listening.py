"""Where the relay listens: sockets, and the words for why one cannot be had."""

import errno
import os
import socket
from typing import Any

from hoptell import settings
from hoptell.errors import ConfigurationError

BACKLOG = 2048
"""Connections that wait to be accepted. At 100, a thousand clients that come back at once
take 4 s instead of 0.1 s, because the system drops the first packets of the rest."""


def listen(host: str, port: int) -> list[socket.socket]:
    """Make listening sockets for every address that `host` stands for, all on one port.

    Args:
        host: an address or name of this machine; `*` for all addresses, IPv4 and IPv6.
        port: 0 for any free one.

    Raises:
        ConfigurationError: the port is taken, or the host is not this machine's.
    """
    sockets: list[socket.socket] = []
    problem: OSError | None = None
    for family, address in _resolve(host, port):
        if port == 0 and sockets:
            address = (address[0], sockets[0].getsockname()[1], *address[2:])
        try:
            sockets.append(_listen_on(family, address))
        except OSError as error:
            problem = problem or error
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                break  # else a name has an IPv6 address that this machine does not use
        else:
            continue
    if not sockets or (problem is not None and problem.errno == errno.EADDRINUSE):
        for listener in sockets:
            listener.close()
        raise ConfigurationError(_listen_problem(host, port, problem))
    return sockets


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens on `host`."""
    try:
        addresses = [address[0] for _, address in _resolve(host, 0)]
    except ConfigurationError:
        return False
    return all(settings.is_loopback(address) for address in addresses)


def _resolve(host: str, port: int) -> list[tuple[int, tuple[Any, ...]]]:
    name = None if host == "*" else host
    try:
        found = socket.getaddrinfo(
            name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE, proto=socket.IPPROTO_TCP
        )
    except (OSError, UnicodeError):
        raise ConfigurationError(
            f"{host!r} is not a host name or address that this machine knows: use 127.0.0.1 for"
            " this machine only, 0.0.0.0 for all its addresses"
        ) from None
    return [(family, address) for family, _, _, _, address in found]


def _listen_on(family: int, address: tuple[Any, ...]) -> socket.socket:
    # With the protocol named: only then does asyncio switch off Nagle's algorithm for what is
    # accepted here, which would hold back a message for 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)  # at once: only now the port is ours
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


def _listen_problem(host: str, port: int, problem: OSError | None) -> str:
    match problem and problem.errno:
        case errno.EADDRINUSE:
            return (
                f"port {port} of {host} is in use, perhaps by another relay: stop that, or choose"
                " another port with --port"
            )
        case errno.EADDRNOTAVAIL | errno.EAFNOSUPPORT:
            return (
                f"{host} is not an address of this machine: use 127.0.0.1 for this machine only,"
                " 0.0.0.0 for all its addresses"
            )
        case errno.EACCES:
            return f"this user may not listen on port {port}: choose one over 1023 with --port"
    return f"cannot listen on {host}, port {port}: {problem and problem.strerror}"
