#!/usr/bin/env bash
# Every shell script of the tree passes shellcheck. Exit status 77 where shellcheck is missing: skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if ! command -v shellcheck >/dev/null; then
  echo "skipped: shellcheck is missing"
  exit 77
fi
mapfile -t scripts < <(
  find .ci bench doc jobscripts packaging tests -type f \
    \( -name '*.sh' -o -name '*.sbatch' -o -path '.ci/run' -o -path '*/stand_ins/*' \) | sort
)
shellcheck -x "${scripts[@]}"
echo "${#scripts[@]} scripts"
