#!/usr/bin/env bash
# Everything that is hard on checkpoints, as one command, quietly: kills, random faults, full disks, mutated inputs.
#   tests/restart/torture.sh           the short forms
#   tests/restart/torture.sh --full    1,000 kills, 10,000 faults, 50 full disks, 1,000,000 texts and 200,000 files; goes on where it was stopped
# Needs build/ (meson setup build); a full disk needs the right to mount a tmpfs.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=${ESPALIER_BUILD:-$root/build}
state=$build/torture
kills=10 faults=300 disks=3 texts=4000 files=200
if [[ ${1:-} == --full ]]; then
  kills=1000 faults=10000 disks=50 texts=1000000 files=200000
  mkdir -p "$state"
else
  state=$(mktemp -d)
  trap 'rm -rf "$state"' EXIT
fi

# Part NAME COMMAND...: runs a part once; its log stays beside its mark.
Part() {
  local name=$1
  shift
  [[ -e $state/$name.done ]] && return
  if "$@" >"$state/$name.log" 2>&1 </dev/null; then
    touch "$state/$name.done"
    echo "ok    $name: $(grep -vE '^ok|passed, 0 failed' "$state/$name.log" | tail -1)"
  else
    echo "FAIL  $name"
    cat "$state/$name.log"
    exit 1
  fi
}

export ESPALIER=$build/espalier ESPALIER_FAULTS=$faults ESPALIER_FULL_DISKS=$disks
ninja -C "$build" espalier tests/faults_test >/dev/null
Part kills python3 -u "$root/tests/restart/torture.py" "$kills" "$state/kills.json"
Part faults "$build/tests/faults_test" --gtest_filter='Campaign.*:FullDisk.*' --gtest_brief=1
Part fuzz "$root/tests/fuzz/run.sh" "$texts" "$files"
