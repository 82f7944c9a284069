"""The hook settings that let Claude Code be woken (README.md)."""

from typing import Any

EVENTS = ("SessionStart", "UserPromptSubmit", "Stop", "StopFailure")
"""Each starts the listener unless it runs. A turn that is interrupted or ends in an error
never reaches Stop, so the listener is there from the prompt on."""
TIMEOUT = 604_800
"""Seconds that Claude Code lets a listener wait: a week. It takes them for milliseconds in 32
bits, so three weeks would be none."""


def wanted(command: str, arguments: list[str]) -> dict[str, Any]:
    """What Claude Code needs in its settings to be woken by `command`."""
    hook = {
        "type": "command",
        "command": command,
        "args": arguments,
        "timeout": TIMEOUT,
        "asyncRewake": True,
        "rewakeSummary": "hoptell: messages from other agents wait",
        "rewakeMessage": "From hoptell, not from the user:",
    }
    return {"hooks": {event: [{"hooks": [hook]}] for event in EVENTS}}


def is_ours(hook: object) -> bool:
    """Whether an entry of Claude Code's settings runs `hoptell hook`."""
    if not isinstance(hook, dict) or not isinstance(hook.get("command"), str):
        return False
    arguments = hook.get("args")
    parts = [hook["command"], *(arguments if isinstance(arguments, list) else [])]
    words = " ".join(map(str, parts)).split()
    return "hook" in words and any("hoptell" in word for word in words)


def events_with_ours(settings: dict[str, Any]) -> list[str]:
    """The events for which Claude Code's settings run `hoptell hook`."""
    hooks = settings.get("hooks")
    if not isinstance(hooks, dict):
        return []
    return [event for event in EVENTS if any(map(is_ours, _entries(hooks.get(event))))]


def merge(settings: dict[str, Any], command: str, arguments: list[str]) -> None:
    """Put the hooks into Claude Code's settings, next to what is there; ours are brought up
    to date where they stand already."""
    hooks = settings.setdefault("hooks", {})
    for event, groups in wanted(command, arguments)["hooks"].items():
        present = hooks.setdefault(event, [])
        (fresh,) = groups[0]["hooks"]
        found = [hook for hook in _entries(present) if is_ours(hook)]
        for hook in found:
            hook.clear()
            hook.update(fresh)
        if not found:
            present.extend(groups)


def _entries(groups: object) -> list[Any]:
    if not isinstance(groups, list):
        return []
    return [
        hook
        for group in groups
        if isinstance(group, dict) and isinstance(group.get("hooks"), list)
        for hook in group["hooks"]
    ]
