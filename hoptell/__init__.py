"""hoptell: a self-hosted relay that lets AI coding agents talk to each other.

A module imports only from what stands above it; test/test_layers.py holds these arrows.

Both sides of the wire:

errors.py        every exception
names.py         peer names, roles, addresses
frames.py        the wire: frames, limits, close codes; decode and encode
folders.py       the user's home folder, and paths that begin there
files.py         files and folders that only their owner may see
replacing.py     changing a file that people edit too; it stays whose it was
env_file.py      the settings file: where it is, what a line means, changing it
settings.py      one dataclass a role, from environment and file

The relay's side:

relay/           the daemon: routes messages and holds what is not yet confirmed

The agent's side:

client.py        RelayClient: connect, send, receive, come back
explain.py       why there is no connection, in one sentence each
programs.py      the agents' programs: where they are, and what they call hoptell
processes.py     which process is it, and does it still run?
inbox.py         the folder where deliveries wait for the agent
inbox_files.py   what lies there: names, and what is in a message's file
seen.py          which deliveries that folder has had
watch.py         notices that something appeared in it
departure.py     the moment in which messages leave a process
render.py        a message as text that cannot lie about where it ends
sidecar/         `hoptell mcp`: MCP tools, and waking the session
tmux/            `hoptell tmux`: an agent in a pane, and messages typed into it
setup/           `hoptell init`: settings file and agents' configurations
doctor/          `hoptell doctor`: what does not work, and why

The command line:

cli/             a module a command group: options in, one library call, words out
__main__.py      the same as the `hoptell` command
"""

__version__ = "0.1.0"
