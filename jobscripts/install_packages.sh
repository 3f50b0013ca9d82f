#!/usr/bin/env bash
# Installs what is missing of packages.txt. Quick, and needs no root, when nothing is.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
mapfile -t wanted < <(sed -e 's/#.*//' -e 's/[[:space:]]//g' -e '/^$/d' "$root/packages.txt" | sort -u)
# dpkg-query fails if it does not know one of them; what it knows it prints all the same.
installed=$({ dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${wanted[@]}" 2>/dev/null || true; } |
  sed -n 's/^installed //p' | sort -u)
mapfile -t missing < <(comm -23 <(printf '%s\n' "${wanted[@]}") <(printf '%s\n' "$installed"))

if [[ ${#missing[@]} -eq 0 ]]; then exit 0; fi
if [[ $EUID -ne 0 ]]; then
  echo "these Debian packages are missing; run as root: apt-get install ${missing[*]}" >&2
  exit 1
fi

echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { apt-get -q update && apt-get -q -y --no-install-recommends install "${missing[@]}"; } \
  </dev/null >"$log" 2>&1; then
  cat "$log" >&2
  echo "installing the packages failed" >&2
  exit 1
fi
