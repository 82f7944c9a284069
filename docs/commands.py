"""Write docs/commands.md from what `hoptell COMMAND --help` prints: python docs/commands.py

test/test_docs.py fails when the file is not what this would write.
"""

from collections.abc import Iterator
from pathlib import Path

import click

from hoptell.cli import command_line

FILE = Path(__file__).with_suffix(".md")
HEAD = """\
# Commands

What `--help` prints, for reading in one place. This file is made by `python docs/commands.py`.

Shell completion, for bash 4.4 or newer, in `~/.bashrc`:

```sh
eval "$(_HOPTELL_COMPLETE=bash_source hoptell)"
```

For zsh and fish it is `zsh_source` and `fish_source`.
"""


def commands(command: click.Command, context: click.Context) -> Iterator[click.Context]:
    """The command and all below it that are for people, in the order of the help."""
    yield context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None and not found.hidden:
                yield from commands(found, _context(found, name, context))


def _context(command: click.Command, name: str, parent: click.Context | None) -> click.Context:
    # What click takes for a terminal of 80 columns.
    extra = {"terminal_width": 78, **command.context_settings}
    return click.Context(command, parent, info_name=name, color=False, **extra)


def page() -> str:
    """The text of docs/commands.md."""
    sections = [HEAD]
    for context in commands(command_line, _context(command_line, "hoptell", None)):
        help_text = context.get_help().rstrip()
        sections.append(f"## {context.command_path}\n\n```\n{help_text}\n```\n")
    return "\n".join(sections)


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
