"""The way to the relay, link by link, so that the line that fails names the broken one.

Each link has `LINK_TIMEOUT` seconds. Behind a broken one the others are not tried, which is
said. A relay behind a proxy of this machine's settings is reached by the login alone.
"""

import asyncio
import email.utils
import ipaddress
import ssl
import time
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass
from http.client import HTTPException, parse_headers
from io import BytesIO
from urllib.parse import urlsplit

from hoptell import explain, frames
from hoptell.client import RelayClient, check_name
from hoptell.doctor.basics import source_of
from hoptell.doctor.report import Line, failed, span
from hoptell.errors import HoptellError, LoginRefused
from hoptell.settings import DEFAULT_PORT, PeerSettings, default_name, is_loopback

LINK_TIMEOUT = 5.0
EXPIRY_WARNING = 14 * 86_400
"""Seconds before the end of a certificate from which it is worth a warning."""
CLOCK_TOLERANCE = 60.0
"""Seconds by which clocks may differ: only the ages of messages show it."""
MAX_HEAD_BYTES = 65_536
LINKS = ("dns", "tcp", "tls", "health", "clock", "login")


@dataclass
class Found:
    """What was learned on the way, for the checks after it."""

    peers: list[frames.PeerInfo] | None = None
    """Everyone whom the relay knows, if it let us in."""


class Way:
    """The links between this machine and the relay in `settings`."""

    def __init__(self, settings: PeerSettings, environ: Mapping[str, str], found: Found) -> None:
        parts = urlsplit(settings.relay)
        self._settings = settings
        self._environ = environ
        self._found = found
        self._tls = parts.scheme == "wss"
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if self._tls else 80)
        self._port_named = parts.port is not None
        self._path = parts.path.rstrip("/")
        self._host_header = parts.netloc.rpartition("@")[2]
        self._address = explain.shown_address(settings.relay)
        self._clock: Line | None = None

    async def examine(self) -> AsyncIterator[Line]:
        """Try every link, in order."""
        yield self._relay()
        if (proxy := self._proxy()) is not None:
            skipped = f"not tried: {proxy} leads to {self._host}"
            for check in LINKS[:-1]:
                yield Line(check, "info", skipped)
            yield await self._login()
            return
        broken = None
        for check in LINKS:
            if broken is not None:
                yield Line(check, "info", f"not tried, since {broken} failed")
                continue
            line = await self._link(check)
            if line.status == "fail":
                broken = check
            yield line

    async def _link(self, check: str) -> Line:
        match check:
            case "dns":
                return await self._bounded(check, self._dns())
            case "tcp":
                return await self._bounded(check, self._tcp())
            case "tls":
                return await self._bounded(check, self._certificate())
            case "health":
                return await self._bounded(check, self._health())
            case "clock":
                assert self._clock is not None
                return self._clock
        return await self._login()

    async def _bounded(self, check: str, work: Awaitable[Line]) -> Line:
        try:
            async with asyncio.timeout(LINK_TIMEOUT):
                return await work
        except (OSError, UnicodeError, TimeoutError) as error:
            return self._failed(check, error)

    def _failed(self, check: str, error: Exception) -> Line:
        why = explain.failure(error, self._address, LINK_TIMEOUT)
        if check == "tcp" and not self._port_named:
            return Line(
                check,
                "fail",
                f"{why.problem}, which means port {self._port}",
                f"put the relay's port into HOPTELL_RELAY, usually :{DEFAULT_PORT}; else {why.fix}",
            )
        return failed(check, why)

    def _relay(self) -> Line:
        source = source_of(self._environ, "HOPTELL_RELAY")
        if not self._tls and not is_loopback(self._host):
            return Line(
                "relay",
                "info",
                f"{self._address}, from {source}; what goes there can be read on the way",
                "use wss:// outside of a VPN or a tunnel",
            )
        return Line("relay", "ok", f"{self._address}, from {source}")

    def _proxy(self) -> str | None:
        """The variable that names a proxy for the relay, if one does."""
        if is_loopback(self._host) or urllib.request.proxy_bypass(f"{self._host}:{self._port}"):
            return None
        proxies = urllib.request.getproxies()
        kinds = ("socks", "https") if self._tls else ("socks", "https", "http")
        kind = next((kind for kind in kinds if kind in proxies), None)
        return None if kind is None else f"the proxy in {kind.upper()}_PROXY"

    async def _dns(self) -> Line:
        try:
            ipaddress.ip_address(self._host)
        except ValueError:
            pass
        else:
            return Line("dns", "ok", f"{self._host} is an address, there is nothing to look up")
        found = await asyncio.get_running_loop().getaddrinfo(self._host, self._port, type=1)
        addresses = list(dict.fromkeys(str(one[4][0]) for one in found))
        return Line("dns", "ok", f"{self._host} is {', '.join(addresses[:4])}")

    async def _tcp(self) -> Line:
        _, writer = await asyncio.open_connection(self._host, self._port)
        writer.close()
        return Line("tcp", "ok", f"port {self._port} accepts connections")

    async def _certificate(self) -> Line:
        if not self._tls:
            return Line("tls", "info", "not used: the address is ws://")
        _, writer = await asyncio.open_connection(
            self._host, self._port, ssl=ssl.create_default_context()
        )
        certificate = writer.get_extra_info("peercert") or {}
        writer.transport.abort()
        ends_at = ssl.cert_time_to_seconds(certificate["notAfter"])
        left = ends_at - time.time()
        said = f"the certificate of {self._host} is accepted, for another {span(left)}"
        if left < EXPIRY_WARNING:
            return Line("tls", "warn", said, "renew it on the relay before that")
        return Line("tls", "ok", said)

    async def _health(self) -> Line:
        before = time.time()
        try:
            status, date, body = await self._get(f"{self._path}/healthz")
        except (EOFError, HTTPException, ValueError, asyncio.LimitOverrunError):
            return Line(
                "health",
                "fail",
                f"what answers at {self._address} does not speak HTTP",
                "check HOPTELL_RELAY, and whether it needs wss:// or ws://",
            )
        self._clock = _clock(date, (before + time.time()) / 2)
        if status == 200 and body.strip() == b"ok":
            return Line("health", "ok", "the relay says that it is well")
        if status in (502, 503, 504):
            return Line(
                "health",
                "fail",
                f"a proxy answers with HTTP {status}, but the relay behind it does not",
                "start the relay, or correct the proxy",
            )
        if self._path or status == 426:
            return Line("health", "info", f"there is no /healthz on this way (HTTP {status})")
        return Line(
            "health",
            "fail",
            f"what answers at {self._address} is not a hoptell relay (HTTP {status})",
            "check HOPTELL_RELAY",
        )

    async def _get(self, path: str) -> tuple[int, str | None, bytes]:
        reader, writer = await asyncio.open_connection(
            self._host, self._port, ssl=ssl.create_default_context() if self._tls else None
        )
        try:
            request = (
                f"GET {path} HTTP/1.1\r\nHost: {self._host_header}\r\n"
                "User-Agent: hoptell-doctor\r\nConnection: close\r\n\r\n"
            )
            writer.write(request.encode("ascii"))
            head = BytesIO(await reader.readuntil(b"\r\n\r\n"))
            version, status, *_ = head.readline().decode("latin-1").split(" ", 2)
            if not version.startswith("HTTP/"):
                raise ValueError(version)
            headers = parse_headers(head)
            length = min(int(headers.get("Content-Length", MAX_HEAD_BYTES)), MAX_HEAD_BYTES)
            body = b""
            while len(body) < length and (part := await reader.read(length - len(body))):
                body += part
            return int(status), headers.get("Date"), body
        finally:
            writer.transport.abort()

    async def _login(self) -> Line:
        if self._settings.token is None or self._settings.token.startswith("sha256:"):
            return Line("login", "info", "not tried, since token failed")
        name = check_name(self._settings.name or default_name())
        client = RelayClient(
            self._settings, name=name, mode="send", roles=[], send_timeout=LINK_TIMEOUT
        )
        try:
            async with client:
                await client.wait_connected(LINK_TIMEOUT)
                self._found.peers = await client.list_peers()
        except LoginRefused as refused:
            return self._refused(refused)
        except HoptellError as error:
            return failed("login", error)
        online = sum(peer.online for peer in self._found.peers)
        said = f"the relay lets us in, and knows {len(self._found.peers)} peers ({online} online)"
        return Line("login", "ok", said)

    def _refused(self, refused: LoginRefused) -> Line:
        said = f" ({refused.said})" if refused.said else ""
        if refused.code == frames.CLOSE_BAD_TOKEN:
            source = source_of(self._environ, "HOPTELL_TOKEN")
            how = (
                "set HOPTELL_TOKEN there to the relay's token"
                if source == "the environment"
                else "put the relay's token there, with `hoptell init --relay"
                f" {self._address} --token-stdin --force`"
            )
            return Line(
                "login",
                "fail",
                f"the relay does not know the token from {source}",
                f"{how}, or ask its operator for one",
            )
        if refused.code == frames.CLOSE_NAME_REFUSED:
            return Line("login", "fail", f"the relay refuses the name{said}", "set HOPTELL_NAME")
        problem = f"the relay does not understand this hoptell{said}"
        return Line("login", "fail", problem, explain.LOGIN_FIXES[refused.code])


