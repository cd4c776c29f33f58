#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# lint.sh fmt     formats the sources in place
# lint.sh check   formatting, clang-tidy and ruff; needs the compile commands of build/dev
set -uo pipefail
cd "$(dirname "$0")/.."

ruff=.venv/bin/ruff
sources() { git ls-files --cached --others --exclude-standard -- "$@"; }

if [ "$1" = fmt ]; then
  if ! command -v clang-format-14 >/dev/null; then
    echo "fmt: needs clang-format-14: other versions format differently" >&2
    exit 1
  fi
  sources '*.cpp' '*.hpp' '*.h' '*.c' '*.cu' '*.cuh' | xargs clang-format-14 -i
  [ ! -x $ruff ] || $ruff format --quiet python examples/python tools
  exit
fi

failed=0
if command -v clang-format-14 >/dev/null; then
  echo "lint: formatting"
  sources '*.cpp' '*.hpp' '*.h' '*.c' '*.cu' '*.cuh' | xargs clang-format-14 --dry-run -Werror || failed=1
else
  echo "skipped: format check (needs clang-format-14: other versions format differently)"
fi

tidy=$(command -v clang-tidy-14 || command -v clang-tidy) || { echo "lint: no clang-tidy" >&2; exit 1; }
echo "lint: $(basename "$tidy")"
# Only what is compiled, and not by nvcc: a consumer project under tests/install has its own build.
# Nor is nanobind's ours to mend.
compiled=$(sed -n 's/^ *"file": "\(.*\.cp*\)",*$/\1/p' build/dev/compile_commands.json | grep -v /nanobind/ | sort -u)
xargs -P "$(nproc)" -n 1 "$tidy" -p build/dev --quiet <<<"$compiled" 2>&1 |
  grep -vE '^[0-9]+ warnings? generated\.$'
[ "${PIPESTATUS[0]}" -eq 0 ] || failed=1
if [ -x $ruff ]; then
  echo "lint: ruff"
  $ruff format --check --quiet python examples/python tools || failed=1
  $ruff check --quiet python examples/python bench tests tools || failed=1
else
  echo "skipped: ruff (make setup)"
fi
[ $failed -eq 0 ] && echo "lint: clean"
exit $failed
