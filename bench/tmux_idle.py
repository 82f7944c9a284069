"""How much CPU the injector of an idle agent uses: a minute of `hoptell tmux`, measured.

    python bench/tmux_idle.py [SECONDS]

It starts a relay, a private tmux and a stand-in agent, and then does nothing, as most agents do
most of the time. Measured are the injector and the tmux server, in user and system time.
Exits 1 if the injector uses 1% of a core or more.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT = 1.0
"""Percent of a core."""

# Draws an empty prompt as Claude Code does, and waits: the injector takes it for an idle agent.
AGENT = r"""
import sys, time
rule = "\u2500" * 80
sys.stdout.write(f"\x1b[?1049h\x1b]2;\u2733 idle\x07{rule}\n\u276f\u00a0\n{rule}\n  ?\x1b[2;3H")
sys.stdout.flush()
time.sleep(100000)
"""


def main(seconds: float) -> int:
    folder = Path(tempfile.mkdtemp(prefix="hoptell-bench-", dir="/tmp"))
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "TMUX_TMPDIR": str(folder)}
    environ |= {"LANG": "C.UTF-8", "HOPTELL_TOKEN": "only-for-this-benchmark"}
    hoptell = [sys.executable, "-m", "hoptell"]
    relay = subprocess.Popen(
        [*hoptell, "relay", "--port", "0"], env=environ, stderr=subprocess.PIPE, text=True
    )
    try:
        environ["HOPTELL_RELAY"] = f"ws://127.0.0.1:{port_of(relay)}"
        agent = [sys.executable, "-c", AGENT]
        subprocess.run(
            [*hoptell, "tmux", "idle", "--", *agent],
            env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        return measure(folder, environ, seconds)
    finally:
        subprocess.run(["tmux", "kill-server"], env=environ, capture_output=True, check=False)
        relay.terminate()
        relay.communicate()
        shutil.rmtree(folder, ignore_errors=True)


def port_of(relay: "subprocess.Popen[str]") -> int:
    """The port in the relay's first lines."""
    assert relay.stderr is not None
    for line in relay.stderr:
        if "listening" in line:
            return int(line.strip().rpartition(":")[2].strip('"}'))
    raise SystemExit("the relay did not start")


def measure(folder: Path, environ: dict[str, str], seconds: float) -> int:
    status_file = folder / ".hoptell" / "tmux" / "idle" / "status.json"
    deadline = time.monotonic() + 20
    while not (status_file.exists() and json.loads(status_file.read_text())["connected"]):
        if time.monotonic() > deadline:
            raise SystemExit("the injector did not get online")
        time.sleep(0.2)
    time.sleep(5)  # the start, in which the agent's screen is looked at
    status = json.loads(status_file.read_text())
    server = subprocess.run(
        ["tmux", "display-message", "-p", "#{pid}"],
        env=environ, capture_output=True, text=True, check=True,
    )  # fmt: skip
    pids = {"injector": status["pid"], "tmux server": int(server.stdout)}
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    time.sleep(seconds)
    used = {name: 100 * (cpu_seconds(pid) - before[name]) / seconds for name, pid in pids.items()}
    memory = resident(pids["injector"])
    print(f"idle for {seconds:.0f} s, state: {status['state']}")
    for name, percent in used.items():
        print(f"  {name:12} {percent:.3f}% of a core")
    print(f"  {'injector':12} {memory:.0f} MB resident")
    return 0 if used["injector"] < LIMIT else 1


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def resident(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0))
