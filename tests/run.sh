#!/usr/bin/env bash
# Builds a release into build/ and runs every test but the slow suite: tests/run.sh [meson test options].
# Prints the log of each test that fails, ends with meson's own count and fails if any test did, or if none ran.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=jobscripts/common.sh
source "$here/../jobscripts/common.sh"

Build all

log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
meson test -C "$espalier_build" --no-rebuild --no-suite slow --print-errorlogs "$@" </dev/null 2>&1 | tee "$log" || status=$?

# Sum of the lines "LABEL: N" of the summary.
Count() { awk -v labels="$1" '$0 ~ "^(" labels "): +[0-9]+ *$" { n += $NF } END { print n + 0 }' "$log"; }

passed=$(Count 'Ok|Expected Fail')
failed=$(Count 'Fail|Unexpected Pass|Timeout')
if [[ $status -eq 0 && ($passed -eq 0 || $failed -ne 0) ]]; then status=1; fi
echo "$passed passed, $failed failed, $(Count 'Skipped') skipped"
exit "$status"
