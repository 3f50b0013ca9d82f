#!/usr/bin/env bash
# build.sh SOURCE PREFIX: builds Espalier in a container of Debian or Ubuntu, as root, and installs it in PREFIX.
# PREFIX/packages lists the packages that it needs to run. With nvcc in PATH the CUDA module is built too.
set -euo pipefail
source=$1 prefix=$2

cuda=disabled
if command -v nvcc >/dev/null; then
  cuda=enabled
  apt-get update
  apt-get install -y --no-install-recommends python3-pip
  "$source/jobscripts/install_cuda_headers.sh"
fi
"$source/jobscripts/install_packages.sh"
# The clone belongs to somebody else; its revision is part of the version.
git config --global --add safe.directory "$source"

build=$(mktemp -d)
meson setup --prefix="$prefix" --libdir=lib -Dtests=disabled -Dunity=on -Dcuda="$cuda" "$build" "$source"
meson compile -C "$build"
meson install -C "$build" --no-rebuild --skip-subprojects

# The packages of the libraries that the binaries are linked with, and the launcher. Libraries of the C library and of
# CUDA belong to the image.
mapfile -t libraries < <(ldd "$prefix"/bin/espalier | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | xargs realpath)
{
  echo openmpi-bin
  # It fails if it does not know one of them, and still prints the others.
  { dpkg-query -S "${libraries[@]}" 2>/dev/null || true; } | cut -d: -f1 | grep -Ev '^(libc6|cuda-|libcudnn|libnccl)'
} | sort -u >"$prefix/packages"
rm -rf "$build"
