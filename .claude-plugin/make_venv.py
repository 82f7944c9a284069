"""Make the plugin's virtual environment, once: make_venv.py VENV SOURCE.

The MCP server and the hook start at the same moment and both come here: a lock lets one of
them work while the other waits. The file `complete` is written last, so that an environment
whose making was interrupted is made again. What does the making inherits the lock, since Claude
Code ends a server that takes too long to start: the other one then waits for it all the same.
"""

import fcntl
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

PAUSE = 600
"""Seconds without another attempt after one that failed; hooks come here at every turn."""


def main(venv: Path, source: Path) -> int:
    venv.parent.mkdir(parents=True, exist_ok=True)
    failed = venv.with_name(f"{venv.name}.failed")
    with venv.with_name(f"{venv.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (venv / "complete").exists():
            return 0
        if failed.exists() and time.time() - failed.stat().st_mtime < PAUSE:
            print(f"hoptell: not installed; what went wrong is in {failed}", file=sys.stderr)
            return 1
        shutil.rmtree(venv, ignore_errors=True)
        problem = make(venv, source, lock.fileno())
        if problem is None:
            failed.unlink(missing_ok=True)
            (venv / "complete").touch()
            return 0
        failed.write_text(problem)
    print(
        "hoptell: could not be installed into its own environment: install it yourself, for"
        f" example with `pipx install {shlex.quote(str(source))}` ({failed} has the details)",
        file=sys.stderr,
    )
    return 1


def make(venv: Path, source: Path, lock: int) -> str | None:
    """Make the environment; what the failing step printed, if one fails."""
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    for step in ([sys.executable, "-m", "venv", str(venv)], [*pip, str(source)]):
        try:
            done = subprocess.run(step, capture_output=True, text=True, pass_fds=[lock])
        except OSError as error:
            return f"{step[0]}: {error.strerror}\n"
        if done.returncode != 0:
            return done.stdout + done.stderr
    return None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
