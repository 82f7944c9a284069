"""What examples/ and .github/ give to those who run a relay: checked by the tools themselves."""

import ast
import json
import os
import plistlib
import re
import shutil
import subprocess
import sys
import tomllib
import urllib.request
import venv
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from support.relay import relay_process

from hoptell.relay.metrics import Metrics, _Collector
from hoptell.relay.model import Gauges

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
DOCKERFILE = EXAMPLES / "docker" / "Dockerfile"


def dockerfile(instruction: str) -> list[str]:
    """The arguments of this instruction, in order; continued lines are one."""
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    return re.findall(rf"^{instruction} +(.*)$", text, re.M)


# systemd


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit_and_finds_it_well_contained(tmp_path):
    program = str(Path(sys.executable).parent / "hoptell")
    unit = (EXAMPLES / "systemd" / "hoptell-relay.service").read_text()
    file = tmp_path / "hoptell-relay.service"
    file.write_text(unit.replace("/opt/hoptell/bin/hoptell", program))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(file)], capture_output=True, text=True
    )
    about_us = [line for line in verified.stderr.splitlines() if "hoptell" in line]
    assert (verified.returncode, about_us) == (0, [])
    analyzed = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--threshold=20", str(file)],
        capture_output=True,
        text=True,
    )
    assert analyzed.returncode == 0, analyzed.stdout[-2000:]


def test_the_unit_hands_the_secret_over_as_a_credential():
    unit = (EXAMPLES / "systemd" / "hoptell-relay.service").read_text()
    assert "LoadCredential=relay.env:" in unit and "HOPTELL_ENV=%d/relay.env" in unit
    assert "DynamicUser=yes" in unit and "HOPTELL_TOKEN=" not in unit.replace("HOPTELL_TOKEN=…", "")


# Containers


@pytest.mark.skipif(shutil.which("hadolint", path=f"{Path(sys.executable).parent}") is None,
                    reason="hadolint is not installed here")  # fmt: skip
def test_the_dockerfile_passes_its_linter():
    hadolint = str(Path(sys.executable).parent / "hadolint")
    linted = subprocess.run([hadolint, str(DOCKERFILE)], capture_output=True, text=True)
    assert (linted.returncode, linted.stdout) == (0, "")


def test_the_container_runs_as_a_number_and_knows_its_own_health():
    assert dockerfile("USER") == ["10001"]
    assert dockerfile("STOPSIGNAL") == ["SIGTERM"]
    assert "/healthz" in dockerfile("HEALTHCHECK")[0]


def test_what_the_image_copies_is_not_ignored():
    ignored = (ROOT / ".dockerignore").read_text().split()
    for arguments in dockerfile("COPY"):
        if not arguments.startswith("--from"):
            for source in arguments.split()[:-1]:
                assert f"!{Path(source).name}" in ignored
                assert (ROOT / source).exists()


def test_the_containers_command_and_health_check_work_in_a_clean_environment(tmp_path):
    command = json.loads(dockerfile("CMD")[-1])
    assert command[:2] == ["hoptell", "relay"]
    options = [option.replace("/var/lib/hoptell", str(tmp_path)) for option in command[2:]]
    with relay_process(tmp_path, *options) as relay:
        with urllib.request.urlopen(f"http://127.0.0.1:{relay.port}/healthz", timeout=5) as answer:
            assert answer.status == 200
        check = json.loads(dockerfile("HEALTHCHECK")[0].partition("CMD")[2])
        check[0] = sys.executable
        check[-1] = check[-1].replace(":7777", f":{relay.port}")
        assert subprocess.run(check, timeout=10).returncode == 0
        assert relay.stop() == 0
        assert subprocess.run(check, timeout=10, stderr=subprocess.DEVNULL).returncode != 0


