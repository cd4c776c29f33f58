#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh LIBRARY: the shared library exports the public functions of namespace kvferry, the functions of the C
# API that c_symbols.txt lists and kvferry.h declares, and nothing else. A line that goes from that list breaks
# programs that are built.
set -euo pipefail
export LC_ALL=C
here=$(cd "$(dirname "$0")" && pwd)
symbols=$(nm --dynamic --defined-only --demangle "$1" | sed 's/^[0-9a-f]* . //')

failed=0
if ! grep -q '^kvferry::gather_pa_kv_cache(' <<<"$symbols"; then
  echo "kvferry::gather_pa_kv_cache is not exported"
  failed=1
fi
if stray=$(grep -vE '^kvferry(::|_)' <<<"$symbols"); then
  echo "exported, but not in namespace kvferry and not of the C API:"
  echo "$stray"
  failed=1
fi
if inner=$(grep -E '^kvferry::(.*::)?(internal|capi|detail|\(anonymous namespace\))::' <<<"$symbols"); then
  echo "exported, but not public:"
  echo "$inner"
  failed=1
fi

# same NAME <LIST: the list is c_symbols.txt.
same() {
  sort | diff "$here/c_symbols.txt" - >"$differences" && return
  echo "c_symbols.txt (<) and $1 (>) differ:"
  cat "$differences"
  failed=1
}
differences=$(mktemp)
trap 'rm -f "$differences"' EXIT
same "the library" < <(grep '^kvferry_' <<<"$symbols")
same "kvferry.h" < <(tr '\n' ' ' <"$here/../../include/kvferry/kvferry.h" | grep -oE 'KVFERRY_API [^(;]*\(' |
                       sed -nE 's/.*[ *](kvferry_[a-z_]+)\($/\1/p')
exit $failed
