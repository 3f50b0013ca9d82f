#!/usr/bin/env bash
# Gathers in .gpu/ what a GPU machine without network needs to build and run Espalier:
#
#   tests/gpu/pack.sh
#
# Run it on Debian 12 with the packages of packages.txt and the CUDA toolkit, then copy the tree with .gpu/ to the other
# machine, where tests/gpu/run.sh and bench/gpu/run.sh unpack and build. That machine brings the CUDA toolkit, g++,
# meson, ninja and python3; cuDNN and NCCL may be those of Python's packages there. All that travels must stay under 60
# MiB.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
pack=$root/.gpu
most_bytes=$((60 << 20))

"$root/jobscripts/install_packages.sh"

# The build's inputs: the libraries of packages.txt, but for a benchmark's. And what the programs load, for which dpkg
# is asked.
mapfile -t development < <(sed -n 's/^\([^ ]*-dev\) .*/\1/p' "$root/packages.txt" |
  grep -v -e '^libdnnl-dev$' -e '^libboost-context-dev$')
development+=(libboost-context1.74-dev libboost-context1.74.0 pkgconf pkgconf-bin libpkgconf3 openmpi-bin openmpi-common
  libopenmpi3)
loaded=(/usr/bin/orterun /usr/bin/pkgconf libmpi_cxx.so.40 openmpi/lib/openmpi3/mca_pmix_ext3x.so libhdf5_serial.so.103
  libtomlplusplus.so.3 libfmt.so.9 libspdlog.so.1.10 libpcre2-8.so.0 libutf8proc.so.2 libsentencepiece.so.0)
# These every machine with a compiler has, in a version that fits its own programs.
everywhere='^(libc6|libgcc-s1|libstdc\+\+6|libgomp1|zlib1g)$'

# Packages LIBRARY ...: the packages of the libraries and of all that they load. dpkg knows a file by the folder of its
# package, which may be /lib for a file in /usr/lib.
Packages() {
  local path=()
  for name in "$@"; do
    [[ $name == /* ]] || name=/usr/lib/$(gcc -print-multiarch)/$name
    path+=("$name")
  done
  {
    printf '%s\n' "${path[@]}"
    ldd "${path[@]}" | awk '/=> \// { print $3 }'
  } | sort -u | xargs realpath | sed 'p; s|^/usr||' | { xargs dpkg -S 2>/dev/null || true; } |
    sed 's/:.*//' | sort -u | grep -Ev "$everywhere"
}

Debs() {
  local wanted
  mapfile -t wanted < <({ printf '%s\n' "${development[@]}"; Packages "${loaded[@]}"; } | sort -u)
  mkdir -p "$pack/debs"
  # Downloads as this user, not as _apt, who may not enter the folder.
  (cd "$pack/debs" && apt-get -q -o APT::Sandbox::User=root download "${wanted[@]}" >/dev/null)
}

CudaHeaders() {
  local include
  include=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")/include
  mkdir -p "$pack/include"
  cp -rL "$include"/cudnn*.h "$include"/nccl*.h "$pack/include"
  mkdir -p "$pack/cublas"
  cp -L "$include"/cublas{Lt,_api}.h "$pack/cublas"
  if [[ -d $include/nccl_device ]]; then cp -rL "$include/nccl_device" "$pack/include"; fi
  "$root/jobscripts/install_cuda_headers.sh"
  cp -r "$root"/build-deps/cudnn_frontend/include/* "$pack/include"
}

# The files that git would carry, and .gpu/.
Bytes() {
  (cd "$root" && { git ls-files -z --cached --others --exclude-standard && find .gpu -type f -print0; } |
    xargs -0 stat -c %s 2>/dev/null | awk '{ n += $1 } END { print n + 0 }')
}

rm -rf "$pack"
Debs
CudaHeaders
bytes=$(Bytes)
packages=$(find "$pack/debs" -name '*.deb' | wc -l)
echo ".gpu: $packages packages, $(du -sm "$pack" | cut -f1) MiB; with the tree $((bytes >> 20)) MiB"
if ((bytes > most_bytes)); then
  echo "too much: $((most_bytes >> 20)) MiB may travel" >&2
  exit 1
fi