def test_compose_publishes_on_one_address_and_gives_the_container_nothing_to_change():
    compose = yaml.safe_load((EXAMPLES / "docker" / "compose.yaml").read_text())
    relay = compose["services"]["relay"]
    assert relay["ports"] == ["127.0.0.1:7777:7777"]
    assert relay["read_only"] is True and relay["cap_drop"] == ["ALL"]
    assert (ROOT / relay["build"]["dockerfile"]).is_file()
    assert "HOPTELL_TOKEN" not in relay["environment"]


def test_compose_says_whose_file_the_token_must_be():
    # Compose mounts a secret's file as it is: a private file of somebody else cannot be read.
    (user,) = dockerfile("USER")
    assert f"chown {user} relay.env" in (EXAMPLES / "docker" / "compose.yaml").read_text()


# macOS, proxies, Prometheus, CI


def test_the_launchd_plist_runs_the_relay():
    with (EXAMPLES / "launchd" / "hoptell.relay.plist").open("rb") as file:
        plist = plistlib.load(file)
    assert plist["ProgramArguments"][1:] == ["relay"] and plist["RunAtLoad"] is True


def test_alerts_and_dashboard_ask_for_metrics_that_there_are():
    metrics = Metrics()
    metrics.refused["rate"] = metrics.logins_refused[4003] = 1
    registry = CollectorRegistry()
    registry.register(_Collector(metrics, Gauges(0, 0, 0, 0, 0, 0)))
    known = set(re.findall(r"^(hoptell_\w+)", generate_latest(registry).decode(), re.M))
    alerts = yaml.safe_load((EXAMPLES / "prometheus" / "alerts.yml").read_text())
    rules = [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    dashboard = json.loads((EXAMPLES / "prometheus" / "dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = set(re.findall(r"hoptell_\w+", " ".join(rules + queries)))
    assert asked and asked <= known
    documented = (EXAMPLES / "prometheus" / "README.md").read_text()
    assert known <= set(re.findall(r"hoptell_\w+", documented))


@pytest.mark.parametrize("file", sorted((ROOT / ".github" / "workflows").iterdir()), ids=str)
def test_workflows_are_yaml_with_least_permissions_and_a_time_limit(file):
    workflow = yaml.safe_load(file.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job for job in workflow["jobs"].values())


@pytest.mark.parametrize("file", sorted((ROOT / ".github" / "workflows").iterdir()), ids=str)
def test_workflows_install_what_ci_needs_where_it_may_not_install_it_itself(file):
    for job in yaml.safe_load(file.read_text())["jobs"].values():
        commands = [step.get("run", "") for step in job["steps"]]
        if "bash .ci/run" in commands:
            assert any("install -y tmux" in c for c in commands[: commands.index("bash .ci/run")])


def test_workflows_try_every_python_that_the_package_declares():
    with (ROOT / "pyproject.toml").open("rb") as file:
        classifiers = tomllib.load(file)["project"]["classifiers"]
    declared = {c.rpartition(" ")[2] for c in classifiers if re.search(r":: 3\.\d+$", c)}
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    assert set(workflow["jobs"]["test"]["strategy"]["matrix"]["python"]) == declared


def test_the_ci_example_asks_a_reviewer_about_a_real_change(tmp_path):
    workflow = yaml.safe_load((EXAMPLES / "ci" / "review.yml").read_text())
    script = workflow["jobs"]["ask"]["steps"][-1]["run"]
    commands = (
        "set -e; git init -q -b main .; git config user.email a@b; git config user.name n;"
        "echo old > file; git add file; git commit -qm old; git update-ref refs/remotes/origin/main"
        " HEAD; echo new > file; git commit -qam new"
    )
    work = tmp_path / "work"
    work.mkdir()
    subprocess.run(["bash", "-c", commands], cwd=work, check=True)
    with relay_process(tmp_path) as relay:
        environment = relay.for_peers(
            GITHUB_BASE_REF="main",
            GITHUB_STEP_SUMMARY=str(tmp_path / "summary"),
            HOPTELL_NAME="ci",
            PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        )
        reviewer_program = (
            "import asyncio\n"
            "from hoptell.client import RelayClient\n"
            "from hoptell.settings import load_peer_settings\n"
            "async def main():\n"
            "    settings = load_peer_settings()\n"
            "    async with RelayClient(settings, name='eve', roles=['reviewer']) as c:\n"
            "        await c.wait_connected(5)\n"
            "        print('online', flush=True)\n"
            "        delivery = await anext(c)\n"
            "        await delivery.confirm()\n"
            "        m = delivery.message\n"
            "        word = 'fine' if '+new' in m.text and '-old' in m.text else 'what?'\n"
            "        await c.send(m.sender, word, reply_to=m.message_id)\n"
            "asyncio.run(main())\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", reviewer_program],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        ) as reviewer:
            assert reviewer.stdout is not None and reviewer.stdout.readline() == "online\n"
            ended = subprocess.run(
                ["bash", "-e", "-o", "pipefail", "-c", script],
                cwd=work,
                env=environment,
                capture_output=True,
                text=True,
                timeout=20,
            )
            assert ended.returncode == 0, ended.stderr
            assert "fine" in ended.stdout and "fine" in (tmp_path / "summary").read_text()
            assert reviewer.wait(10) == 0


def test_the_ci_job_fails_when_nobody_answers(tmp_path):
    job = yaml.safe_load((EXAMPLES / "ci" / "review.yml").read_text())["jobs"]["ask"]
    step = job["steps"][-1]
    # GitHub's `shell: bash` is this; without it there is no pipefail, and `tee` decides.
    shell = {"bash": ["bash", "-eo", "pipefail", "-c"], None: ["bash", "-e", "-c"]}
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        "GITHUB_BASE_REF": "main",
    }
    with relay_process(tmp_path) as relay:
        ended = subprocess.run(
            [*shell[step.get("shell")], step["run"].replace("git diff", "echo")],
            env=relay.for_peers(**environment), capture_output=True, text=True, timeout=20,
        )  # fmt: skip
    assert ended.returncode == 1
    assert "nobody else is online as @reviewer" in ended.stderr


def test_the_readme_asks_as_the_ci_job_does():
    readme = (ROOT / "README.md").read_text()
    asking = "| hoptell ask --timeout 10m @reviewer -"
    assert asking in readme and asking in (EXAMPLES / "ci" / "review.yml").read_text()


# Packages


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel, built from the sdist without an index."""
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)],
        check=True,
        capture_output=True,
    )
    [made] = out.glob("*.whl")
    return made


def test_the_packages_hold_what_they_need_and_no_more(wheel):
    import tarfile
    import zipfile

    names = zipfile.ZipFile(wheel).namelist()
    version = wheel.name.split("-")[1]
    assert {name.split("/")[0] for name in names} == {"hoptell", f"hoptell-{version}.dist-info"}
    assert "hoptell/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    [sdist] = wheel.parent.glob("*.tar.gz")
    inside = {Path(*Path(name).parts[1:]) for name in tarfile.open(sdist).getnames()}
    assert Path("test/test_deployment.py") in inside and Path("LICENSE") in inside
    assert not [
        path for path in inside if {"node_modules", ".venv", "__pycache__"} & set(path.parts)
    ]


def test_the_wheel_runs_in_a_fresh_environment(wheel, tmp_path):
    """Its dependencies come from this environment, so that no index is asked."""
    venv.create(tmp_path / "fresh", with_pip=True)
    python = tmp_path / "fresh" / "bin" / "python"
    subprocess.run(
        [python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", str(wheel)], check=True
    )
    [site] = (tmp_path / "fresh").glob("lib/python*/site-packages")
    here = next(path for path in sys.path if path.endswith("site-packages"))
    (site / "dependencies.pth").write_text(here)
    ended = subprocess.run(
        [tmp_path / "fresh" / "bin" / "hoptell", "--version"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    version = ast.literal_eval(
        re.search(r"__version__ = (.*)", (ROOT / "hoptell" / "__init__.py").read_text())[1]
    )
    assert (ended.returncode, ended.stdout) == (0, f"hoptell {version}\n")
