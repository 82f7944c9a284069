"""The relay: authenticates peers, routes messages, holds what is not yet confirmed."""
