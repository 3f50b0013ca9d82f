#!/usr/bin/env bash
# Trains nineteen decks for 20 steps on one rank and at pp 2 x dp 2 x tp 2 (experts at ep 2, too), three of them also at
# cp 2, and compares each run with PyTorch:
#
#   tests/oracle/compare.sh [FOLDER]
#
# FOLDER receives the runs (default: a temporary one, removed at the end). PYTHON names a Python that has
# tests/oracle/requirements_torch.txt. Prints one line a run; exits 0 if every loss and gradient norm agrees to 1e-5.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=jobscripts/common.sh
source "$here/../../jobscripts/common.sh"

folder=${1:-}
if [[ -z $folder ]]; then
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
fi
Quietly Build espalier

# Compare NAME RANKS [key=value ...]: trains compare_NAME.toml and prints how far from PyTorch it is.
Compare() {
  local name=$1 ranks=$2 run=$folder/$1-$2
  shift 2
  rm -rf "$run"
  Quietly mpirun -n "$ranks" --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 \
    "$espalier_build/espalier" "$here/compare_$name.toml" "run.dir=$run" "$@" || return
  local log=$folder/$name-$ranks.log status=0
  "${PYTHON:-python3}" "$here/compare_run.py" "$run" >"$log" 2>&1 || status=$?
  if [[ $status -ne 0 ]]; then cat "$log"; fi
  printf '%-9s %s rank(s): %s\n' "$name" "$ranks" "$(tail -n 1 "$log")"
  return "$status"
}

failed=0
for name in grouped odd tied gpt2 llama31 mistral qwen2 qwen3 olmo2 mixtral qwen2_moe qwen3_moe glm4_moe olmoe \
  gpt_oss deepseek_v3 deepseek_v2 mtp mtp_documents; do
  shared=()
  case $name in
    mixtral | *_moe | olmoe | gpt_oss | deepseek_* | mtp) shared=(parallel.ep=2) ;;
  esac
  Compare "$name" 1 || failed=1
  Compare "$name" 8 parallel.pp=2 parallel.dp_shard=2 parallel.tp=2 "${shared[@]}" || failed=1
done
for name in deepseek_v2 deepseek_v3 mtp_documents; do
  Compare "$name" 2 parallel.cp=2 || failed=1
done
exit "$failed"
