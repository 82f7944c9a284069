"""`hoptell hook` and `hoptell hooks`: how Claude Code wakes up (README.md).

Exit code 2 of `hoptell hook` wakes the session, so nothing but a notice may end in 2. Claude
Code reads the notice from standard error.
"""

import json
import os
import sys

import click

from hoptell.errors import HoptellError
from hoptell.settings import state_folder
from hoptell.setup import hooks

WAKE = 2


@click.command("hooks")
def hooks_command() -> None:
    """Print hook settings that let Claude Code wake up when messages arrive.

    \b
    Put them into ~/.claude/settings.json (or a project's .claude/settings.json),
    next to what is there, and restart Claude Code. With hoptell's plugin there is
    nothing to do: it brings them along.

    \b
    Example:
      hoptell hooks > hooks.json; claude --settings hooks.json
    """
    python = os.path.abspath(sys.executable)
    click.echo(json.dumps(hooks.wanted(python, ["-P", "-m", "hoptell", "hook"]), indent=2))


@click.command("hook", hidden=True)
@click.option("--exit-code", default=WAKE, hidden=True, help="Exit with this when messages wait.")
def hook_command(exit_code: int) -> None:
    """Wait beside a Claude Code session and wake it when messages arrive.

    Claude Code runs this (see `hoptell hooks`); by hand it is of no use.
    """
    from hoptell.sidecar import hook, registry

    claude = registry.claude_code()
    if claude is None:
        raise HoptellError("Claude Code runs this by itself: see 'hoptell hooks'")
    notice = hook.listen(state_folder(), claude, take_over=_event() in hook.TAKES_OVER)
    if notice is None:
        return
    # os._exit: no clean-up of Python's may turn the wake-up into something else.
    os.write(2, f"{notice}\n".encode())
    os._exit(exit_code)


def _event() -> str:
    """Which hook event this is; Claude Code writes it as JSON to standard input."""
    try:
        event = json.loads(sys.stdin.buffer.read() or b"{}").get("hook_event_name")
    except (ValueError, AttributeError):
        return ""
    return event if isinstance(event, str) else ""
