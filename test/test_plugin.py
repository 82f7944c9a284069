"""The Claude Code plugin: its manifests agree, and its launcher finds hoptell or says so."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hoptell import __version__

REPOSITORY = Path(__file__).resolve().parent.parent
LAUNCHER = REPOSITORY / ".claude-plugin" / "launch.sh"

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the launcher is a shell script")


def manifest(name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((REPOSITORY / ".claude-plugin" / name).read_text())
    return found


def test_the_plugin_has_the_version_of_the_package() -> None:
    assert manifest("plugin.json")["version"] == __version__


def test_the_marketplace_offers_the_plugin_from_the_repository_itself() -> None:
    (plugin,) = manifest("marketplace.json")["plugins"]  # type: ignore[misc]
    assert plugin["name"] == manifest("plugin.json")["name"] == "hoptell"
    assert plugin["source"] == "./"


def test_the_token_is_marked_as_a_secret_and_nothing_must_be_configured() -> None:
    options = manifest("plugin.json")["userConfig"]
    assert isinstance(options, dict)
    assert options["relay_token"]["sensitive"] is True
    assert not any(option["required"] for option in options.values())


def test_the_launcher_may_be_executed() -> None:
    assert os.access(LAUNCHER, os.X_OK)


class Machine:
    """A machine that has only the commands that a test puts on it."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.log = folder / "log"
        self.data = folder / "data"
        self.root = folder / "the plugin"
        self.bin.mkdir()
        self.log.touch()
        for tool in ("sh", "sed", "dirname", "sleep", "cat", "touch"):
            found = shutil.which(tool)
            assert found is not None
            (self.bin / tool).symlink_to(found)

    def install(self, name: str, *, code: int = 0, body: str = "") -> None:
        """A command that logs how it was called."""
        script = self.bin / name
        shown = '"$HOPTELL_RELAY|$HOPTELL_TOKEN|$HOPTELL_NAME|${HOPTELL_PLUGIN_TOKEN-gone}"'
        script.write_text(
            f'#!/bin/sh\necho "{name} $*" >> "{self.log}"\necho {shown} >> "{self.log}.env"\n'
            f"{body}\nexit {code}\n"
        )
        script.chmod(0o755)

    def launch(
        self, *arguments: str, wire: str = "", **environment: str
    ) -> "subprocess.CompletedProcess[str]":
        # The launcher's own interpreter and additions to PATH are those of the real machine.
        text = LAUNCHER.read_text().replace(":/opt/homebrew/bin:/usr/local/bin", "")
        plugin = self.root / ".claude-plugin"
        if not plugin.exists():
            shutil.copytree(LAUNCHER.parent, plugin)
            (plugin / "launch.sh").write_text(text)
        return subprocess.run(
            [str(plugin / "launch.sh"), *arguments], input=wire,
            env={"PATH": str(self.bin), "HOME": str(self.bin.parent), **environment},
            capture_output=True, text=True, timeout=30,
        )  # fmt: skip

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_hoptell_on_path_comes_first(machine: Machine) -> None:
    for name in ("hoptell", "uvx", "pipx"):
        machine.install(name)
    assert machine.launch("mcp").returncode == 0
    assert machine.calls() == ["hoptell mcp"]


UVX = """\
case "$*" in
    *--offline*) [ -f {cache} ] || {{ echo "error: No solution found" >&2; exit 1; }};;
    *) touch {cache};;
esac
case "$*" in *--version) cat; echo "hoptell 0.1.0";; *) {hoptell};; esac"""
PIPX = """\
[ -f {cache} ] || echo "creating virtual environment..." >&2
touch {cache}
case "$*" in *--version) cat; echo "hoptell 0.1.0";; *) {hoptell};; esac"""
"""What the real programs do, uvx of uv 0.13.9 and pipx 1.1.0 to 1.18.4: with an empty cache uvx
knows nothing while offline, and pipx tells of its work on standard error."""


