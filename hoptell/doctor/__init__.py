"""What `hoptell doctor` looks at, one small check after the other; nothing is changed.

report.py    lines, and their two forms. Pure
basics.py    Python, the system, the settings
network.py   the way to the relay, link by link
sessions.py  sidecars, hook listeners, inboxes, agents
terminal.py  tmux and its injectors
examine.py   all checks, in their order
"""
