# Sourced by the scripts that build and run: the packages, the release build and what Open MPI wants to know.
# shellcheck shell=bash

espalier_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
espalier_build=$espalier_root/build

# Open MPI refuses root unless it is told twice.
if [[ $EUID -eq 0 ]]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi

# mpirun and its daemons on other hosts ask whether the other side is still there, after 30 s without a word and 4 times
# within 20 s: if the network between them is down they end, which they would otherwise do after minutes.
export OMPI_MCA_oob_tcp_keepalive_time=${OMPI_MCA_oob_tcp_keepalive_time:-30}
export OMPI_MCA_oob_tcp_keepalive_intvl=${OMPI_MCA_oob_tcp_keepalive_intvl:-5}
export OMPI_MCA_oob_tcp_keepalive_probes=${OMPI_MCA_oob_tcp_keepalive_probes:-4}

# Runs a command silently; if it fails, shows what it wrote.
Quietly() {
  local log status=0
  log=$(mktemp)
  "$@" </dev/null >"$log" 2>&1 || status=$?
  if [[ $status -ne 0 ]]; then cat "$log" >&2; fi
  rm -f "$log"
  return "$status"
}

# What the module for GPUs needs besides the toolkit, where there is one. A build that was set up without it has left
# the module out.
CudaHeaders() {
  command -v nvcc >/dev/null || return 0
  local version=$espalier_root/build-deps/cudnn_frontend/version before=
  if [[ -f $version ]]; then before=yes; fi
  "$espalier_root/jobscripts/install_cuda_headers.sh" || { echo "the module for GPUs may be left out" >&2 && return; }
  if [[ -z $before && -f $espalier_build/build.ninja ]]; then
    Quietly meson setup --reconfigure "$espalier_build" "$espalier_root"
  fi
}

# Build [TARGET ...]: installs the packages and brings the release in build/ up to date. The target espalier alone
# needs nothing for GPUs.
Build() {
  "$espalier_root/jobscripts/install_packages.sh" || return
  if [[ $* != espalier ]]; then CudaHeaders || return; fi
  if [[ ! -f $espalier_build/build.ninja ]]; then
    echo "setting up $espalier_build"
    Quietly meson setup --buildtype=release "$espalier_build" "$espalier_root" || return
  fi
  # Without work this takes a moment and says so; with work it shows its progress.
  ninja -C "$espalier_build" -j "${JOBS:-$(nproc)}" "$@" </dev/null
}

# RunDir ESPALIER DECK [key=value ...]: the folder of the run, from the effective deck: dir = "..." of section [run].
RunDir() {
  "$1" check "${@:2}" |
    awk '/^\[/ { section = $1 } section == "[run]" && $1 == "dir" { split($0, part, "\""); found = part[2] } END { print found }'
}

# EndIfAlone LAUNCHER [SECONDS]: ends a launcher that stays behind when everything it started has died: Open MPI's (with PMIx 4.2) locks itself
# out at its end if a rank dies while it connects. For the background; returns when the launcher has ended.
EndIfAlone() {
  local launcher=$1 seconds=${2:-20} alone=0 begun=
  while kill -0 "$launcher" 2>/dev/null; do
    sleep 1
    # shellcheck disable=SC2009  # pgrep would count the dead
    if ps --ppid "$launcher" -o stat= | grep -qv '^Z'; then
      begun=yes alone=0
    elif [[ -n $begun ]] && ((++alone >= seconds)); then
      kill -KILL "$launcher" 2>/dev/null
    fi
  done
}
