"""A machine with agents on it, for the tests of init and doctor: a home folder, and programs
that behave like the real ones as far as registering hoptell goes. They log how they are called.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

CLAUDE = f"""#!{sys.executable} -S
import json, os, sys
home = os.environ["HOME"]
words = sys.argv[1:]
open(home + "/calls", "a").write(json.dumps(["claude", *words]) + "\\n")
state = home + "/.claude.json"
value = json.load(open(state)) if os.path.exists(state) else {{}}
servers = value.setdefault("mcpServers", {{}})
if words[:2] == ["mcp", "add"]:
    name = words[4]
    if name in servers:
        sys.exit(f"MCP server {{name}} already exists in user config")
    split = words.index("--")
    pairs = [word.split("=", 1) for word in words[5:split] if word != "-e"]
    command, *args = words[split + 1:]
    servers[name] = {{"type": "stdio", "command": command, "args": args, "env": dict(pairs)}}
elif words[:2] == ["mcp", "remove"]:
    del servers[words[4]]
elif words[:2] == ["plugin", "install"]:
    os.makedirs(home + "/.claude", exist_ok=True)
    file = home + "/.claude/settings.json"
    settings = json.load(open(file)) if os.path.exists(file) else {{}}
    settings["enabledPlugins"] = {{words[2]: True}}
    json.dump(settings, open(file, "w"))
json.dump(value, open(state, "w"))
"""
AGY = f"""#!{sys.executable} -S
import json, os, sys
home = os.environ["HOME"]
words = sys.argv[1:]
open(home + "/calls", "a").write(json.dumps(["agy", *words]) + "\\n")
if words[:2] == ["mcp", "add"]:
    open(home + "/agy", "a").write(words[2] + ": " + " ".join(words[3:]) + "\\n")
elif os.path.exists(home + "/agy"):
    print(open(home + "/agy").read())
"""
SCRIPTS = {"claude": CLAUDE, "agy": AGY}


class Computer:
    """A home folder, and a PATH with nothing but what a test installs."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "user"
        self.bin = folder / "programs"
        self.home.mkdir()
        self.bin.mkdir()
        self.environ = {"HOME": str(self.home), "PATH": str(self.bin), "USER": "Sam Ple"}

    def install(self, *programs: str, script: str | None = None) -> None:
        for program in programs:
            file = self.bin / program
            file.write_text(script or SCRIPTS.get(program, "#!/bin/sh\nexit 0\n"))
            file.chmod(0o755)

    def calls(self) -> list[list[str]]:
        """How the programs were called, each with its name first."""
        file = self.home / "calls"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def write(self, path: str, content: Any) -> Path:
        """A file below the home folder; anything but text as JSON."""
        file = self.home / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content if isinstance(content, str) else json.dumps(content, indent=2))
        return file

    def read(self, path: str) -> Any:
        return json.loads((self.home / path).read_text())

    def write_settings(self, *, mode: int = 0o600, **values: str) -> Path:
        """hoptell's settings file, with HOPTELL_<NAME> for each."""
        lines = (f"HOPTELL_{name.upper()}={value}\n" for name, value in values.items())
        file = self.write(".config/hoptell/.env", "".join(lines))
        os.chmod(file, mode)
        return file
