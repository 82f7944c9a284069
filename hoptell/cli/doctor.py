"""`hoptell doctor`: which link is broken, and what to do."""

import os

import click

from hoptell import __version__

FAILED = 1


@click.command(
    "doctor",
    epilog="""\b
Examples:
  hoptell doctor
  hoptell doctor --json | jq '.checks[] | select(.status == "fail")'

Exit code 1: something failed. No line ever holds a token.""",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/doctor.md).")
@click.pass_context
def doctor_command(ctx: click.Context, as_json: bool) -> None:
    """Check settings, relay, login, inboxes, tmux and agents, and say what to fix.

    One line a check: ok, info, warn or FAIL. It changes nothing, and takes nobody's name:
    to the relay it is <your name>-check. Behind a link that is broken the next ones are not
    tried.
    """
    from hoptell.doctor import report
    from hoptell.doctor.examine import examine, secrets

    lines = examine()
    hidden = secrets(os.environ)
    if as_json:
        click.echo(report.as_json(lines, __version__, hidden))
    else:
        click.echo(report.as_text(lines, hidden))
    if not report.is_ok(lines):
        ctx.exit(FAILED)
