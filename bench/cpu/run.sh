#!/usr/bin/env bash
# Measures training steps of GPT-2 124M's size on this machine's processor against PyTorch's, 1 x 1024 and 4 x 1024
# tokens per step, and of a small mixture of experts, in fp32 and in bf16:
#
#   bench/cpu/run.sh [-b BUILD] [option of bench.py ...] [SHAPE ...]
#
# -b: the meson build folder (build), with tests. --python names a Python that has PyTorch. --help lists the rest.
# ESPALIER_ISA in the environment caps the instruction set of both sides and of oneDNN. If other work runs on the
# machine, the times mean little: read the ratios, and repeat.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$here/../../build
if [[ ${1:-} == -b ]]; then
  build=$2
  shift 2
fi
case ${ESPALIER_ISA:-} in
  avx2) export ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ;;
  avx512) export ONEDNN_MAX_CPU_ISA=AVX512_CORE ATEN_CPU_CAPABILITY=avx512 MKL_ENABLE_INSTRUCTIONS=AVX512 ;;
  avx512_bf16) export ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 MKL_ENABLE_INSTRUCTIONS=AVX512_E2 ;;
  '' | amx) ;;
  *)
    echo "bench/cpu/run.sh: ESPALIER_ISA=$ESPALIER_ISA has no counterpart in PyTorch (allowed: avx2, avx512," \
      "avx512_bf16, amx)" >&2
    exit 2
    ;;
esac
shapes=(124m@1024 124m@4096 moe@4096) formats=(fp32 bf16)
for argument in "$@"; do
  case $argument in
    --compute*) formats=('') ;;
    --help) exec python3 "$here/../bench.py" --help ;;
    tiny* | 124m* | moe* | mla* | 1.5b* | 8b*) shapes=() ;;
  esac
done
bytes=$(awk '/^MemAvailable/ { printf "%.0f", $2 * 1024 }' /proc/meminfo)
status=0
for format in "${formats[@]}"; do
  python3 -u "$here/../bench.py" --build "$build" --device cpu ${format:+--compute "$format"} --memory "$bytes" \
    --seconds 3600 --ways espalier,compile,eager --steps 6 "$@" "${shapes[@]}" || status=$?
done
exit "$status"
