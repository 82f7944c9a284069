# Antigravity: run this once.
agy mcp add hoptell /path/to/hoptell mcp
