#!/usr/bin/env bash
# The suite once under sanitizers: tests/sanitize.sh [PART...]
#   unit      unit tests and passes under AddressSanitizer, UndefinedBehaviorSanitizer and LeakSanitizer
#   mpi       the suites mpi and restart under the first two
#   threads   what has threads of its own under ThreadSanitizer: executor and communication, the writer of checkpoints,
#             the watchdog, the prefetch of batches
# Builds into build-asan/ and build-tsan/; takes hours on two cores.
set -euo pipefail

# shellcheck source=tests/sanitize/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/sanitize/environment.sh"

# Test SUITE...: all its tests, with the patience that sanitizers want.
Test() {
  meson test -C "$build" --no-rebuild --timeout-multiplier 20 --print-errorlogs "${@/#/--suite=}" </dev/null
}

Unit() {
  SetUp address
  Build all
  export ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=1
  Test unit passes
}

Mpi() {
  SetUp address
  Build all
  Test mpi restart
}

# Run RANKS ARGUMENT...: some steps of the small deck with saves beside them and a watchdog.
Run() {
  local ranks=$1 home
  shift
  home=$(mktemp -d)
  echo "run: $ranks ranks $*"
  "$root/tests/mpi/mpirun.sh" "$ranks" "$build/espalier" run "$root/tests/decks/small.toml" -d "$home" \
    run.steps=8 run.watchdog_s=30 \
    checkpoint.every_steps=2 checkpoint.asynchronous=true "$@" || { rm -rf "$home"; return 1; }
  rm -rf "$home"
}

Threads() {
  SetUp thread
  Build espalier tests/{executor,checkpoint,data,watch,stop}_test tests/mpi/mpi_{group,pipeline,world}_test
  # libgomp is not compiled for ThreadSanitizer, which would take its barriers for races: one thread a rank.
  export OMP_NUM_THREADS=1
  local name
  for name in executor checkpoint data watch stop; do "$build/tests/${name}_test" --gtest_brief=1; done
  for name in group pipeline world; do
    "$root/tests/mpi/mpirun.sh" 2 "$build/tests/mpi/mpi_${name}_test" --gtest_brief=1
  done
  Run 1
  Run 2 parallel.dp_shard=2 parallel.zero=3
  Run 2 parallel.tp=2
  Run 2 parallel.pp=2
  Run 2 parallel.cp=2
  Run 4 parallel.pp=2 parallel.tp=2
}

[[ $# -gt 0 ]] || set -- unit mpi threads
for part in "$@"; do
  case $part in
    unit) Unit ;;
    mpi) Mpi ;;
    threads) Threads ;;
    *) echo "parts: unit, mpi, threads" >&2; exit 2 ;;
  esac
done
