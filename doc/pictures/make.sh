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

# Train: a small run on 4 ranks with one restart, validations and a traced step, which the charts are of.
Train() {
  local run=(mpirun -n 4 --oversubscribe --bind-to none "$espalier" tests/decks/small.toml -d "$scratch/small"
    run.steps=240 checkpoint.every_steps=40 checkpoint.restart=auto parallel.pp=2 parallel.tp=2 batch.global=8
    'data.validation=["tests/oracle/data/text.txt"]' data.validate_every_steps=20 data.validate_sequences=8)
  ESPALIER_FAULT=step:kill:131 Quietly "${run[@]}" && return 1
  Quietly "${run[@]}"
  Quietly "$espalier" report "$scratch/small" --svg "$scratch/charts"
}

# Chart NAME PICTURE: a picture of the page about that run.
Chart() { cp "$scratch/charts/$2.svg" "$folder/$1.svg"; }

Train 2>/dev/null
Chart report-loss loss
Chart report-memory memory-1
