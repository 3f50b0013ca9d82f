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

# Schedule NAME: eight microbatches on four stages.
Schedule() {
  Timeline "schedule-$1" inputs/llama/8b.toml 4 parallel.pp=4 parallel.reduce=step batch.global=8 model.seq_len=4096 \
    "pipeline.schedule=$1"
}

python3 "$here/mesh.py" "$folder/mesh.svg"
Timeline layout-tp8 inputs/llama/8b.toml 8 batch.global=16 parallel.tp=8 parallel.reduce=step
Timeline layout-dp8 inputs/llama/8b.toml 8 batch.global=16
Schedule 1f1b
Schedule interleaved
Schedule zb-h1
Schedule zb-interleaved
Schedule zbv
Schedule dualpipev

# Train: the run that charts are of, on 2 ranks: killed in step 131, continued from step 120.
Train() {
  local run=(mpirun -n 2 --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 "$espalier"
    tests/decks/small.toml -d "$scratch/small" run.steps=240 checkpoint.every_steps=40 checkpoint.restart=auto
    checkpoint.asynchronous=false parallel.pp=2 batch.global=6 'data.validation=["tests/oracle/data/text.txt"]'
    data.validate_every_steps=20 data.validate_sequences=6)
  if ESPALIER_FAULT=step:kill:131 "${run[@]}" >/dev/null 2>&1; then echo "the fault did not happen" >&2 && return 1; fi
  Quietly "${run[@]}"
  Quietly "$espalier" report "$scratch/small" --svg "$scratch/charts"
}

# Chart NAME PICTURE: a picture of the page about that run.
Chart() { cp "$scratch/charts/$2.svg" "$folder/$1.svg"; }

# Router: a run with experts, of which a bias moves the loads.
Router() {
  Quietly "$espalier" tests/decks/small.toml -d "$scratch/router" run.steps=30 experts.count=32 experts.per_token=3 \
    experts.ffn_dim=16 experts.scores=sigmoid experts.bias=true experts.bias_rate=0.002
  Quietly "$espalier" report "$scratch/router" --svg "$scratch/charts"
}

Train
Chart report-loss loss
Chart report-memory memory-1
Router
Chart report-loads loads-1
