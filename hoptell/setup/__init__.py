"""Setting up this machine: hoptell's own settings file, and the agents that are installed.

machine.py        whose machine, which hoptell, where programs are
files.py          changing files that belong to somebody else
json_text.py      changing JSON at the places concerned alone; pure
hooks.py          the hook settings that let Claude Code be woken
agents/           one module for each agent: what it has of hoptell, how to register it
settings_file.py  hoptell's own settings file, made or changed line by line
"""
