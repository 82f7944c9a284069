"""`python -m hoptell`: the same as the `hoptell` command, found without a PATH.

`python -m` looks for modules in the current folder first. That is whatever project an agent
works on: its mcp.py or secrets.py would be run in place of the real one. `python -P` keeps
Python from looking there at all; for whoever starts it without, the folder is taken out of the
path before anything else is imported.
"""

import os
import sys

if not sys.flags.safe_path:
    # Kept where hoptell itself runs from that folder, as in a checkout without an installation.
    _own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if sys.path and sys.path[0] != _own:
        del sys.path[0]

from hoptell.cli import main  # noqa: E402 - not before the path is safe

if __name__ == "__main__":
    main()
