#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh KVFERRY: cases of every operator under valgrind, which sees reads of what nobody wrote, and single bytes
# outside of a block. Debian 12's has no AVX-512: there dispatch must leave it alone by itself.
set -uo pipefail
kvferry=$1
command -v valgrind >/dev/null || { echo "valgrind is missing: tools/setup.sh valgrind" && exit 1; }
failed=0
fail() {
  printf 'FAILED %s\n' "$*"
  failed=$((failed + 1))
}
memcheck() { valgrind -q --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite "$kvferry" "$@"; }

# Nothing forced: what is chosen must run. Forced: an error that says why, or it runs; never an illegal instruction.
memcheck run gather_dequant: group_memcpy: --quiet || fail "dispatch"
forced=$(KVFERRY_FORCE_IMPL=avx512 memcheck explain gather_dequant: 2>&1)
grep -qE "implementation +avx512|'avx512' was forced and cannot run: this CPU has no AVX-512|no implementation 'avx512'" \
  <<<"$forced" || fail "forced avx512: $forced"

for implementation in avx2 generic; do
  KVFERRY_FORCE_IMPL=$implementation memcheck run --random 25 --quiet \
    gather_pa_kv_cache:mode=nz,lens=40\;17,bs=16,h=2,dk=64,dv=48 \
    scatter_pa_kv_cache:mode=nz,t=45,bs=16,h=3,dk=64,dv=48 \
    gather_dequant:lens=9\;70,bs=64 \
    group_memcpy:sizes=1\;31\;32\;63\;64\;65\;257\;1000,lone=1 || fail "$implementation"
done
[ "$failed" -eq 0 ]
