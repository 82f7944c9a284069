"""hoptell: a self-hosted relay that lets AI coding agents talk to each other."""

__version__ = "0.1.0"
