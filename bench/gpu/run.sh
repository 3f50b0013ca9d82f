#!/usr/bin/env bash
# Builds Espalier and measures training steps on this machine's GPU against PyTorch's:
#
#   bench/gpu/run.sh [-b BUILD] [option of bench.py ...] [SHAPE ...]
#
# One SHAPE (124m, 1.5b, 8b-4k, 8b-8k) takes at most ten minutes. -b: an existing meson build folder. --help lists the
# rest. Exit status 77 if there is no GPU, unless --device cpu.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/gpu/environment.sh
source "$here/../../tests/gpu/environment.sh"

build=''
if [[ ${1:-} == -b ]]; then
  build=$2
  shift 2
fi
if [[ " $* " == *" --help "* ]]; then exec python3 "$here/../bench.py" --help; fi
if [[ " $* " != *" cpu "* ]] && ! nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
  echo "skipped: no NVIDIA GPU (nvidia-smi -L lists none)"
  exit 77
fi
if [[ -z $build ]]; then
  build=$gpu_build/release
  mkdir -p "$gpu_build"
  "$here/../../tests/gpu/build.sh" >"$gpu_build/build.log" 2>&1 || { cat "$gpu_build/build.log"; exit 1; }
  # The build may just have found the libraries.
  # shellcheck source=tests/gpu/environment.sh
  source "$here/../../tests/gpu/environment.sh"
fi
exec python3 -u "$here/../bench.py" --build "$build" --spent "$SECONDS" "$@"
