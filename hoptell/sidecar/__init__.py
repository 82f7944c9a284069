"""The sidecar: the MCP server that runs beside one agent session (README.md).

stdio.py     the wire to the agent, which knows when an answer has left the process
server.py    the five tools, and what the agent is told about them
texts.py     the words: instructions and tool descriptions
mailbox.py   what has arrived: claimed for an answer, gone once the answer has left
delivery.py  the relay's side: store, confirm, announce; send and list
wake.py      when waiting messages are announced, and the interface of every way
waking.py    which way this session is woken, and whether that is proven
channel.py   Claude Code, by a channel notification
claude.py    Claude Code, by the listener of its hooks
hook.py      that listener: `hoptell hook`
registry.py  how listener and sidecar of one Claude Code session find each other
codex.py     Codex, by its queue
codex_daemon.py  what Codex's daemon tells of itself, and is asked to do
presence.py  what a sidecar says of itself to the doctor
session.py   puts them together for the life of one process
"""
