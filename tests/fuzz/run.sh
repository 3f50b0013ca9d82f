#!/usr/bin/env bash
# Fuzzes everything that is read from disk or the command line, with AddressSanitizer and UndefinedBehaviorSanitizer:
#   tests/fuzz/run.sh [N [M [SEED]]]     N mutated decks, overrides and MANIFESTs each, M shards and token files each
# Builds into build-fuzz/. What crashes is kept there as crash-NAME_fuzz. HDF5 keeps memory until exit, so leaks are not asked for.
set -euo pipefail

texts=${1:-1000000} files=${2:-200000} seed=${3:-1}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$root/build-fuzz
[[ -f $build/build.ninja ]] ||
  meson setup "$build" "$root" -Dbuildtype=debugoptimized -Doptimization=1 -Db_sanitize=address,undefined -Db_lundef=false >/dev/null
declare -A counts=([deck]=$texts [override]=$texts [manifest]=$texts [shard]=$files [tokens]=$files)
names=("${!counts[@]}") binaries=("${names[@]/%/_fuzz}")
ninja -C "$build" "${binaries[@]/#/tests/fuzz/}" >/dev/null

TMPDIR=$(mktemp -d)
export TMPDIR ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:allocator_may_return_null=1 UBSAN_OPTIONS=halt_on_error=1:abort_on_error=1:print_stacktrace=1
trap 'rm -rf "$TMPDIR"' EXIT
cd "$build"
for name in deck override manifest shard tokens; do
  "tests/fuzz/${name}_fuzz" "$root/tests/fuzz/corpus/$name" "${counts[$name]}" "$seed"
done