def install_tool(machine: Machine, name: str, hoptell: str = "exit 0") -> None:
    body = {"uvx": UVX, "pipx": PIPX}[name]
    machine.install(name, body=body.format(cache=machine.bin.parent / name, hoptell=hoptell))


def test_then_uvx_runs_the_plugins_own_folder_and_asks_the_index_once(machine: Machine) -> None:
    install_tool(machine, "pipx")
    install_tool(machine, "uvx")
    for _ in range(2):
        assert machine.launch("mcp").returncode == 0
    assert machine.calls() == [
        f"uvx --quiet --offline --from {machine.root} hoptell --version",
        f"uvx --quiet --from {machine.root} hoptell --version",
        f"uvx --quiet --from {machine.root} hoptell mcp",
        f"uvx --quiet --offline --from {machine.root} hoptell --version",
        f"uvx --quiet --offline --from {machine.root} hoptell mcp",
    ]


def test_then_pipx_also_where_uvx_cannot(machine: Machine) -> None:
    install_tool(machine, "pipx")
    machine.install("uvx", code=2)
    assert machine.launch("mcp").returncode == 0
    assert machine.calls()[2:] == [
        f"pipx run --spec {machine.root} hoptell --version",
        f"pipx run --spec {machine.root} hoptell mcp",
    ]


@pytest.mark.parametrize("tool", ["uvx", "pipx"])
def test_what_they_say_while_they_install_is_not_taken_for_the_notice(
    tool: str, machine: Machine
) -> None:
    install_tool(machine, tool, hoptell="echo '[hoptell: 1 message waits]' >&2; exit 42")
    done = machine.launch("hook")
    assert (done.returncode, done.stderr) == (2, "[hoptell: 1 message waits]\n")
    assert done.stdout == ""


@pytest.mark.parametrize("tool", ["uvx", "pipx"])
def test_the_wire_is_for_hoptell_alone(tool: str, machine: Machine) -> None:
    install_tool(machine, tool, hoptell="cat")
    assert machine.launch("mcp", wire="initialize\n").stdout == "initialize\n"


def test_a_user_installation_is_found_without_path(machine: Machine) -> None:
    local = machine.bin.parent / ".local" / "bin"
    local.mkdir(parents=True)
    machine.install("hoptell")
    (machine.bin / "hoptell").rename(local / "hoptell")
    assert machine.launch("mcp").returncode == 0
    assert machine.calls() == ["hoptell mcp"]


