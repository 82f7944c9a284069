#!/bin/sh
# Starts hoptell for the Claude Code plugin, however it is installed: the command on PATH, else
# uvx or pipx from the plugin's own folder, else a virtual environment in the plugin's data
# folder, made once. `exec` wherever possible, so that no shell stays behind.
#
# An exit code 2 of `hoptell hook` wakes the session. So nothing else here may exit 2: uvx and
# pipx do when they fail, and are asked to hand another code through.
set -u

# Programs started from a desktop have a short PATH. What is not absolute in it, as an empty part,
# would be in the folder of the project, whose programs are somebody else's.
PATH=$PATH:${HOME:-/nonexistent}/.local/bin:/opt/homebrew/bin:/usr/local/bin
absolute=
set -f
IFS=:
for folder in $PATH; do
    case $folder in /*) absolute=$absolute:$folder ;; esac
done
set +f
unset IFS
PATH=${absolute#:}
export PATH

root=$(cd "$(dirname "$0")/.." && pwd) || exit 1
command=${1:-mcp}

# What the user's environment says comes before what is configured in the plugin.
HOPTELL_RELAY=${HOPTELL_RELAY:-${HOPTELL_PLUGIN_RELAY:-}}
HOPTELL_TOKEN=${HOPTELL_TOKEN:-${HOPTELL_PLUGIN_TOKEN:-}}
HOPTELL_NAME=${HOPTELL_NAME:-${HOPTELL_PLUGIN_NAME:-}}
export HOPTELL_RELAY HOPTELL_TOKEN HOPTELL_NAME
unset HOPTELL_PLUGIN_RELAY HOPTELL_PLUGIN_TOKEN HOPTELL_PLUGIN_NAME

have() { command -v "$1" >/dev/null 2>&1; }

# Run hoptell by means of a program, if that is there and can. Asking it for the version first lets
# it install hoptell without a word that would be taken for the hook's, and the next way be tried
# where it fails.
through() {
    have "$1" && "$@" hoptell --version </dev/null >/dev/null 2>&1 || return 0
    [ "$command" = hook ] || exec "$@" hoptell "$command"
    "$@" hoptell hook --exit-code 42
    case $? in
        0) exit 0 ;;
        42) exit 2 ;;
        *) exit 1 ;;
    esac
}

have hoptell && exec hoptell "$command"
# Out of its cache first: otherwise uvx asks the package index at every start, which takes
# seconds, and fails without a network.
through uvx --quiet --offline --from "$root"
through uvx --quiet --from "$root"
through pipx run --spec "$root"

if [ -n "${CLAUDE_PLUGIN_DATA:-}" ]; then
    version=$(sed -n 's/.*"version": *"\([^"]*\)".*/\1/p' "$root/.claude-plugin/plugin.json")
    venv=$CLAUDE_PLUGIN_DATA/venv-$version
    if [ ! -f "$venv/complete" ]; then
        for python in python3 python3.14 python3.13 python3.12 python3.11; do
            "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
            "$python" "$root/.claude-plugin/make_venv.py" "$venv" "$root" </dev/null || exit 1
            break
        done
    fi
    [ -f "$venv/complete" ] && exec "$venv/bin/python" -P -m hoptell "$command"
fi

echo "hoptell: it is not installed, and there is neither uv, pipx nor Python 3.11 or newer that could do it: install it yourself, for example with 'uv tool install \"$root\"'" >&2
exit 1
