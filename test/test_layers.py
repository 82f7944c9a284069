"""The import arrows: a module imports only from what stands above it.

The layout, from the top: what both sides share, the relay's side, the agent's side, the
command line. Read from the source with `ast`, so that imports within functions and under
TYPE_CHECKING count too.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "hoptell"

SHARED = tuple("errors names frames folders files replacing env_file settings".split())
"""In this order: each may import those before it."""
RELAY = tuple(
    "model rate timeouts core credentials wal database store journal websocket listening log"
    " metrics tls http server daemon".split()
)
"""All of the relay's modules, in this order; see hoptell/relay/__init__.py."""
ABOVE = {
    "shared": {"shared"},
    "relay": {"shared", "relay"},
    "agent": {"shared", "agent"},
    "sidecar": {"shared", "agent", "sidecar"},
    "tmux": {"shared", "agent", "sidecar", "tmux"},
    "setup": {"shared", "agent", "setup"},
    "doctor": {"shared", "agent", "sidecar", "tmux", "setup", "doctor"},
    "cli": {"shared", "relay", "agent", "sidecar", "tmux", "setup", "doctor", "cli"},
    "__main__": {"cli"},
}
"""For each part what it may import. Neither side of the wire imports the other."""

PURE = tuple(
    "errors names frames relay.model relay.rate relay.timeouts relay.core tmux.screen"
    " tmux.typist tmux.batch doctor.report".split()
)
"""Modules that decide and do nothing else."""
IMPURE = set(
    "asyncio datetime io logging multiprocessing os pathlib random secrets select selectors"
    " shutil signal socket ssl subprocess tempfile threading time uuid".split()
)

AT_HOME = {
    "click": {"cli"},
    "libtmux": {"tmux", "cli"},
    "tomlkit": {"setup"},
    "mcp": {"sidecar", "cli"},
    "mcp_types": {"sidecar", "cli"},
    "uvloop": {"relay", "cli"},
    "websockets": {"relay", "agent", "sidecar"},  # the sidecar: to ask Codex's daemon
}
"""Which parts may import these packages; every other part would only get heavier."""


def modules() -> dict[str, Path]:
    """Every module's dotted name."""
    found = {}
    for file in PACKAGE.rglob("*.py"):
        parts = file.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


MODULES = modules()


def imported(source: str, known: dict[str, Path] = MODULES) -> Iterator[str]:
    """The dotted names of all modules that `source` imports, at whatever level of it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, "imports are absolute"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield submodule if submodule in known else node.module


def imports_of(module: str) -> set[str]:
    return set(imported(MODULES[module].read_text(encoding="utf-8")))


def own_imports_of(module: str) -> set[str]:
    """Modules of hoptell but the package itself, which holds only the version."""
    return {name for name in imports_of(module) if name.startswith("hoptell.")}


def part_of(module: str) -> str:
    """The part that a module of hoptell belongs to."""
    first = module.split(".")[1]
    if first in SHARED:
        return "shared"
    return first if first in ABOVE else "agent"


WITHOUT_PACKAGE = sorted(MODULES.keys() - {"hoptell"})


def test_imports_are_found_wherever_they_stand() -> None:
    source = """
import os.path as p, json
from hoptell import frames, __version__
from hoptell.relay.core import Relay
def f():
    from hoptell.client import RelayClient
    if TYPE_CHECKING:
        import hoptell.inbox
"""
    assert set(imported(source)) == {
        "os.path",
        "json",
        "hoptell.frames",
        "hoptell",
        "hoptell.relay.core",
        "hoptell.client",
        "hoptell.inbox",
    }


@pytest.mark.parametrize("module", WITHOUT_PACKAGE)
def test_a_module_imports_only_from_what_stands_above_it(module: str) -> None:
    wrong = {name for name in own_imports_of(module) if part_of(name) not in ABOVE[part_of(module)]}
    assert not wrong


def test_the_relays_side_and_the_agents_side_share_only_the_shared_modules() -> None:
    assert not ABOVE["relay"] & {"agent", "sidecar", "tmux", "setup", "doctor"}
    for side in ("agent", "sidecar", "tmux", "setup", "doctor"):
        assert "relay" not in ABOVE[side]


@pytest.mark.parametrize("order", [SHARED, tuple(f"relay.{name}" for name in RELAY)], ids=str)
def test_modules_that_stand_in_an_order_import_only_upwards(order: tuple[str, ...]) -> None:
    for place, name in enumerate(order):
        below = {f"hoptell.{later}" for later in order[place:]}
        assert not own_imports_of(f"hoptell.{name}") & below, name


def test_every_module_of_the_relay_has_its_place_in_the_order() -> None:
    relay = {name.split(".")[2] for name in MODULES if name.startswith("hoptell.relay.")}
    assert relay == set(RELAY)


@pytest.mark.parametrize(
    "package", ["", "relay", "sidecar", "tmux", "setup", "setup/agents", "doctor"]
)
def test_a_package_says_what_each_of_its_modules_is_for(package: str) -> None:
    folder = PACKAGE / package
    described = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
    there = {file.name for file in folder.glob("*.py")} - {"__init__.py"}
    there |= {f"{file.parent.name}/" for file in folder.glob("*/__init__.py")}
    assert set(re.findall(r"^(\w+(?:\.py|/)) ", described or "", re.MULTILINE)) == there


def test_no_modules_import_each_other_in_a_circle() -> None:
    try:
        list(TopologicalSorter({name: own_imports_of(name) for name in MODULES}).static_order())
    except CycleError as error:
        pytest.fail(f"a circle: {' imports '.join(reversed(error.args[1]))}")


def test_packages_import_nothing_by_themselves() -> None:
    for name, file in MODULES.items():
        if file.name == "__init__.py" and name != "hoptell.cli":
            assert not imports_of(name), name


@pytest.mark.parametrize("module", PURE)
def test_what_decides_has_no_clock_no_chance_no_log_and_no_io(module: str) -> None:
    assert not {name.partition(".")[0] for name in imports_of(f"hoptell.{module}")} & IMPURE
    tree = ast.parse(MODULES[f"hoptell.{module}"].read_text(encoding="utf-8"))
    called = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & {"open", "print", "input", "exec", "eval", "__import__"}


@pytest.mark.parametrize("package", AT_HOME)
def test_heavy_packages_stay_in_the_parts_that_need_them(package: str) -> None:
    users = {
        part_of(module)
        for module in WITHOUT_PACKAGE
        if package in {name.partition(".")[0] for name in imports_of(module)}
    }
    assert users <= AT_HOME[package]


def test_only_the_command_line_imports_by_name_and_only_its_own_commands() -> None:
    from hoptell.cli import COMMANDS

    users = {name for name in MODULES if "importlib" in imports_of(name)}
    assert users <= {"hoptell.cli"}
    assert all(where.startswith("hoptell.cli.") for where, _ in COMMANDS.values())


def test_every_package_that_is_imported_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = project["dependencies"] + project["optional-dependencies"]["fast"]
    declared = {
        re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0].lower().replace("-", "_")
        for line in requirements
    }
    import_names = {"python_dotenv": "dotenv"}
    declared = {import_names.get(name, name) for name in declared}
    declared |= {"mcp_types", "anyio"}  # mcp's own interface: its types, and its streams
    used = {name.partition(".")[0] for module in MODULES for name in imports_of(module)}
    assert used - declared - sys.stdlib_module_names - {"hoptell"} == set()
