# Sourced by the scripts for GPU machines: where the packages of .gpu/, the CUDA toolkit and the build lie. Without
# .gpu/ the machine's own packages are used, and only CUDA is looked for.
# shellcheck shell=bash

gpu_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
gpu_pack=$gpu_root/.gpu
gpu_build=${GPU_BUILD:-$gpu_root/build-gpu}
gpu_prefix=$gpu_build/prefix
gpu_libraries=$gpu_build/libraries

# Prepend VARIABLE FOLDER: before a list of folders, unless it is there.
Prepend() {
  case ":${!1:-}:" in
    *":$2:"*) ;;
    *) export "$1=$2${!1:+:${!1}}" ;;
  esac
}

# Open MPI, PMIx and all that was configured for /usr, moved to the prefix. One machine without ssh needs no launcher of
# daemons, and the plugins for networks that were left behind are not missed.
UsePrefix() {
  local usr=$gpu_prefix/usr folder
  folder=$(echo "$usr"/lib/*-linux-gnu)
  Prepend PATH "$usr/bin"
  Prepend LD_LIBRARY_PATH "$folder"
  # pkg-config knows the others.
  export LDFLAGS=-L$folder
  Prepend CPATH "$usr/include"
  Prepend PKG_CONFIG_PATH "$usr/share/pkgconfig"
  Prepend PKG_CONFIG_PATH "$folder/pkgconfig"
  export PKG_CONFIG_SYSROOT_DIR=$gpu_prefix
  export PMIX_INSTALL_PREFIX=$folder/pmix2 PMIX_PKGLIBDIR=$folder/pmix2/lib/pmix
  export PMIX_PKGDATADIR=$folder/pmix2/share/pmix
  export OPAL_PREFIX=$usr OPAL_LIBDIR=$folder OPAL_PKGLIBDIR=$folder/openmpi/lib/openmpi3 \
    OPAL_SYSCONFDIR=$gpu_prefix/etc/openmpi OPAL_PKGDATADIR=$usr/share/openmpi OPAL_DATADIR=$usr/share
  export OMPI_MCA_plm=isolated OMPI_MCA_mca_base_component_show_load_errors=0
  export PMIX_MCA_mca_base_component_show_load_errors=0
}

# The paths with which Python programs of the machine ran before: their libraries must not become the prefix's.
export ESPALIER_HOST_LIBRARY_PATH=${ESPALIER_HOST_LIBRARY_PATH-${LD_LIBRARY_PATH:-}}
if [[ -d $gpu_pack/include ]]; then Prepend CPATH "$gpu_pack/include"; fi
if [[ -d $gpu_prefix ]]; then UsePrefix; fi
if ! command -v nvcc >/dev/null && [[ -x /usr/local/cuda/bin/nvcc ]]; then Prepend PATH /usr/local/cuda/bin; fi
# A toolkit may be the compiler and the runtime alone.
CublasOfToolkit() { ls "$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")/include/cublasLt.h" &>/dev/null; }
if command -v nvcc >/dev/null && [[ -d $gpu_pack/cublas ]] && ! CublasOfToolkit; then
  Prepend CPATH "$gpu_pack/cublas"
fi
# Where build.sh found the libraries, one folder a line.
if [[ -f $gpu_libraries/folders ]]; then
  while read -r path; do Prepend LD_LIBRARY_PATH "$path"; done <"$gpu_libraries/folders"
fi
export ESPALIER=$gpu_build/release/espalier
# One host: NCCL and Open MPI talk over its loopback interface.
python3 "$gpu_root/tests/gpu/loopback.py" || true
export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-lo} NCCL_IB_DISABLE=${NCCL_IB_DISABLE:-1}
if [[ $EUID -eq 0 ]]; then export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1; fi
for path in /usr/local/cuda/compute-sanitizer /opt/nvidia/compute-sanitizer; do
  if ! command -v compute-sanitizer >/dev/null && [[ -x $path/compute-sanitizer ]]; then Prepend PATH "$path"; fi
done
