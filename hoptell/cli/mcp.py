"""`hoptell mcp`: the sidecar. Agents start it; standard input and output are theirs."""

import gc
import logging
import os
import sys

import click


@click.command("mcp")
def mcp_command() -> None:
    """Run the MCP server beside one agent session.

    Agents start it themselves, once it is in their settings; it speaks MCP on standard input
    and output, connects to the relay as HOPTELL_NAME, and ends with the agent.

    \b
    Examples:
      claude mcp add --scope user hoptell -- hoptell mcp
      codex mcp add hoptell --env HOPTELL_NAME=alice -- hoptell mcp
    """
    parent = os.getppid()  # at once: it may be gone by the time that everything is imported
    logging.basicConfig(
        stream=sys.stderr, level=logging.WARNING, format="hoptell mcp: %(levelname)s: %(message)s"
    )
    logging.captureWarnings(True)
    if sys.stdin is not None and sys.stdin.isatty():
        click.echo(
            "hoptell mcp: agents start this; it speaks JSON-RPC here (Ctrl-D ends)", err=True
        )

    gc.disable()  # while importing it finds nothing: 60 of 450 ms less
    from hoptell.sidecar.session import main

    gc.freeze()
    gc.enable()
    main(parent)
