"""A real nginx with TLS before a relay, set up as examples/proxy/nginx.conf says."""

import contextlib
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CERTIFICATES = ROOT / "test" / "support" / "certificates"
CERTIFICATE = CERTIFICATES / "good.pem"
AUTHORITY = CERTIFICATES / "authority.pem"
"""What SSL_CERT_FILE must name for a client to trust it."""
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
"""Where it is, if it is installed."""


@contextlib.contextmanager
def running_nginx(folder: Path, relay_port: int, *, idle: str = "75s") -> Iterator[str]:
    """Start it with its files in `folder`; the URL of the relay behind it."""
    assert NGINX is not None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    block = (ROOT / "examples" / "proxy" / "nginx.conf").read_text()
    for pattern, replacement in (
        (r"listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        (r"(ssl_certificate) .*;", rf"\1 {CERTIFICATE};"),
        (r"(ssl_certificate_key) .*;", rf"\1 {CERTIFICATE};"),
        (r"127\.0\.0\.1:7777", f"127.0.0.1:{relay_port}"),
        (r"75s", idle),
    ):
        block, count = re.subn(pattern, replacement, block)
        assert count
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log stderr; worker_processes 1;\n"
        "events {}\n"
        f"http {{ access_log off; client_body_temp_path {folder}/body;"
        f" proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;"
        f" uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;\n{block}\n}}\n"
    )
    process = subprocess.Popen(
        [NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf")], stderr=subprocess.DEVNULL
    )
    try:
        _wait_until_it_listens(process, port)
        yield f"wss://127.0.0.1:{port}/hoptell"
    finally:
        process.terminate()
        process.wait(10)


def _wait_until_it_listens(process: "subprocess.Popen[bytes]", port: int) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except ConnectionRefusedError:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
