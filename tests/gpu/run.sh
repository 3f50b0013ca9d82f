#!/usr/bin/env bash
# Builds Espalier on a machine with an NVIDIA GPU and checks all that one GPU can check:
#
#   tests/gpu/run.sh [-b BUILD] [-l LOGS] [-o FILE.tgz] [-t SECONDS] [PART or GROUP ...]
#
# A group is what fits into ten minutes with its share of the build, on a machine with 16 cores:
#
#   first        info kernels collectives losses graph
#   second       fusions nccl layouts
#   third        memcheck racecheck
#
#   info         what the executable found: GPU, driver, libraries
#   kernels      every kernel against the plain one in fp64
#   collectives  every kind of communication on communicators of one rank, issued and in a graph
#   losses       the tiny deck on the CPU and on the GPU beside each other, fp32, rtol 1e-4
#   graph        steps replayed as a CUDA graph and steps issued one by one, bitwise equal
#   nccl         eight ranks, NCCL of each to itself, in a graph and without, bitwise equal
#   layouts      rows of the matrix of layouts, 2 to 16 ranks that share the GPU, messages over MPI
#   memcheck     our own kernels in their tests under compute-sanitizer
#   racecheck    the same
#   matrix-1 ... matrix-4   the whole matrix of layouts in quarters; only when asked for
#
# Without any, all three groups follow one another. -b: a meson build folder to take as it is, instead of building; it
# may come from another machine. -l: the folder for one log a part (build-gpu/logs). -o: an archive to make of all logs,
# however it ends. -t: seconds for all of it, the build included (570 for each group): a part may take half of what is
# left, the last one all, so that one that hangs hides no other; one for which none is left is skipped.
#
# Ends with one line a part: ok, FAIL, "cut" (it was not done in its time, and had not failed) or skip. Exit status: 0
# (all ok), 1 (one failed), 124 (none failed, one was cut) or 77 (all were skipped, or there is no GPU). The log
# margins.tsv has the deviation and the bound of each comparison of `kernels`. ESPALIER_CUDA_MODULE names another module
# to load, an emulated one too; ESPALIER_DEVICE=cpu rehearses the script without a GPU.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/gpu/environment.sh
source "$here/environment.sh"

logs=$gpu_build/logs
seconds_of_group=570
budget=''
build=''
archive=''
while getopts b:l:o:t:h option; do
  case $option in
    b) build=$OPTARG ;;
    l) logs=$OPTARG ;;
    o) archive=$OPTARG ;;
    t) budget=$OPTARG ;;
    *)
      sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
      [[ $option == h ]] && exit 0 || exit 2
      ;;
  esac
done
shift $((OPTIND - 1))
first=(info kernels collectives losses graph)
second=(fusions nccl layouts)
third=(memcheck racecheck)
if [[ $# -eq 0 ]]; then set -- first second third; fi
parts=()
groups=0
for name in "$@"; do
  case $name in
    first) parts+=("${first[@]}") groups=$((groups + 1)) ;;
    second) parts+=("${second[@]}") groups=$((groups + 1)) ;;
    third) parts+=("${third[@]}") groups=$((groups + 1)) ;;
    *) parts+=("$name") ;;
  esac
done
: "${budget:=$((seconds_of_group * (groups > 0 ? groups : 1)))}"

export ESPALIER_DEVICE=${ESPALIER_DEVICE:-cuda}
HasGpu() { nvidia-smi -L 2>/dev/null | grep -q '^GPU'; }
if [[ $ESPALIER_DEVICE == cuda && -z ${ESPALIER_CUDA_MODULE:-} ]] && ! HasGpu; then
  echo "skipped: no NVIDIA GPU (nvidia-smi -L lists none)"
  exit 77
fi

margins=''
kernels=${build:-$gpu_build/release}/tests/gpu/kernels
collectives=${build:-$gpu_build/release}/tests/emulation/nccl_alone_cuda_test
layouts=("2x1x2x1x2 fp32" "1x1x1x2x1 fp32 context=ring" "1x1x1x4x1 fp32 context=ring"
  "1x1x1x4x1 fp32 heads=8 kv_heads=4 context=all_to_all"
  "1x1x1x1x4 fp32 20 steps" "1x2x2x1x2 fp32 20 steps" "2x1x2x1x2 fp32 schedule=zbv chunks=2"
  "2x1x2x1x2 gpt2 fp32 20 steps"
  "2x1x2x2x2 fp32 20 steps heads=8 kv_heads=4 context=ring" "2x1x2x1x2 bf16 zero=3" "1x1x1x2x1 bf16 context=ring"
  "1x1x2x1x1 fp32 count=5 per_token=2 ffn_dim=23" "1x1x1x1x2 fp32 count=5 per_token=2 ffn_dim=23")

