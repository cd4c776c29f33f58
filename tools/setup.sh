#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# setup.sh [python | lint | mutants | valgrind | neon | bench]...: installs what is missing of the Debian packages
# that building and testing KVFerry need, and what those tests or the benchmark need besides. "python" and "lint" fill
# .venv with what the Python package and linting need. Does nothing, and needs no rights, when all are there.
set -euo pipefail
cd "$(dirname "$0")/.."

build_packages=(g++ ninja-build pkg-config libgtest-dev libcli11-dev nlohmann-json3-dev libfmt-dev)

installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# A cmake from elsewhere (pip, the vendor's archive) is as good as Debian's.
have_cmake() {
  local version
  version=$(cmake --version 2>/dev/null | sed -n 's/^cmake version //p') || return 1
  [ -n "$version" ] && [ "$(printf '3.25\n%s\n' "$version" | sort -V | head -n 1)" = 3.25 ]
}

# So is a Python with its headers and venv.
usable_python() {
  "$1" -c 'import ensurepip, os, sys, sysconfig, venv
header = os.path.join(sysconfig.get_path("include"), "Python.h")
sys.exit(sys.version_info < (3, 10) or not os.path.exists(header))' 2>/dev/null
}

# first_python: the one of .venv, which is kept, or else the one that .venv is made with
first_python() {
  local python
  for python in .venv/bin/python python3 /usr/bin/python3; do
    if usable_python "$python"; then
      echo "$python"
      return
    fi
  done
  return 1
}

# Only a CPU build has the label, where there are builds with CUDA: no pip takes gigabytes of those by accident.
case $(uname -m) in
  x86_64) torch=torch==2.13.0+cpu ;;
  *) torch=torch==2.13.0 ;;
esac

# .venv is filled for linting and for the Python package by themselves.
declare -A requirements=([python]=python/requirements-test.txt [lint]=tools/requirements-lint.txt)
stamp() { echo ".venv/kvferry-setup-$1"; }
# What .venv was filled from; where pip looks belongs to it, as PyTorch may be there and nowhere else.
wanted_stamp() {
  { cat "${requirements[$1]}" tools/setup.sh; echo "${PIP_INDEX_URL:-} ${PIP_EXTRA_INDEX_URL:-} ${PIP_FIND_LINKS:-}"; } |
    sha256sum
}
venv_has() {
  [ -e "$(stamp "$1")" ] && [ "$(cat "$(stamp "$1")")" = "$(wanted_stamp "$1")" ] && .venv/bin/python -c '' 2>/dev/null
}

# Into .venv, quietly; pip's last words if it fails.
pip_install() {
  local log
  log=$(.venv/bin/python -m pip --disable-pip-version-check install -q "$@" </dev/null 2>&1) && return
  tail -n 3 <<<"$log" | sed 's/^/setup: pip: /' >&2
  return 1
}

make_venv() {
  local python
  python=$(first_python) || { echo "setup: no Python >= 3.10 with venv and headers" >&2; return 1; }
  [ "$python" != .venv/bin/python ] || return 0
  echo "setup: .venv, with $("$python" --version)"
  "$python" -m venv --clear .venv
}

# fill_venv python | lint
fill_venv() {
  echo "setup: .venv: $(sed '/^#/d; s/[<>=].*//' "${requirements[$1]}" | paste -sd ' ')"
  pip_install -r "${requirements[$1]}"
  if [ "$1" = python ]; then
    echo "setup: .venv: torch (for the CPU)"
    pip_install "$torch" 2>/dev/null ||
      echo "setup: no $torch where pip looks: the torch tests will be skipped (PIP_EXTRA_INDEX_URL: PyTorch's CPU index)"
    echo "setup: .venv: jax"
    pip_install 'jax>=0.4.30,<1' || echo "setup: no jax: the JAX tests will be skipped"
  fi
  wanted_stamp "$1" >"$(stamp "$1")"
}

fill_venvs() {
  local what
  make_venv
  for what in "${fills[@]}"; do
    fill_venv "$what"
  done
}

fills=()
wanted=("${build_packages[@]}")
have_cmake || wanted+=(cmake)
for what in "$@"; do
  case $what in
    python | lint)
      venv_has "$what" || fills+=("$what")
      [ ${#fills[@]} -eq 0 ] || first_python >/dev/null || wanted+=(python3 python3-venv python3-dev)
      ;;
    mutants) wanted+=(python3) ;;
    valgrind) wanted+=(valgrind) ;;
    neon) wanted+=(g++-aarch64-linux-gnu qemu-user) ;;
    bench) wanted+=(python3 python3-numpy) ;;
  esac
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  echo "setup: not a Debian system, nothing installed. Needed, by Debian's names: ${wanted[*]}"
  [ ${#fills[@]} -eq 0 ] || fill_venvs
  exit 0
fi

missing=()
for package in "${wanted[@]}"; do
  installed "$package" || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ] && [ ${#fills[@]} -eq 0 ]; then
  echo "setup: everything is installed"
  exit 0
fi

if [ ${#missing[@]} -gt 0 ]; then
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
fi
[ ${#fills[@]} -eq 0 ] || fill_venvs
echo "setup: done"
