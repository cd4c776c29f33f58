#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh LIBRARY: the shared library exports the public functions of namespace kvferry and nothing else.
set -euo pipefail
symbols=$(nm --dynamic --defined-only --demangle "$1" | sed 's/^[0-9a-f]* . //')

failed=0
if ! grep -q '^kvferry::gather_pa_kv_cache(' <<<"$symbols"; then
  echo "kvferry::gather_pa_kv_cache is not exported"
  failed=1
fi
if stray=$(grep -vE '^kvferry::' <<<"$symbols"); then
  echo "exported, but not in namespace kvferry:"
  echo "$stray"
  failed=1
fi
if inner=$(grep -E '^kvferry::(.*::)?(internal|detail|\(anonymous namespace\))::' <<<"$symbols"); then
  echo "exported, but not public:"
  echo "$inner"
  failed=1
fi
exit $failed
