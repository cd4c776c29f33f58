#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Includes point downwards only: public headers <- core <- backends <- ops <- harness <- tools, tests.
set -euo pipefail

# Sets `layer` for a file. An operator's cases, oracle and test, and the list of operators, belong to the
# harness; examples and the Python extension see public headers only.
set_layer() {
  case $1 in
    include/* | compat/acl/include/* | examples/* | python/*) layer=0 ;;
    src/core/*_test.cpp | src/backends/*_test.cpp) layer=4 ;;
    src/core/*) layer=1 ;;
    src/backends/*) layer=2 ;;
    src/ops/registry.* | src/ops/*_cases.* | src/ops/*_oracle.hpp | src/ops/*_test.cpp) layer=4 ;;
    src/ops/*) layer=3 ;;
    harness/* | src/capi/* | compat/*) layer=4 ;;
    *) layer=5 ;;
  esac
}

# check ROOT: prints one line for every include that points upwards; fails if there is one.
check() (
  cd "$1"
  found=0
  while IFS=: read -r file line include; do
    [[ $include =~ ([<\"])([^\>\"]+) ]]
    quote=${BASH_REMATCH[1]} name=${BASH_REMATCH[2]} target=
    for candidate in "${file%/*}/$name" "include/$name" "src/$name" "$name" "compat/acl/include/$name" "python/ext/$name"; do
      if [ -e "$candidate" ]; then
        target=$candidate
        break
      fi
    done
    if [[ $target == compat/* && $file != @(compat|examples|tests|bench)/* ]]; then
      echo "$file:$line: $name belongs to the ACL front end alone"
      found=1
    elif [ -n "$target" ]; then
      set_layer "$file" && from=$layer
      set_layer "$target" && to=$layer
      [ "$to" -le "$from" ] && continue
      echo "$file:$line: $name lies above this file"
      found=1
    elif [ "$quote" = '"' ]; then
      echo "$file:$line: no such file: $name"
      found=1
    fi
  done < <(grep -rsnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*[<"]' --include='*.cpp' --include='*.hpp' \
             --include='*.h' --include='*.c' --include='*.cu' --include='*.cuh' {include,src,harness,compat,tools,python,tests,examples,bench}/)
  [ $found -eq 0 ]
)

# The check itself: it must find a planted violation of each kind, and only those.
planted=$(mktemp -d)
trap 'rm -rf "$planted"' EXIT
mkdir -p "$planted"/{include/kvferry,src/core,src/ops/copy,harness,compat/acl/include/acl,tools}
touch "$planted/compat/acl/include/acl/acl.h"
echo '#include "acl/acl.h"' >"$planted/tools/tool.cpp"
echo '#include <cstdint>' >"$planted/include/kvferry/public.hpp"
printf '%s\n' '#include <kvferry/public.hpp>' '#include "ops/copy/copy_plan.hpp"' >"$planted/src/core/bad.hpp"
printf '%s\n' '#include "core/bad.hpp"' '#include "harness/case.hpp"' >"$planted/src/ops/copy/copy_plan.hpp"
printf '%s\n' '#include "harness/case.hpp"' '#include "copy_plan.hpp"' >"$planted/src/ops/copy/copy_test.cpp"
echo '#include "missing.hpp"' >"$planted/harness/case.hpp"
expected='harness/case.hpp:1: no such file: missing.hpp
src/core/bad.hpp:2: ops/copy/copy_plan.hpp lies above this file
src/ops/copy/copy_plan.hpp:2: harness/case.hpp lies above this file
tools/tool.cpp:1: acl/acl.h belongs to the ACL front end alone'
if [ "$(check "$planted" | sort)" != "$expected" ]; then
  echo "the check is broken; it found:"
  check "$planted"
  exit 1
fi

check "$(dirname "$0")/../.." && echo "includes point downwards"
