#!/usr/bin/env bash
# Trains a deck on this machine and shows a text from the trained model:
#
#   jobscripts/workstation.sh [DECK] [key=value ...]
#
# Installs what is missing, builds a release into build/, runs DECK (inputs/llama/tiny.toml) under mpirun and samples
# from its last checkpoint. The environment may set RANKS (8), JOBS (compilers side by side: the cores) and PROMPT. The
# exit status is that of the first command that failed; 75 means stopped early with a checkpoint: start it again. INT
# (Ctrl-C) and TERM stop it so; a second one ends it without.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=jobscripts/common.sh
source "$here/common.sh"

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
  exit 0
fi
deck=$espalier_root/inputs/llama/tiny.toml
if [[ $# -gt 0 && $1 != *=* ]]; then
  deck=$1
  shift
fi
if [[ ! -r $deck ]]; then
  echo "$deck: no such file, or not readable; decks to start from are in $espalier_root/inputs" >&2
  exit 2
fi
ranks=${RANKS:-8}

Build espalier

# Ranks may be more than cores, and each has threads of its own: so none is bound, and waiting ones yield.
mpirun_options=(-n "$ranks" --oversubscribe --bind-to none)
if ((ranks > $(nproc))); then mpirun_options+=(--mca mpi_yield_when_idle 1); fi
# Of TERM and INT mpirun kills the ranks, USR1 it passes on, and they save. It has a session of its own, so that the
# terminal's INT reaches this script alone.
setsid mpirun "${mpirun_options[@]}" "$espalier_build/espalier" "$deck" "$@" </dev/null &
launcher=$!
EndIfAlone "$launcher" &
asked=0
Stop() {
  asked=$((asked + 1))
  kill "$( ((asked == 1)) && echo -USR1 || echo -TERM)" "$launcher" 2>/dev/null || true
}
trap Stop INT TERM
# A signal interrupts `wait`, whose status then is not the launcher's.
while
  before=$asked
  status=0
  wait "$launcher" || status=$?
  ((asked != before))
do :; done
trap - INT TERM
if ((status != 0)); then exit "$status"; fi

run_dir=$(RunDir "$espalier_build/espalier" "$deck" "$@")
echo
echo "a text from $run_dir/checkpoints/latest"
"$espalier_build/espalier" sample "$run_dir/checkpoints/latest" --prompt "${PROMPT:-The }" --tokens 300 \
  --temperature 0.7
