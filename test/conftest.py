"""For all tests: nothing of the person who runs them is read or changed."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

import hypothesis
import pytest

if (Path(__file__).resolve().parent.parent / ".env").exists():
    pytest.exit("the tests would read this checkout's .env: move it to ~/.config/hoptell/.env", 2)

# Before anything is imported or started: tests and their processes find no settings, and an
# empty home folder. Each worker of pytest-xdist has its own. test/clients needs its programs.
for _name in [name for name in os.environ if name.startswith(("HOPTELL_", "XDG_"))]:
    if _name != "HOPTELL_CLIENTS_LAB":
        del os.environ[_name]
os.environ["HOME"] = tempfile.mkdtemp(prefix="hoptell-test-home-")
atexit.register(shutil.rmtree, os.environ["HOME"], ignore_errors=True)

# How long one example takes says nothing on a busy machine.
hypothesis.settings.register_profile("hoptell", deadline=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "hoptell")
