"""Terminal agents: an agent in a tmux pane, and messages typed into its prompt (README.md).

screen.py      what an agent's screen says. Pure
typist.py      whether to paste, press Enter, wait or give up. Pure, `now` is passed in
batch.py       which waiting messages are typed together, and which are only announced. Pure
foreground.py  who is in the foreground of a terminal
pane.py        tmux: read the pane, paste, press Enter
folder.py      the session's private folder, and its lock
session.py     start the agent in a session of its own, or find the session again
launch.py      becomes the agent, inside the pane
status.py      what the injector does and why it holds, for the doctor
unfinished.py  what is being typed, for the injector that comes after a kill
injector.py    deliveries from the relay into the pane
__main__.py    which of the two runs inside the session: launch or injector
"""
