# shellcheck shell=bash
# Builds with sanitizers, and what those need to know. To be sourced: `root` and, after SetUp, `build` are for who does.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

# SetUp address|thread: makes build-asan/ or build-tsan/ if it is not there.
SetUp() {
  local kinds=address,undefined
  build=$root/build-asan
  [[ $1 == thread ]] && kinds=thread build=$root/build-tsan
  [[ -f $build/build.ninja ]] ||
    meson setup "$build" "$root" -Dbuildtype=debugoptimized -Doptimization=1 -Db_sanitize="$kinds" \
      -Db_lundef=false >/dev/null
}

# Build [TARGET...]: prints only what fails.
Build() {
  local log
  log=$(ninja -C "$build" "$@" 2>&1) || { echo "$log"; return 1; }
}

# Sizes that no machine has must come back as an error, as they do without a sanitizer. Who wants leaks told sets
# ESPALIER_LEAKS=1: under MPI there are too many that are OpenMPI's.
export ASAN_OPTIONS=abort_on_error=1:allocator_may_return_null=1:detect_leaks=${ESPALIER_LEAKS:-0}
export LSAN_OPTIONS=suppressions=$root/tests/sanitize/leaks.txt:print_suppressions=0
export UBSAN_OPTIONS=halt_on_error=1:abort_on_error=1:print_stacktrace=1
# OpenMPI takes its locks in any order; a long history names both sides of a race.
TSAN_OPTIONS=suppressions=$root/tests/sanitize/threads.txt:detect_deadlocks=0:history_size=7:halt_on_error=1
export TSAN_OPTIONS=$TSAN_OPTIONS:ignore_noninstrumented_modules=0
