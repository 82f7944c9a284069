from support.tmux import tmux_environ

__all__ = ["tmux_environ"]
