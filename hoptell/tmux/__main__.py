"""What runs inside the tmux session: `launch FILE` in the agent's pane, `inject FOLDER` beside it.

Started by session.py with `python -P -m hoptell.tmux`: -P, so that nothing is imported from the
folder that the agent works in.
"""

import sys
from pathlib import Path


def main(role: str, path: str) -> int:
    """Do one of the two; returns the exit code."""
    if role == "launch":
        from hoptell.tmux.launch import become_agent

        become_agent(Path(path))
        return 127
    from hoptell.tmux.injector import main as inject

    inject(Path(path))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
