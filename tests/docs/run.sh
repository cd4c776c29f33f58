#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh COMPILER LIBRARY: every ```cpp block of README.md and docs/ that is a complete program compiles
# against the public headers and runs.
set -euo pipefail
cxx=$1
library=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Writes the blocks to $work as <page>.<line>.cpp
extract() {
  awk -v out="$work/$(sed "s|^$root/||; s|/|_|g" <<<"$1")" '
    /^```cpp$/ { inside = 1; file = out "." NR + 1 ".cpp"; text = ""; next }
    /^```/ && inside { inside = 0; if (text ~ /int main\(/) printf "%s", text > file; next }
    inside { text = text $0 "\n" }' "$1"
}
find "$root/README.md" "$root/docs" -name '*.md' | while read -r page; do extract "$page"; done

shopt -s nullglob
readme=("$work"/README.md.*.cpp)
[ ${#readme[@]} -gt 0 ] || { echo "README.md shows no complete program"; exit 1; }
for program in "$work"/*.cpp; do
  echo "$(basename "$program" .cpp):"
  "$cxx" -std=c++20 -Wall -Wextra -Werror -I "$root/include" "$program" "$library" \
    "-Wl,-rpath,$(dirname "$library")" -o "$work/program"
  "$work/program"
done
