#!/bin/sh
# Passes if a program on N ranks soon ends with a failure and the expected message:
# expect_failure.sh N 'PATTERN' PROGRAM [ARGUMENT...]
here=$(dirname "$0")
ranks=$1 pattern=$2
shift 2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
timeout 60 "$here/mpirun.sh" "$ranks" "$@" >"$log" 2>&1 </dev/null
status=$?
cat "$log"
if [ $status -eq 0 ] || [ $status -eq 124 ]; then
  echo "exit status $status: expected a failure within 60 s"
  exit 1
fi
grep -q -e "$pattern" "$log" || {
  echo "expected in the output: $pattern"
  exit 1
}
