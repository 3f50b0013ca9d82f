#!/usr/bin/env bash
# Adds what doc/how-to-add.md says how to add: tests/how_to_add/run.sh [NAME ...]
#
# Each NAME.patch here (all by default) adds a toy by following its row of that page. It is applied to a copy of HEAD,
# counted, built, and the unit tests that its second line names are run. By hand: each builds the whole project.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
names=("$@")
if ((${#names[@]} == 0)); then
  for patch in "$here"/*.patch; do names+=("$(basename "$patch" .patch)"); done
fi
copy=$(mktemp -d)
trap 'git -C "$root" worktree remove --force "$copy/tree" 2>/dev/null; rm -rf "$copy"' EXIT
for name in "${names[@]}"; do
  patch=$here/$name.patch
  if [[ ! -f $patch ]]; then
    echo "tests/how_to_add/run.sh: there is no $patch" >&2
    exit 2
  fi
  git -C "$root" worktree add --quiet --detach "$copy/tree" HEAD
  git -C "$copy/tree" apply "$patch"
  git -C "$copy/tree" add --all
  files=$(git -C "$copy/tree" diff --cached --name-only -- src include | grep -c .)
  echo "$(head -n 1 "$patch") $files files of src and include."
  read -ra tests <<<"$(sed -n '2s/^tests: //p' "$patch")"
  export CCACHE_BASEDIR=$copy/tree CCACHE_SLOPPINESS=pch_defines,time_macros
  meson setup --buildtype=release -Dunity=on -Db_pch=true "$copy/tree/build" "$copy/tree" >/dev/null
  targets=("${tests[@]/#/tests/}")
  ninja -C "$copy/tree/build" "${targets[@]/%/_test}"
  for test in "${tests[@]}"; do "$copy/tree/build/tests/${test}_test" --gtest_brief=1; done
  git -C "$root" worktree remove --force "$copy/tree"
done
