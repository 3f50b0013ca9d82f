# Sourced by the scripts that build and run: packages, the release build, settings of Open MPI.
# shellcheck shell=bash

# A clone, with its build in build/; or PREFIX/share/espalier, where `meson install` puts these scripts.
espalier_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
espalier_build=$espalier_root/build
if [[ -f $espalier_root/meson.build ]]; then
  espalier=$espalier_build/espalier
else
  espalier=$(cd "$espalier_root/../../bin" 2>/dev/null && pwd)/espalier
  if [[ ! -x $espalier ]]; then espalier=$(command -v espalier) || espalier=espalier; fi
fi

# Open MPI refuses root unless it is told twice.
if [[ $EUID -eq 0 ]]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi

# TCP keepalive between mpirun and its daemons on other hosts: first probe after 30 s of silence, 4 probes within 20 s.
# If the network fails they exit then, instead of minutes later.
export OMPI_MCA_oob_tcp_keepalive_time=${OMPI_MCA_oob_tcp_keepalive_time:-30}
export OMPI_MCA_oob_tcp_keepalive_intvl=${OMPI_MCA_oob_tcp_keepalive_intvl:-5}
export OMPI_MCA_oob_tcp_keepalive_probes=${OMPI_MCA_oob_tcp_keepalive_probes:-4}

# ccache, where it is installed: objects serve other clones, and it understands precompiled headers.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$espalier_root}
export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-pch_defines,time_macros}

# Runs a command silently; if it fails, prints its output.
Quietly() {
  local log status=0
  log=$(mktemp)
  "$@" </dev/null >"$log" 2>&1 || status=$?
  if [[ $status -ne 0 ]]; then cat "$log" >&2; fi
  rm -f "$log"
  return "$status"
}

# Fetches what the CUDA module needs besides the toolkit, if there is a toolkit. A build directory that was set up
# without it has no CUDA module and is configured again.
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
# needs nothing for GPUs. A new build/ is a unity build with precompiled headers, which takes a third of the time;
# `meson configure build -Dunity=off -Db_pch=false` makes single files quicker to compile again. An installation has
# nothing to build.
Build() {
  if [[ ! -f $espalier_root/meson.build ]]; then return; fi
  "$espalier_root/jobscripts/install_packages.sh" || return
  if [[ $* != espalier ]]; then CudaHeaders || return; fi
  if [[ ! -f $espalier_build/build.ninja ]]; then
    echo "setting up $espalier_build"
    Quietly meson setup --buildtype=release -Dunity=on -Db_pch=true "$espalier_build" "$espalier_root" || return
  fi
  # Quick if nothing is to be done; otherwise ninja shows its progress.
  ninja -C "$espalier_build" -j "${JOBS:-$(nproc)}" "$@" </dev/null
}

# DeckValue ESPALIER SECTION KEY DECK [key=value ...]: prints the value of KEY = "..." in the effective deck.
DeckValue() {
  "$1" check "${@:4}" |
    awk -v section="[$2]" -v key="$3" '/^\[/ { here = $1 }
      here == section && $1 == key { split($0, part, "\""); found = part[2] }
      END { print found }'
}

# RunDir ESPALIER DECK [key=value ...]: prints the folder of the run.
RunDir() { DeckValue "$1" run dir "${@:2}"; }

# EndIfAlone LAUNCHER [SECONDS]: kills a launcher that still runs although all its children have died. Open MPI (with
# PMIx 4.2) deadlocks at its end if a rank dies while it connects. Runs in the background; returns when the launcher has
# ended.
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
