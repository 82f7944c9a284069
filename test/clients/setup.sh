#!/bin/sh
# Puts the pinned agent programs into the folder that the suite looks in. Once; about 1.2 GB.
# npm's own settings decide where it downloads from.
set -eu
lab=${HOPTELL_CLIENTS_LAB:-$HOME/.cache/hoptell-clients}
mkdir -p "$lab"
cd "$lab"
[ -f package.json ] || printf '{"private": true}\n' > package.json
npm install --no-audit --no-fund \
    @anthropic-ai/claude-code@2.1.332 @openai/codex@0.171.0 opencode-ai@1.18.33
echo "agent programs are in $lab/node_modules/.bin: run pytest test/clients"
