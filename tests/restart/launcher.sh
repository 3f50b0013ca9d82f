#!/usr/bin/env bash
# EndIfAlone of jobscripts/common.sh: a launcher that outlives its children is ended, one that ends by itself keeps
# its exit status.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=jobscripts/common.sh
source "$here/../../jobscripts/common.sh"

# Launcher CODE SECONDS: has a child for SECONDS, for which it does not wait, and then ends with CODE or, without a
# CODE, never.
Launcher() {
  python3 -c 'import subprocess, sys, time
child = subprocess.Popen(["sleep", sys.argv[2]])
time.sleep(float(sys.argv[2]) + 1)
time.sleep(3600) if sys.argv[1] == "never" else sys.exit(int(sys.argv[1]))' "$@" &
}
# Status SECONDS: the launcher's exit status, with a guard of this patience.
Status() {
  local launcher=$! status=0
  EndIfAlone "$launcher" "$1" &
  wait "$launcher" || status=$?
  wait
  return "$status"
}

failed=0
Expect() {
  if [[ $1 != "$2" ]]; then echo "$3: exit status $1, expected $2" && failed=1; fi
}
Launcher never 1
Status 3
Expect $? 137 "a launcher that outlives its children"
Launcher 75 1
Status 120
Expect $? 75 "a launcher that ends by itself"
exit "$failed"