# Matmuls are the library's kernels, and tests of many large ones take minutes under a sanitizer.
slow_under_sanitizers='*Matmul*:*Muon*:*HundredsOfTensors*:*OfFrequentTokens*'

# Puts the command of a part into `command`, and the programs that it needs.
Choose() {
  programs=()
  case $1 in
    info) command=("$ESPALIER" info) ;;
    kernels) command=(env "ESPALIER_KERNEL_MARGINS=$margins" "$kernels") programs=("$kernels") ;;
    collectives) command=("$collectives") programs=("$collectives") ;;
    losses | graph | fusions | nccl) command=(python3 -u "$here/compare.py" "$1") ;;
    layouts) command=(python3 -u "$here/../mpi/matrix.py" named "${layouts[@]}") ;;
    # Libraries try calls that may fail, and their kernels are theirs.
    memcheck | racecheck)
      command=(compute-sanitizer --error-exitcode 9 --tool "$1" --kernel-name kns=espalier --report-api-errors no
        "$kernels" "--gtest_filter=-$slow_under_sanitizers")
      programs=(compute-sanitizer "$kernels")
      ;;
    matrix-[1-4]) command=(env ESPALIER_TEST_SHARE="${1#matrix-}/4" python3 -u "$here/../mpi/matrix.py") ;;
    *)
      echo "no part or group is called $1; groups are first second third, parts are ${first[*]} ${second[*]}" \
        "${third[*]} matrix-1 matrix-2 matrix-3 matrix-4" >&2
      exit 2
      ;;
  esac
}

# Run PART SECONDS: its log, then its verdict and the log's last words.
Run() {
  local result log=$logs/$1.log
  Choose "$1"
  for program in "${programs[@]}"; do
    if ! command -v "$program" >/dev/null; then
      verdict="skip" note="$program is missing"
      return
    fi
  done
  timeout --kill-after=10 "$2" "${command[@]}" >"$log" 2>&1 </dev/null
  result=$?
  note=$(tail -n 1 "$log")
  case $result in
    0) verdict="ok" ;;
    77) verdict="skip" ;;
    124 | 137) verdict="cut" note="not done after $2 s: $note" ;;
    *) verdict="FAIL" ;;
  esac
  if [[ $verdict == cut ]] && grep -qE '^\[  FAILED  \]|^FAIL' "$log"; then verdict="FAIL"; fi
  if [[ $verdict == FAIL || $verdict == cut ]]; then tail -n 30 "$log"; fi
}

# The closest comparisons of `kernels`, and all that went beyond their bound.
PrintMargins() {
  if [[ ! -s $margins ]]; then return; fi
  printf '\n%s comparisons; closest to their bounds (deviation, bound, share):\n' "$(wc -l <"$margins")"
  sort -t $'\t' -k7,7gr "$margins" | head -n 15
}

for part in "${parts[@]}"; do Choose "$part"; done
mkdir -p "$logs"
logs=$(cd "$logs" && pwd)
margins=$logs/margins.tsv
rm -f "$logs"/*.log "$margins"
# However the script ends.
if [[ -n $archive ]]; then trap 'tar -czf "$archive" -C "$(dirname "$logs")" "$(basename "$logs")"' EXIT; fi
SECONDS=0
making=("$here/build.sh")
if [[ -n $build ]]; then making+=(libraries); fi
if [[ -z $build || -d $gpu_pack ]] && ! "${making[@]}" >"$logs/build.log" 2>&1; then
  cat "$logs/build.log"
  echo "FAIL     build"
  exit 1
fi
# The build may just have found the libraries.
# shellcheck source=tests/gpu/environment.sh
source "$here/environment.sh"
export ESPALIER=${build:-$gpu_build/release}/espalier

summary=()
status=77
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null
if [[ -z $build ]]; then echo "built in $SECONDS s"; fi
rest=${#parts[@]}
for part in "${parts[@]}"; do
  begin=$SECONDS
  left=$((budget - begin))
  if ((--rest > 0)); then left=$(((left + 1) / 2)); fi
  if ((left > 0)); then Run "$part" "$left"; else verdict="skip" note="no time left of $budget s"; fi
  case $verdict in
    FAIL) status=1 ;;
    cut) ((status == 1)) || status=124 ;;
    ok) ((status != 77)) || status=0 ;;
  esac
  line=$(printf '%-5s %-11s %5d s  %s' "$verdict" "$part" $((SECONDS - begin)) "${note:0:120}")
  echo "$line"
  summary+=("$line")
done
PrintMargins
printf '\n%s\n' "summary ($ESPALIER_DEVICE; logs in $logs)"
printf '%s\n' "${summary[@]}"
exit "$status"
