"""Setting up this machine: hoptell's own settings file, and the agents that are installed."""
