#!/usr/bin/env bash
# Builds a release into build/ and runs tests: tests/run.sh [WORD] [meson test options]
#   without     as continuous integration does: all that is in fast, and of other tests but the slow suite a share, as
#               of the rows of wide tables. ESPALIER_TEST_SHARE names it (tests/support/share.py); by default it is an
#               eighth, drawn by the commit
#   full        all but the slow suite, with whole tables
#   fast        less than three minutes on two quiet cores: the suites unit, passes, deck and short, but not long
#   SUITE       unit, passes, deck, mpi, restart, gpu or slow
# Prints the log of each test that fails, ends with meson's own count and fails if any test did, or if none ran.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=jobscripts/common.sh
source "$here/../jobscripts/common.sh"

words=(full fast unit passes deck mpi restart gpu slow)
word=
if [[ $# -gt 0 && $1 != -* ]]; then
  word=$1
  shift
fi
case " ${words[*]} " in
  *" ${word:-full} "*) ;;
  *)
    echo "tests/run.sh: '$word' is unknown (allowed: ${words[*]}, and options of meson test)" >&2
    exit 2
    ;;
esac
selection=(--suite "$word")
case $word in
  '')
    selection=(--no-suite slow --no-suite short)
    commit=$(git -C "$here" rev-parse --verify --quiet HEAD 2>/dev/null || echo 0)
    export ESPALIER_TEST_SHARE=${ESPALIER_TEST_SHARE:-$((16#${commit:0:7} % 8 + 1))/8}
    ;;
  full)
    selection=(--no-suite slow --no-suite short)
    unset ESPALIER_TEST_SHARE
    ;;
  fast) selection=(--suite unit --suite passes --suite deck --suite short --no-suite long) ;;
esac

said=
if [[ -n ${ESPALIER_TEST_SHARE:-} ]]; then
  said="share $ESPALIER_TEST_SHARE of wide tables"
  if [[ -z $word ]]; then said+=" and of the tests that fast leaves out"; fi
  echo "$said; tests/run.sh full runs all"
fi

Build all

# Names of tests, in the order of the build files.
List() { meson test -C "$espalier_build" --no-rebuild --list "$@" | sed -n 's|^espalier:.* / ||p'; }

if [[ -z $word ]]; then
  mapfile -t dealt < <(List --suite mpi --suite restart --suite long --no-suite slow --no-suite tables)
  mapfile -t selection < <(
    List "${selection[@]}" | grep --invert-match --line-regexp --fixed-strings --file <(printf '%s\n' "${dealt[@]}")
    python3 "$here/support/share.py" "${dealt[@]}"
  )
fi

# Tests that run side by side wait half of the time: three on two cores.
processes=$(($(nproc) * 3 / 2))
log=$(mktemp)
errors=$(mktemp)
trap 'rm -f "$log" "$errors"' EXIT
export ESPALIER_TEST_ERRORS=$errors
status=0
meson test -C "$espalier_build" --no-rebuild --num-processes "$processes" "${selection[@]}" --print-errorlogs "$@" \
  </dev/null 2>&1 |
  tee "$log" || status=$?

# Sum of the lines "LABEL: N" of the summary.
Count() { awk -v labels="$1" '$0 ~ "^(" labels "): +[0-9]+ *$" { n += $NF } END { print n + 0 }' "$log"; }

passed=$(Count 'Ok|Expected Fail')
failed=$(Count 'Fail|Unexpected Pass|Timeout')
if [[ $status -eq 0 && ($passed -eq 0 || $failed -ne 0) ]]; then status=1; fi
# Every error that the tests have seen is in doc/errors.md.
if ! python3 "$here/errors.py" --recorded "$errors"; then status=1; fi
echo "$passed passed, $failed failed, $(Count 'Skipped') skipped${said:+; $said}"
exit "$status"
