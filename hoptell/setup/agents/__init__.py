"""The agent programs that hoptell can be registered with: one module each.

A description tells whether the agent is here, what it has of hoptell already, and the steps
that register it: a command of the agent's own, or a change of its file. Steps are shown before
they are carried out, are none where all is done, keep whatever else is there, and never hold a
token: the sidecar finds it in hoptell's settings file by itself.

**Names.** Two sessions with one name replace each other, so a name stands in an agent's
configuration only where a session could not get it otherwise: Codex, Antigravity and Cursor
do not hand their environment on. The others are started as `HOPTELL_NAME=name agent`.

What a description is:

agent.py        what has to be known of an agent; registrations, and the steps to one
json_file.py    agents that read their servers from a JSON file

The agents, each in its module, and here in the table:

antigravity.py  by its own command
claude.py       Claude Code: the plugin, or server and hooks by path
codex.py        its TOML file
cursor.py       a JSON file
gemini.py       a JSON file
opencode.py     a JSON file
table.py        all of them, in the order in which they are shown
"""
