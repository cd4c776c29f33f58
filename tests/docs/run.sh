#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh COMPILER LIBRARY CLI: every ```cpp block of README.md and docs/ that is a complete program compiles
# against the public headers and runs; a block behind "<!-- from FILE: NAME -->" is what FILE has between its
# two lines "// [NAME]" or "# [NAME]", but for the indentation; every "kvferry run", "explain", "list" and
# "bench" that docs/ shows works.
set -euo pipefail
cxx=$1
library=$2
cli=$3
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

# quoted PAGE FILE NAME: the block behind its "<!-- from". region FILE NAME: what it must be.
quoted() {
  awk -v mark="<!-- from $2: $3 -->" '$0 == mark { found = 1; next }
    found && /^```(c|cpp|python)$/ { inside = 1; next }
    inside && /^```/ { exit }
    inside' "$1"
}
region() {
  awk -v mark="[$2]" '{ line = $0; sub(/^ *(\/\/|#) /, "", line) }
    line == mark { if (inside) exit; inside = 1; indent = match($0, /[^ ]/) - 1; next }
    inside { print substr($0, indent + 1) }' "$root/$1"
}

quotes=0
while read -r page; do
  extract "$page"
  while read -r _ _ file name _; do
    file=${file%:}
    region "$file" "$name" >"$work/region"
    [ -s "$work/region" ] || { echo "$page: $file has no region [$name]"; exit 1; }
    quoted "$page" "$file" "$name" | diff "$work/region" - || { echo "$page: differs from $file [$name]"; exit 1; }
    quotes=$((quotes + 1))
  done < <(grep '^<!-- from ' "$page")
done < <(find "$root/README.md" "$root/docs" -name '*.md')
[ $quotes -gt 0 ] || { echo "no page quotes an example"; exit 1; }
echo "$quotes quotes are what the examples say"

commands=0
while IFS= read -r command; do
  arguments=${command#kvferry }
  case $arguments in bench*) arguments+=' --samples 1 --sample-ms 0.1' ;; esac
  # The shell's quotes are part of what is shown.
  eval "$cli $arguments" >"$work/output" 2>&1 || { echo "fails: $command"; cat "$work/output"; exit 1; }
  commands=$((commands + 1))
done < <(grep -hE '^kvferry (run|explain|list|bench) ' "$root"/docs/ops/*.md)
echo "$commands commands of the pages work"

shopt -s nullglob
readme=("$work"/README.md.*.cpp)
[ ${#readme[@]} -gt 0 ] || { echo "README.md shows no complete program"; exit 1; }
for program in "$work"/*.cpp; do
  echo "$(basename "$program" .cpp):"
  "$cxx" -std=c++20 -Wall -Wextra -Werror -I "$root/include" "$program" "$library" \
    "-Wl,-rpath,$(dirname "$library")" -o "$work/program"
  "$work/program"
done
