#!/usr/bin/env bash
# Makes the pictures of the documents: make.sh [FOLDER], by default this one. One line per picture, at the end. Takes
# build/espalier, or the executable that ESPALIER names.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
mkdir -p "${1:-$here}"
folder=$(cd "${1:-$here}" && pwd)
espalier=${ESPALIER:-$root/build/espalier}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$root"
if [[ $EUID -eq 0 ]]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi

# Says what failed only if something did.
Quietly() { "$@" >"$scratch/log" 2>&1 || { cat "$scratch/log" >&2 && return 1; }; }

# Timeline NAME DECK RANKS [key=value ...]: a step on H100s, as `espalier simulate` predicts it.
Timeline() {
  Quietly "$espalier" simulate "$2" --ranks "$3" --cluster inputs/clusters/h100-8x400g.toml --svg "$folder/$1.svg" \
    "${@:4}"
}

