#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# lint.sh fmt     formats the sources in place
# lint.sh check   formatting, clang-tidy and ruff; needs the compile commands of build/dev
set -uo pipefail
cd "$(dirname "$0")/.."

bin=.venv/bin
for tool in clang-format clang-tidy ruff; do
  [ -x $bin/$tool ] || { echo "lint: no $bin/$tool: tools/setup.sh lint" >&2; exit 1; }
done
sources() { git ls-files --cached --others --exclude-standard -- "$@"; }
clang_format() { sources '*.cpp' '*.hpp' '*.h' '*.c' '*.cu' '*.cuh' | xargs $bin/clang-format "$@"; }

if [ "$1" = fmt ]; then
  clang_format -i
  $bin/ruff format --quiet python examples/python tools
  exit
fi

if [ ! -e build/dev/compile_commands.json ]; then
  echo "lint: no build/dev/compile_commands.json: cmake --preset dev" >&2
  exit 1
fi
failed=0
echo "lint: formatting"
clang_format --dry-run -Werror || failed=1
echo "lint: clang-tidy"
# Only what is compiled, and not by nvcc: a consumer project under tests/install has its own build.
# Nor is nanobind's ours to mend.
compiled=$(sed -n 's/^ *"file": "\(.*\.cp*\)",*$/\1/p' build/dev/compile_commands.json | grep -v /nanobind/ | sort -u)
xargs -P "$(nproc)" -n 1 $bin/clang-tidy -p build/dev --quiet <<<"$compiled" 2>&1 |
  grep -vE '^[0-9]+ warnings? generated\.$|Processing file '
[ "${PIPESTATUS[0]}" -eq 0 ] || failed=1
echo "lint: ruff"
$bin/ruff format --check --quiet python examples/python tools || failed=1
$bin/ruff check --quiet python examples/python bench tests tools || failed=1
[ $failed -eq 0 ] && echo "lint: clean"
exit $failed
