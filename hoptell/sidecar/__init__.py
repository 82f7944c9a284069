"""The sidecar: the MCP server that runs beside one agent session (SPEC.md, 6).

stdio.py     the wire to the agent, which knows when an answer has left the process
server.py    the five tools, and what the agent is told about them
texts.py     the words: instructions, descriptions, answers
mailbox.py   what has arrived: claimed for an answer, gone once the answer has left
delivery.py  the relay's side: store, confirm, announce; send and list
wake.py      when waiting messages are announced; channel.py one way of doing it
session.py   puts them together for the life of one process
"""
