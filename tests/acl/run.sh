#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh COMPILER LIBKVFERRY LIBKVFERRY_ACL: the headers of the ACL front end compile alone as C11 and C++17, the
# library exports the functions of exports.txt and nothing else, a program in C links and runs, and so do the
# commands of docs/acl.md.
set -euo pipefail
cxx=$1
library=$2
acl_library=$3
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
include=$root/compat/acl/include
export LC_ALL=C
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

(cd "$include" && find . -name '*.h' | sed 's|^\./||') | while read -r header; do
  echo "#include \"$header\"" >"$work/alone.c"
  cc -std=c11 -Wall -Wextra -Wpedantic -Wstrict-prototypes -Werror -I "$include" -fsyntax-only "$work/alone.c"
  "$cxx" -std=c++17 -Wall -Wextra -Wpedantic -Werror -I "$include" -fsyntax-only -x c++ "$work/alone.c"
done
echo "the headers compile as C11 and C++17"

nm --dynamic --defined-only "$acl_library" | sed 's/^[0-9a-f]* . //' | sort | diff "$here/exports.txt" - ||
  { echo "the exports differ from exports.txt"; exit 1; }
grep -hoE '^ACL_FUNC_VISIBILITY .*' "$include"/*/*.h | grep -oE '\b[aA]cl[A-Za-z0-9]+\(' | tr -d '(' | sort -u |
  diff "$here/exports.txt" - || { echo "the headers declare other functions than exports.txt"; exit 1; }
echo "$(wc -l <"$here/exports.txt") functions are exported, those of the headers"

# An installed tree: the headers in a folder of their own.
mkdir -p "$work/include" "$work/lib"
ln -s "$include" "$work/include/kvferry_acl"
cp -L "$library" "$work/lib/libkvferry.so.0"
cp -L "$acl_library" "$work/lib/libkvferry_acl.so.0"
ln -s libkvferry.so.0 "$work/lib/libkvferry.so"
ln -s libkvferry_acl.so.0 "$work/lib/libkvferry_acl.so"

cc -std=c11 -Wall -Wextra -Wpedantic -Werror -I "$work/include/kvferry_acl" "$here/user.c" -L "$work/lib" \
  -lkvferry_acl -lkvferry -o "$work/user"
[ "$(LD_LIBRARY_PATH=$work/lib "$work/user")" = ok ] || { echo "the program in C failed"; exit 1; }
echo "a program in C works"

"$here/docs.sh" "$work" "$root"
