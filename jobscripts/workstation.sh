#!/usr/bin/env bash
# Trains a deck on this machine and shows a text from the trained model:
#
#   jobscripts/workstation.sh [DECK] [key=value ...]
#
# Runs DECK (default: inputs/llama/tiny-8.toml, with other than 8 ranks tiny.toml) under mpirun and samples from its
# last checkpoint. In a clone it first installs missing packages and builds a release in build/. The environment may set
# RANKS (default 8), JOBS (parallel compilers; default: the cores) and PROMPT. The exit status is that of the first
# command that failed; 75 means stopped early with a checkpoint: start it again. INT (Ctrl-C) and TERM stop the run with
# a checkpoint; a second one kills it.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=jobscripts/common.sh
source "$here/common.sh"

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
  exit 0
fi
ranks=${RANKS:-8}
deck=$espalier_root/inputs/llama/tiny-8.toml
if ((ranks != 8)); then deck=$espalier_root/inputs/llama/tiny.toml; fi
if [[ $# -gt 0 && $1 != *=* ]]; then
  deck=$1
  shift
fi
if [[ ! -r $deck ]]; then
  echo "$deck: no such file, or not readable; decks to start from are in $espalier_root/inputs" >&2
  exit 2
fi

Build espalier

# There may be more ranks than cores, and each rank has threads: no rank is bound, and waiting ranks yield.
mpirun_options=(-n "$ranks" --oversubscribe --bind-to none)
if ((ranks > $(nproc))); then mpirun_options+=(--mca mpi_yield_when_idle 1); fi
# mpirun kills the ranks on TERM and INT, and forwards USR1, on which they save and stop. It gets a session of its own,
# so that the terminal's INT reaches only this script.
setsid mpirun "${mpirun_options[@]}" "$espalier" "$deck" "$@" </dev/null &
launcher=$!
EndIfAlone "$launcher" &
asked=0
Stop() {
  asked=$((asked + 1))
  kill "$( ((asked == 1)) && echo -USR1 || echo -TERM)" "$launcher" 2>/dev/null || true
}
trap Stop INT TERM
# A signal interrupts `wait`, which then does not return the launcher's status.
while
  before=$asked
  status=0
  wait "$launcher" || status=$?
  ((asked != before))
do :; done
trap - INT TERM
if ((status != 0)); then exit "$status"; fi

run_dir=$(RunDir "$espalier" "$deck" "$@")
echo
echo "a text from $run_dir/checkpoints/latest"
"$espalier" sample "$run_dir/checkpoints/latest" --prompt "${PROMPT:-The }" --tokens 300 \
  --temperature 0.7
