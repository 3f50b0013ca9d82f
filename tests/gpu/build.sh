#!/usr/bin/env bash
# Builds Espalier with its CUDA module, the kernels' tests and the bare products in build-gpu/, from .gpu/ if it is
# there:
#
#   tests/gpu/build.sh [meson option ...]
#   tests/gpu/build.sh libraries             # builds nothing: only unpacks .gpu/ and finds CUDA's libraries
#
# The module is built for the machine's GPU, or for all that Espalier knows where there is none. A second call does only
# what has changed, judged by contents, so the tree may be copied there again. GPU_BUILD names another folder, JOBS the
# compilers side by side.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/gpu/environment.sh
source "$here/environment.sh"

Unpack() {
  local newest
  newest=$(printf '%s\n' "$gpu_pack"/debs/*.deb | cksum)
  if [[ -f $gpu_prefix/unpacked && $(<"$gpu_prefix/unpacked") == "$newest" ]]; then return; fi
  rm -rf "$gpu_prefix"
  mkdir -p "$gpu_prefix"
  for deb in "$gpu_pack"/debs/*.deb; do UnpackDeb "$deb"; done
  # Some packages still say /lib for what Debian has in /usr/lib.
  if [[ -d $gpu_prefix/lib ]]; then
    cp -a "$gpu_prefix/lib/." "$gpu_prefix/usr/lib/"
    rm -r "${gpu_prefix:?}/lib"
  fi
  # The links that Debian's packages make as they are installed.
  ln -sf orterun "$gpu_prefix/usr/bin/mpirun"
  ln -sf pkgconf "$gpu_prefix/usr/bin/pkg-config"
  echo "$newest" >"$gpu_prefix/unpacked"
}

# A machine of another distribution may lack dpkg: then the archive in the archive is taken out.
UnpackDeb() {
  if command -v dpkg >/dev/null; then
    dpkg -x "$1" "$gpu_prefix"
  else
    ar p "$1" data.tar.xz | tar -xJ -C "$gpu_prefix"
  fi
}

# Where libraries may lie: the toolkit, Python's packages of them, the system.
LibraryFolders() {
  local cuda_home
  cuda_home=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
  printf '%s\n' "$cuda_home/lib64" "$cuda_home/lib" /usr/local/cuda/lib64 "$cuda_home"/targets/*/lib
  python3 -c 'import glob, sys; print(*(f for p in sys.path for f in glob.glob(p + "/nvidia/*/lib")), sep="\n")'
  printf '%s\n' /usr/lib/*-linux-gnu /usr/lib64
}

# FindLibrary NAME FOLDER ...: the first that is there. Python's packages have no link without a version.
FindLibrary() {
  local name=$1 folder
  for folder in "${@:2}"; do
    for file in "$folder/lib$name.so" "$folder/lib$name.so".[0-9]*; do
      if [[ -e $file ]]; then
        echo "$file"
        return
      fi
    done
  done
  echo "lib$name.so is nowhere: neither in the CUDA toolkit, nor in Python's nvidia packages, nor in /usr/lib" >&2
  return 1
}

# Links without versions for the linker, and the folders for the loader.
CudaLibraries() {
  local name file found folders=''
  mapfile -t found < <(LibraryFolders)
  mkdir -p "$gpu_libraries"
  for name in cudart cublasLt cudnn nccl nvrtc; do
    file=$(FindLibrary "$name" "${found[@]}")
    ln -sf "$file" "$gpu_libraries/lib$name.so"
    folders+=$(dirname "$file")$'\n'
  done
  printf '%s' "$folders" | sort -u >"$gpu_libraries/folders"
}

Architectures() {
  local found
  found=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
    tr -d . | sort -nu | paste -sd,) || true
  [[ $found =~ ^[0-9,]+$ ]] && echo "-Dgpu_architectures=$found"
}

Meson() {
  if command -v meson >/dev/null; then meson "$@"; else python3 -m mesonbuild.mesonmain "$@"; fi
}

Ninja() {
  if command -v ninja >/dev/null; then ninja "$@"; else python3 -m ninja "$@"; fi
}

if [[ -d $gpu_pack/debs ]]; then Unpack; fi
command -v nvcc >/dev/null || { echo "nvcc is missing: the CUDA toolkit is needed to build for GPUs" >&2; exit 1; }
CudaLibraries
if [[ ${1:-} == libraries ]]; then exit; fi
# shellcheck source=tests/gpu/environment.sh
source "$here/environment.sh"
tree=$gpu_build/release
options=(--buildtype=release -Dcuda=enabled "-Dgpu_libraries=$gpu_libraries" "$@")
if architectures=$(Architectures); then options+=("$architectures"); fi
if [[ -f $tree/build.ninja ]]; then
  Meson configure "$tree" "${options[@]}" >/dev/null
else
  Meson setup "$tree" "$gpu_root" "${options[@]}" >"$gpu_build/setup.log" || { cat "$gpu_build/setup.log" >&2; exit 1; }
fi
python3 "$here/keep_times.py" "$gpu_root" "$gpu_build/times.json"
Ninja -C "$tree" -j "${JOBS:-$(nproc)}" gpu </dev/null
