"""Runs `hoptell doctor` for a test: as JSON, in this process, and never showing a token."""

import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from click.testing import CliRunner

from hoptell import cli
from hoptell.doctor.report import CHECKS


class Findings:
    """What it found: exit code, text, and the entries of each check."""

    def __init__(self, environ: Mapping[str, str], *, secrets: tuple[str, ...] = ()) -> None:
        runner = CliRunner(env=dict(environ))
        result = runner.invoke(cli.command_line, ["doctor", "--json"])
        assert not result.stderr and result.exit_code in (0, 1), result.output
        for secret in (*secrets, environ.get("HOPTELL_TOKEN", "")):
            assert not secret or secret not in result.stdout
        self.exit_code = result.exit_code
        self.value = json.loads(result.stdout)
        self._checks: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for entry in self.value["checks"]:
            assert entry.keys() == {"check", "about", "status", "message", "fix"}
            assert entry["status"] in ("ok", "info", "warn", "fail") and entry["check"] in CHECKS
            self._checks[entry["check"]].append(entry)
        assert self.value["ok"] == (self.exit_code == 0) == (not self.failed)

    def __getitem__(self, check: str) -> dict[str, Any]:
        """The only entry of a check."""
        (entry,) = self._checks[check]
        return entry

    def all(self, check: str, about: str | None = None) -> list[dict[str, Any]]:
        return [e for e in self._checks[check] if about is None or e["about"] == about]

    def about(self, check: str, about: str) -> dict[str, Any]:
        """The only entry of a check about one peer or agent."""
        (entry,) = self.all(check, about)
        return entry

    @property
    def failed(self) -> set[str]:
        """The checks that failed."""
        return {e["check"] for e in self.value["checks"] if e["status"] == "fail"}

    @property
    def warned(self) -> set[str]:
        return {e["check"] for e in self.value["checks"] if e["status"] == "warn"}
