"""Becomes the agent, inside the pane: with the caller's environment, and through no shell.

A tmux server that runs already knows nothing of the caller's environment, and one that we start
keeps its own for all later sessions, where any of them could read a token. So the caller's goes
by a private file, which is gone before the agent runs. Command and folder go the same way, as
tmux would read formats and quotes in them.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hoptell import files

FROM_PANE = ("TERM", "TMUX", "TMUX_PANE", "TERM_PROGRAM", "TERM_PROGRAM_VERSION")
"""Variables that tmux sets for what runs in its panes."""


def write_plan(
    file: Path, command: Sequence[str], environ: Mapping[str, str], cwd: str | Path
) -> None:
    """Write what `become_agent` needs; the file must not exist, and is private."""
    plan = {"command": list(command), "environ": dict(environ), "cwd": str(cwd)}
    data = json.dumps(plan, ensure_ascii=False).encode("utf-8", "surrogateescape")
    files.write(file, data, new=True)


def become_agent(file: Path) -> None:
    """Replace this process by the agent; returns only if that fails, having said why."""
    plan = json.loads(file.read_text(encoding="utf-8", errors="surrogateescape"))
    file.unlink()
    environ = {name: value for name, value in plan["environ"].items() if name not in FROM_PANE}
    environ |= {name: os.environ[name] for name in FROM_PANE if name in os.environ}
    try:
        os.chdir(plan["cwd"])
        os.execvpe(plan["command"][0], plan["command"], environ)
    except OSError as error:
        print(f"hoptell: cannot start {plan['command'][0]}: {error.strerror}", file=sys.stderr)
