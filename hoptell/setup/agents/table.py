"""All agents that hoptell can be registered with, in the order in which they are shown."""

from hoptell.setup.agents import antigravity, claude, codex, cursor, gemini, opencode
from hoptell.setup.agents.agent import Agent

AGENTS: dict[str, Agent] = {
    agent.key: agent
    for agent in (
        claude.Claude(),
        codex.Codex(),
        opencode.OpenCode(),
        gemini.Gemini(),
        antigravity.Antigravity(),
        cursor.Cursor(),
    )
}
