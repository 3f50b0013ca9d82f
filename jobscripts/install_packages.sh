#!/usr/bin/env bash
# Checks that everything in packages.txt is there, and installs what is missing where it can: on Debian as root. It
# needs no root if nothing is missing. Elsewhere (modules, Spack, other distributions) it prints what is missing; it is
# no error if only the tests need that.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# There [KIND NAME ...]: whether the check of a line of packages.txt succeeds, with or without the package.
There() {
  case ${1:-} in
    '') return 1 ;;
    program) command -v "$2" >/dev/null ;;
    header) "${CXX:-c++}" -x c++ -fsyntax-only -include "$2" /dev/null 2>/dev/null ;;
    pkg-config)
      local name
      for name in "${@:2}"; do
        if pkg-config --exists "$name" 2>/dev/null; then return 0; fi
      done
      return 1
      ;;
    *)
      echo "packages.txt: '$*': expected program, pkg-config or header" >&2
      exit 1
      ;;
  esac
}

# One call for all packages: dpkg-query fails if one is unknown, but still prints the others.
mapfile -t packages < <(sed -e 's/#.*//' -e '/^\[/d' -e 's/[[:space:]].*//' -e '/^$/d' "$root/packages.txt")
installed=" $({ dpkg-query -W -f '${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null || true; } |
  sed -n 's/^installed //p' | tr '\n' ' ')"

missing=() needed=() for_tests=() tests=
while read -ra words; do
  case ${words[0]:-#} in
    '#'*) continue ;;
    '[tests]') tests=yes && continue ;;
  esac
  package=${words[0]}
  if [[ $installed == *" $package "* ]] || There "${words[@]:1}"; then continue; fi
  missing+=("$package")
  line="  ${words[*]:1} (Debian: $package)"
  # A line without a check is optional.
  if [[ ${#words[@]} -eq 1 ]]; then continue; fi
  if [[ -n $tests ]]; then for_tests+=("$line"); else needed+=("$line"); fi
done <"$root/packages.txt"

if [[ ${#missing[@]} -eq 0 ]]; then exit 0; fi
if [[ $EUID -ne 0 ]] || ! command -v apt-get >/dev/null; then
  if [[ ${#for_tests[@]} -gt 0 ]]; then
    printf '%s\n' "not found, and needed by the tests alone:" "${for_tests[@]}" >&2
  fi
  if [[ ${#needed[@]} -eq 0 ]]; then exit 0; fi
  printf '%s\n' "not found:" "${needed[@]}" \
    "load or install them (PKG_CONFIG_PATH, CPATH and LIBRARY_PATH say where they are);" \
    "on Debian run as root: apt-get install ${missing[*]}" >&2
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
