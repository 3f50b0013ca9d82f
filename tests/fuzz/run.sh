#!/usr/bin/env bash
# Fuzzes everything that is read from disk or the command line, with AddressSanitizer and UndefinedBehaviorSanitizer:
#   tests/fuzz/run.sh [N [M]]     N mutated decks, overrides, MANIFESTs, safetensors and tokenizers each, M shards,
#                                 token files, HDF5 files and decks that are compiled each
# Works through parts, each a seed, on every processor, and continues where it was stopped: build-asan/fuzz/NAME-PROGRAM
# lists the parts that this version of the program has done. Inputs that crash are kept there as crash-NAME_fuzz-SEED.
set -euo pipefail

texts=${1:-1000000} files=${2:-200000}
names=(compile deck hdf5 override manifest safetensors shard tokenizer_json tokenizer_model tokens)
# shellcheck source=tests/sanitize/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/../sanitize/environment.sh"
SetUp address
targets=("${names[@]/%/_fuzz}")
Build "${targets[@]/#/tests/fuzz/}"

finished=$build/fuzz
mkdir -p "$finished"
# In memory, because written files are fsynced.
work=$(mktemp -d -p "$([[ -w /dev/shm ]] && echo /dev/shm || echo "${TMPDIR:-/tmp}")")
trap 'rm -rf "$work"' EXIT
export TMPDIR=$work build root finished

# List NAME: the file that lists its finished parts.
List() {
  local program
  program=$(sha256sum "$build/tests/fuzz/${1}_fuzz")
  echo "$finished/$1-${program:0:12}"
}

# Parts NAME COUNT SIZE: prints the parts that make COUNT inputs, without the finished ones: SEED NAME SIZE LIST.
Parts() {
  local name=$1 count=$2 size=$3 list seed
  list=$(List "$name")
  for ((seed = 1; (seed - 1) * size < count; seed++)); do
    grep -qs " seed=$seed " "$list" || echo "$seed $name $size $list"
  done
}

# Try SEED NAME SIZE LIST
Try() {
  cd "$finished"
  # Status 255 ends xargs immediately.
  "$build/tests/fuzz/$2_fuzz" "$root/tests/fuzz/corpus/$2" "$3" "$1" >>"$4" || exit 255
}
export -f Try

{
  for name in deck override manifest safetensors tokenizer_json tokenizer_model; do Parts "$name" "$texts" 5000; done
  for name in hdf5 shard tokens compile; do Parts "$name" "$files" 1000; done
} | sort -n | xargs -r -L 1 -P "$(nproc)" bash -c 'Try "$@"' try

# Sums, and the worst values.
for name in "${names[@]}"; do
  tr ' =' '\n ' <"$(List "$name")" | awk -v name="$name" '
    NF == 2 { sum[$1] += $2; if ($2 > most[$1]) most[$1] = $2 }
    END { rate = sum["mutated"] / (sum["seconds"] + 1e-9)
          printf "%s: %d mutated (%d accepted) in %.0f s of processor, %.0f a second; ",
            name, sum["mutated"], sum["accepted"], sum["seconds"], rate
          printf "slowest %.0f ms, at most %d bytes of heap\n", most["slowest_ms"], most["heap"] }'
done
