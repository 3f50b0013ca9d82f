#!/usr/bin/env bash
# Trains a deck on this machine and shows a text from the trained model:
#
#   jobscripts/workstation.sh [DECK] [key=value ...]
#
# Installs what is missing, builds a release into build/, runs DECK (inputs/llama/tiny.toml) under mpirun and samples
# from its last checkpoint. The environment may set RANKS (8), JOBS (compilers side by side: the cores) and PROMPT. The
# exit status is that of the first command that failed; 75 means stopped early with a checkpoint: start it again.
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
ranks=${RANKS:-8}

Build espalier

# Ranks may be more than cores, and each has threads of its own: so none is bound, and waiting ones yield.
mpirun_options=(-n "$ranks" --oversubscribe --bind-to none)
if ((ranks > $(nproc))); then mpirun_options+=(--mca mpi_yield_when_idle 1); fi
mpirun "${mpirun_options[@]}" "$espalier_build/espalier" "$deck" "$@"

# The folder of the run, from the effective deck: dir = "..." of section [run].
run_dir=$("$espalier_build/espalier" check "$deck" "$@" |
  awk '/^\[/ { section = $1 } section == "[run]" && $1 == "dir" { split($0, part, "\""); print part[2]; exit }')
echo
echo "a text from $run_dir/checkpoints/latest"
"$espalier_build/espalier" sample "$run_dir/checkpoints/latest" --prompt "${PROMPT:-The }" --tokens 300 \
  --temperature 0.7
