#!/usr/bin/env bash
# Runs espalier on a rank that sees only the GPU of its number on the node: what a supervisor starts (--program).
#
#   one_gpu.sh run DECK [key=value ...]
#
# The environment may set
#   ESPALIER        the executable
set -euo pipefail
# shellcheck source=jobscripts/chain.sh
source "$(dirname "${BASH_SOURCE[0]}")/chain.sh"
launcher=()
GiveEachRankAGpu
exec "${launcher[@]}" "${ESPALIER:-$espalier}" "$@"
