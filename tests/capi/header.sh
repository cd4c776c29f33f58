#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# header.sh: kvferry.h compiles alone, without a warning, as C11, C++17 and what follows, with every compiler
# that is there.
set -euo pipefail
include=$(cd "$(dirname "$0")/../../include" && pwd)

# What a user writes: the header, and the one macro that is more than a number.
program='#include <kvferry/kvferry.h>
int main(void) {
  kvferry_copy_blocks_args args;
  KVFERRY_INIT(args);
  return args.struct_size == sizeof args ? 0 : 1;
}'
warnings=(-Wall -Wextra -pedantic -Wconversion -Wshadow -Werror)
compiled=0
compile() {
  command -v "$1" >/dev/null || return 0
  "$1" "${@:2}" "${warnings[@]}" -fsyntax-only -I "$include" - <<<"$program"
  compiled=$((compiled + 1))
}
for compiler in gcc clang clang-14 cc; do
  for standard in c11 c17 gnu11; do compile $compiler -x c -std=$standard -Wstrict-prototypes; done
done
for compiler in g++ clang++ clang++-14 c++; do
  for standard in c++17 c++20; do compile $compiler -x c++ -std=$standard -Wold-style-cast; done
done
[ $compiled -gt 0 ] || { echo "no compiler"; exit 1; }
echo "kvferry.h compiles in $compiled ways"
