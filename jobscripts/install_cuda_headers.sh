#!/usr/bin/env bash
# Fetches cuDNN's header-only C++ front end, which no toolkit contains, into build-deps/. Quick if it is there already.
set -euo pipefail

version=1.32.0
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
target=$root/build-deps/cudnn_frontend

if [[ -f $target/version && $(<"$target/version") == "$version" ]]; then exit 0; fi

echo "fetching cuDNN's front end $version (headers for the module for GPUs) from PyPI into $target"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$scratch" \
  "nvidia-cudnn-frontend==$version" </dev/null
python3 -m zipfile -e "$scratch"/*.whl "$scratch/wheel"
rm -rf "$target"
mkdir -p "$target"
mv "$scratch/wheel/include" "$target/include"
echo "$version" >"$target/version"
