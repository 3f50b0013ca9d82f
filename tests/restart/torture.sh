#!/usr/bin/env bash
# All stress tests of a run and its checkpoints, as one quiet command: kills, signals, hangs, random faults, full disks,
# mutated inputs.
#   tests/restart/torture.sh           the short forms
#   tests/restart/torture.sh --full    1,000 kills, 100 signals, 20 hangs, 10,000 faults, 50 full disks, 1,000,000 texts
#                                      and 200,000 files; continues where it was stopped, until build/torture is removed
# Needs build/ (meson setup build); a full disk needs the right to mount a tmpfs.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=${ESPALIER_BUILD:-$root/build}
state=$build/torture
kills=10 signals=10 hangs=4 faults=300 disks=3 texts=4000 files=200
if [[ ${1:-} == --full ]]; then
  kills=1000 signals=100 hangs=20 faults=10000 disks=50 texts=1000000 files=200000
  mkdir -p "$state"
else
  state=$(mktemp -d)
  trap 'rm -rf "$state"' EXIT
fi

# Part NAME COMMAND...: runs a part once; its log is next to its mark.
Part() {
  local name=$1
  shift
  [[ -e $state/$name.done ]] && return
  if "$@" >"$state/$name.log" 2>&1 </dev/null; then
    touch "$state/$name.done"
    echo "ok    $name"
    grep -v 'passed, 0 failed' "$state/$name.log" | tail -4 | sed 's/^/      /'
  else
    echo "FAIL  $name"
    cat "$state/$name.log"
    exit 1
  fi
}

# A copy: a build in the meantime would change the program during a campaign. A continued campaign uses its own program.
ninja -C "$build" espalier tests/faults_test >/dev/null
mkdir -p "$state/bin"
cp -n "$build/espalier" "$build/tests/faults_test" "$state/bin"
export ESPALIER=$state/bin/espalier DECK=$root/tests/decks/small.toml ESPALIER_FAULTS=$faults ESPALIER_FULL_DISKS=$disks
Part kills python3 -u "$root/tests/restart/torture.py" "$kills" "$state/kills.json"
Part signals python3 -u "$root/tests/restart/signals.py" "$signals" "$state/signals.json"
Part hangs python3 -u "$root/tests/restart/hangs.py" "$hangs"
Part faults "$state/bin/faults_test" --gtest_filter='Campaign.*:FullDisk.*' --gtest_brief=1
Part fuzz "$root/tests/fuzz/run.sh" "$texts" "$files"
if [[ ${1:-} == --full ]]; then
  for part in unit mpi threads; do Part "sanitized-$part" "$root/tests/sanitize.sh" "$part"; done
fi