def _clock(date: str | None, here: float) -> Line:
    try:
        there = email.utils.parsedate_to_datetime(date or "").timestamp()
    except ValueError:
        return Line("clock", "info", "the relay does not tell its time")
    difference = here - there - 0.5  # it tells whole seconds
    if abs(difference) <= CLOCK_TOLERANCE:
        return Line("clock", "ok", "within a minute of the relay's")
    direction = "ahead of" if difference > 0 else "behind"
    return Line(
        "clock",
        "warn",
        f"this machine is {span(abs(difference))} {direction} the relay, so ages of messages"
        " are wrong",
        "set the clocks",
    )


async def name(
    settings: PeerSettings, environ: Mapping[str, str], found: Found
) -> AsyncIterator[Line]:
    """The peer name and roles."""
    roles = f"; roles {', '.join(settings.roles)}" if settings.roles else ""
    if settings.name is None:
        shown = default_name().rpartition("-")[0]
        yield Line(
            "name",
            "info",
            f"each session is {shown}-<its process id>{roles}",
            "give one a name with HOPTELL_NAME=name",
        )
        return
    source = source_of(environ, "HOPTELL_NAME")
    yield Line("name", "ok", f"{settings.name}, from {source}{roles}{_now(settings, found)}")
    if source not in ("the environment", "its default"):
        yield Line(
            "name",
            "info",
            f"every session here that has no other name is {settings.name}, one at a time",
            "start further ones as HOPTELL_NAME=name",
        )


def _now(settings: PeerSettings, found: Found) -> str:
    peer = next((peer for peer in found.peers or [] if peer.name == settings.name), None)
    if peer is None or not peer.online:
        return "" if found.peers is None else "; no session is online with it"
    wake = f", woken by {peer.wake}" if peer.wake else ""
    return f"; online on {peer.host or 'an unnamed machine'}{wake}"
