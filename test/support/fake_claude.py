"""A process that starts hooks as Claude Code does, and calls itself `claude`.

Run as a program it takes commands as JSON lines and reports what its hooks did:
`{"event": NAME}` starts a hook, `{"run": [COMMAND…]}` starts any other child.
"""

import asyncio
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Self

from hoptell import processes
from hoptell.processes import Process


class FakeClaude:
    """The process from the test's side. An async context manager."""

    def __init__(self, home: Path, **environment: str) -> None:
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "HOPTELL_HOME": str(home),
            "CLAUDECODE": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),
            **environment,
        }
        self._ends: dict[int, dict[str, Any]] = {}
        self._news = asyncio.Condition()
        self._started: asyncio.Queue[int] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        self._child = await asyncio.create_subprocess_exec(
            sys.executable, __file__,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self._environment,
        )  # fmt: skip
        assert self._child.stdout is not None
        await self._child.stdout.readline()
        self._reader = asyncio.create_task(self._read())
        return self

    @property
    def process(self) -> Process:
        process = processes.of(self._child.pid)
        assert process is not None
        return process

    async def hook(self, event: str = "Stop") -> int:
        """Start a hook for an event; its pid."""
        return await self._ask({"event": event})

    async def run(self, *command: str) -> int:
        return await self._ask({"run": command})

    async def _ask(self, command: dict[str, Any]) -> int:
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(command).encode() + b"\n")
        async with asyncio.timeout(5):
            return await self._started.get()

    async def end_of(self, pid: int) -> tuple[int, str]:
        """Exit code and standard error of a hook, once it has ended."""
        async with asyncio.timeout(10), self._news:
            await self._news.wait_for(lambda: pid in self._ends)
        return self._ends[pid]["code"], self._ends[pid]["stderr"]

    def kill(self) -> None:
        self._child.kill()

    async def _read(self) -> None:
        assert self._child.stdout is not None
        async for line in self._child.stdout:
            news = json.loads(line)
            if "code" not in news:
                self._started.put_nowait(news["pid"])
                continue
            async with self._news:
                self._ends[news["pid"]] = news
                self._news.notify_all()

    async def __aexit__(self, *exception: object) -> None:
        if self._child.returncode is None:
            assert self._child.stdin is not None
            self._child.stdin.close()
        await self._child.wait()
        await self._reader


def _main() -> None:
    Path("/proc/self/comm").write_text("claude")
    lock = threading.Lock()
    children: list[subprocess.Popen[str]] = []

    def say(**news: object) -> None:
        with lock:
            print(json.dumps(news), flush=True)

    def watch(child: "subprocess.Popen[str]", text: str | None) -> None:
        _, stderr = child.communicate(text)
        say(pid=child.pid, code=child.returncode, stderr=stderr)

    say(ready=True)
    for line in sys.stdin:
        order = json.loads(line)
        command = order.get("run") or [sys.executable, "-m", "hoptell", "hook"]
        text = json.dumps({"hook_event_name": order["event"]}) if "event" in order else None
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE if text else subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        children.append(child)
        say(pid=child.pid)
        threading.Thread(target=watch, args=(child, text)).start()
    for child in children:
        child.terminate()


if __name__ == "__main__":
    _main()
