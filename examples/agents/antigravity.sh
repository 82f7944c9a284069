# Antigravity: run this once. The name stands here, since its command takes no variables.
agy mcp add hoptell /usr/bin/env HOPTELL_NAME=erin /path/to/hoptell mcp