@pytest.mark.parametrize("path", ["{}:", ":{}", "{}::/x", ".:{}", "project:{}"])
def test_a_program_of_the_current_folder_is_not_run(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    project = machine.bin.parent / "project"
    project.mkdir()
    machine.install("hoptell", code=7)
    (machine.bin / "hoptell").rename(project / "hoptell")
    machine.install("uvx")
    for folder in (project, project.parent):
        monkeypatch.chdir(folder)
        assert machine.launch("mcp", PATH=path.format(machine.bin)).returncode == 0
    assert all(call.startswith("uvx ") for call in machine.calls())


def test_the_environment_comes_before_what_is_configured_in_the_plugin(machine: Machine) -> None:
    machine.install("hoptell")
    configured = {
        "HOPTELL_PLUGIN_RELAY": "ws://plugin:1",
        "HOPTELL_PLUGIN_TOKEN": "plugin-token",
        "HOPTELL_PLUGIN_NAME": "",
    }
    machine.launch("mcp", **configured)
    machine.launch("mcp", **configured, HOPTELL_NAME="bob", HOPTELL_RELAY="ws://mine:1")
    assert Path(f"{machine.log}.env").read_text().splitlines() == [
        "ws://plugin:1|plugin-token||gone",
        "ws://mine:1|plugin-token|bob|gone",
    ]


@pytest.mark.parametrize(("code", "woken"), [(0, 0), (1, 1), (2, 1), (42, 2)])
def test_what_uvx_itself_fails_with_wakes_nobody(machine: Machine, code: int, woken: int) -> None:
    install_tool(machine, "uvx", hoptell=f"exit {code}")
    assert machine.launch("hook").returncode == woken
    assert machine.calls()[-1].endswith("hoptell hook --exit-code 42")


def test_with_nothing_there_one_sentence_says_what_to_install(machine: Machine) -> None:
    done = machine.launch("mcp", CLAUDE_PLUGIN_DATA=str(machine.data))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("hoptell: it is not installed, and there is neither uv, pipx")
    assert f'uv tool install "{machine.root}"' in done.stderr


PYTHON = f"""\
case "$*" in
    *version_info*|*make_venv*) exec {sys.executable} "$@";;
esac"""
VENV = """#!/bin/sh
case "$*" in
    *"pip install"*) sleep 0.3; echo "pip $*" >> {log}; exit {code};;
    *) echo "venv $*" >> {log};;
esac
"""


def own_environment(machine: Machine, code: int = 0, python: str = VENV) -> None:
    """A python3 whose `-m venv` makes an environment that only logs."""
    machine.install("python3", body=PYTHON)
    # make_venv.py runs `sys.executable -m venv`: let a module of that name come first.
    fake = machine.bin.parent / "fake" / "venv.py"
    fake.parent.mkdir()
    inner = python.format(log=machine.log, code=code)
    fake.write_text(
        "import sys, pathlib\n"
        "bin = pathlib.Path(sys.argv[1]) / 'bin'; bin.mkdir(parents=True)\n"
        f"(bin / 'python').write_text({inner!r}); (bin / 'python').chmod(0o755)\n"
        f"open({str(machine.log)!r}, 'a').write('made\\n')\n"
    )


def launch_own(machine: Machine, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return machine.launch(
        *arguments,
        CLAUDE_PLUGIN_DATA=str(machine.data),
        PYTHONPATH=str(machine.bin.parent / "fake"),
    )


def test_else_an_environment_of_its_own_is_made_once_even_when_two_start_together(
    machine: Machine,
) -> None:
    own_environment(machine)
    launch_own(machine, "mcp")
    machine.log.write_text("")
    shutil.rmtree(machine.data)
    with ThreadPoolExecutor() as pool:
        done = list(pool.map(lambda command: launch_own(machine, command), ("mcp", "hook")))
    assert [one.returncode for one in done] == [0, 0], done
    calls = [call for call in machine.calls() if not call.startswith("python3 ")]
    assert calls[0] == "made"
    assert calls[1] == f"pip -m pip install --quiet {machine.root}"
    assert sorted(calls[2:]) == ["venv -P -m hoptell hook", "venv -P -m hoptell mcp"]


def test_an_environment_that_cannot_be_made_is_one_sentence_and_not_tried_at_every_turn(
    machine: Machine,
) -> None:
    own_environment(machine, code=1)
    first = launch_own(machine, "mcp")
    assert first.returncode == 1
    assert first.stderr.startswith("hoptell: could not be installed into its own environment")
    assert first.stderr.count("\n") == 1
    again = launch_own(machine, "hook")
    assert again.returncode == 1
    assert again.stderr.startswith("hoptell: not installed; what went wrong is in ")
    assert [call for call in machine.calls() if call == "made"] == ["made"]


def test_while_an_abandoned_installation_goes_on_nobody_else_begins_one(machine: Machine) -> None:
    """Claude Code ends a server that takes too long to start, not what that has started."""
    started, finish = machine.bin.parent / "started", machine.bin.parent / "finish"
    os.mkfifo(started)
    os.mkfifo(finish)
    own_environment(machine, python=f"#!/bin/sh\necho > '{started}'; cat '{finish}'\n")
    venv = machine.data / "venv"
    making = subprocess.Popen(
        [sys.executable, str(LAUNCHER.parent / "make_venv.py"), str(venv), str(machine.root)],
        env={"PYTHONPATH": str(machine.bin.parent / "fake"), "PATH": os.defpath},
    )
    started.read_text()
    making.kill()
    making.wait()
    with (machine.data / "venv.lock").open() as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finish.write_text("")
        fcntl.flock(lock, fcntl.LOCK_EX)
    assert not (venv / "complete").exists()
