#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# setup.sh [lint | mutants | valgrind | neon | bench]...: installs what is missing of the Debian packages that
# building and testing KVFerry need, and what linting, those tests or the benchmark need besides. Does nothing, and
# needs no rights, when all are there.
set -euo pipefail

build_packages=(g++ ninja-build pkg-config libgtest-dev libcli11-dev nlohmann-json3-dev libfmt-dev)
# Formatting differs between versions of clang-format: the project uses 14, and Debian 13 does not have it.
lint_packages=(clang-tidy)
if [ "$(. /etc/os-release 2>/dev/null && echo "${VERSION_ID:-}")" = 12 ]; then
  lint_packages=(clang-format-14 clang-tidy-14)
fi

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# A cmake from elsewhere (pip, the vendor's archive) is as good as Debian's.
have_cmake() {
  local version
  version=$(cmake --version 2>/dev/null | sed -n 's/^cmake version //p') || return 1
  [ -n "$version" ] && [ "$(printf '3.25\n%s\n' "$version" | sort -V | head -n 1)" = 3.25 ]
}

wanted=("${build_packages[@]}")
have_cmake || wanted+=(cmake)
for what in "$@"; do
  case $what in
    lint) wanted+=("${lint_packages[@]}") ;;
    mutants) wanted+=(python3) ;;
    valgrind) wanted+=(valgrind) ;;
    neon) wanted+=(g++-aarch64-linux-gnu qemu-user) ;;
    bench) wanted+=(python3 python3-numpy) ;;
  esac
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "setup: not a Debian system, nothing installed. Needed, by Debian's names: ${wanted[*]}"
  exit 0
fi

missing=()
for package in "${wanted[@]}"; do
  installed "$package" || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "setup: everything is installed"
  exit 0
fi

sudo=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "setup: missing packages: ${missing[*]}" >&2
    echo "setup: neither root nor sudo. As root:  apt-get update && apt-get install ${missing[*]}" >&2
    exit 1
  fi
  sudo=(sudo)
fi

echo "setup: installing ${missing[*]}"
run_apt() { "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o Dpkg::Use-Pty=0 "$@" </dev/null; }
run_apt update
run_apt install -y --no-install-recommends "${missing[@]}"
if ! have_cmake; then
  echo "setup: cmake is older than 3.25: $(command -v cmake)" >&2
  exit 1
fi
echo "setup: done"
