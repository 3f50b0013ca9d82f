#!/usr/bin/env bash
# Builds Espalier for aarch64 on another processor and tests it under qemu's user emulation, by hand:
#
#   tests/aarch64/run.sh [BUILD]       BUILD: where everything goes, build-aarch64 without it
#
# Needs Debian and root once: a cross compiler, qemu, and the arm64 libraries of packages.txt, which are unpacked into
# BUILD/sysroot and not installed. Then builds the executable and the unit tests of kernels, program and deck, runs
# these, and trains a small deck on one rank and on two, whose losses must agree. On a real aarch64 machine tests/run.sh
# does all of this and more.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
build=$(mkdir -p "${1:-$root/build-aarch64}" && cd "${1:-$root/build-aarch64}" && pwd)
sysroot=$build/sysroot
libraries=$sysroot/usr/lib/aarch64-linux-gnu
jobs=${JOBS:-$(nproc)}
tools=(g++-aarch64-linux-gnu:aarch64-linux-gnu-g++ qemu-user:qemu-aarch64 mmdebstrap:mmdebstrap)

missing=()
for tool in "${tools[@]}"; do
  command -v "${tool#*:}" >/dev/null || missing+=("${tool%%:*}")
done
if [[ ${#missing[@]} -gt 0 ]]; then
  if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
    echo "missing; on Debian run as root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install "${missing[@]}" >/dev/null
fi

# The libraries of packages.txt, of which an emulated program needs no programs.
if [[ ! -f $build/sysroot.done ]]; then
  mapfile -t packages < <(sed -e 's/#.*//' -e 's/[[:space:]].*//' "$root/packages.txt" | grep -E -- '-dev$|^nlohmann')
  include=$(IFS=,; echo "libc6-dev,libstdc++-12-dev,libgomp1,${packages[*]}")
  rm -rf "$sysroot"
  mmdebstrap --quiet --variant=extract --arch=arm64 --include="$include" bookworm "$sysroot" 2>"$build/sysroot.log" ||
    { cat "$build/sysroot.log" >&2 && exit 1; }
  touch "$build/sysroot.done"
fi

cache=
if command -v ccache >/dev/null; then cache="'ccache', "; fi
cat >"$build/cross.ini" <<END
[binaries]
c = ['aarch64-linux-gnu-gcc', '--sysroot=$sysroot']
cpp = [${cache}'aarch64-linux-gnu-g++', '--sysroot=$sysroot']
ar = 'aarch64-linux-gnu-ar'
strip = 'aarch64-linux-gnu-strip'
pkgconfig = 'pkg-config'
exe_wrapper = ['qemu-aarch64', '-L', '$sysroot']
[built-in options]
cpp_link_args = ['-Wl,-rpath-link,$libraries', '-Wl,-rpath-link,$libraries/openmpi/lib']
[properties]
sys_root = '$sysroot'
pkg_config_libdir = ['$libraries/pkgconfig', '$sysroot/usr/share/pkgconfig']
[host_machine]
system = 'linux'
cpu_family = 'aarch64'
cpu = 'aarch64'
endian = 'little'
END

if [[ ! -f $build/meson/build.ninja ]]; then
  meson setup -Dunity=on -Db_pch=true "$build/meson" "$root" --cross-file "$build/cross.ini" -Dcuda=disabled \
    >"$build/setup.log" 2>&1 ||
    { cat "$build/setup.log" >&2 && exit 1; }
fi
tests=(util kernels host_kernels program deck)
targets=("${tests[@]/#/tests/}")
ninja -C "$build/meson" -j "$jobs" espalier "${targets[@]/%/_test}"

emulate=(qemu-aarch64 -L "$sysroot")
failed=0
for test in "${tests[@]}"; do
  log=$build/$test.log
  if (cd "$root/tests" && "${emulate[@]}" "$build/meson/tests/${test}_test") >"$log" 2>&1; then
    echo "ok    $test: $(grep -c '^\[       OK' "$log") tests"
  else
    echo "FAIL  $test: $log" && failed=1
  fi
done

# The launcher and its daemon are this machine's; the two agree on how they talk if they share no memory.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PMIX_MCA_gds=hash OMP_WAIT_POLICY=passive
losses=()
for ranks in 1 2; do
  run=$build/run-$ranks
  rm -rf "$run"
  command=("${emulate[@]}" "$build/meson/espalier" run "$root/tests/decks/small.toml" -d "$run" run.steps=4
    "parallel.tp=$ranks" checkpoint.every_steps=2)
  if ((ranks > 1)); then
    launch=(mpirun -n "$ranks" --oversubscribe --bind-to none --mca btl_vader_single_copy_mechanism none)
    command=("${launch[@]}" "${command[@]}")
  fi
  if "${command[@]}" >"$run.log" 2>&1; then
    losses+=("$(grep -o '"loss":[^,]*' "$run/metrics.jsonl" | tail -n 1)")
    echo "ok    $ranks rank(s), 4 steps: ${losses[-1]}"
  else
    echo "FAIL  $ranks rank(s): $run.log" && failed=1
  fi
done
# Sums are grouped differently.
if ((${#losses[@]} == 2)) &&
  ! awk -v a="${losses[0]#*:}" -v b="${losses[1]#*:}" 'BEGIN { exit (a - b > b * 1e-5 || b - a > b * 1e-5) }'; then
  echo "FAIL  the losses of one rank and of two differ by more than 1e-5" && failed=1
fi
exit "$failed"
