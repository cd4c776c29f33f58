#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# no_gpu.sh KVFERRY_GPU_CASES KVFERRY_CUDA_BENCH: what the programs of scripts/gpu_check.sh do without a GPU, and
# with arguments that they do not know.
set -uo pipefail
cases=$1 bench=$2
export CUDA_VISIBLE_DEVICES= # as on a machine that has none
output=$(mktemp)
trap 'rm -f "$output"' EXIT
failed=0

# expect CODE PATTERN COMMAND...
expect() {
  local code=$1 pattern=$2
  shift 2
  "$@" >"$output" 2>&1
  local seen=$?
  if [ $seen -ne "$code" ] || ! grep -qE -e "$pattern" "$output"; then
    echo "FAILED: $* exits with $seen, expected $code and $pattern; it says:"
    cat "$output"
    failed=$((failed + 1))
  fi
}

for program in "$cases" "$bench"; do
  expect 77 '^skipped: cuda:0: .+' "$program"
  expect 2 '--wild: unknown' "$program" --wild 1
  expect 2 'a value is missing' "$program" --out
  expect 2 'x' "$program" --seconds x
done
expect 77 '^skipped: cuda:0: .+' "$cases" --memory pinned --operator gather_pa_kv_cache --random 3 --no-large
expect 77 '^skipped: cuda:0: .+' "$cases" --case gather_pa_kv_cache:bs=16
expect 2 "no operator 'nothing'" "$cases" --operator nothing
expect 2 'none of: managed' "$cases" --memory other
expect 2 '.' "$cases" --case nothing:a=1
expect 2 'fewer than 20' "$bench" --samples 3
expect 0 $'^gather GQA ND 8K tokens\tgather:' "$bench" --list
[ "$("$bench" --list | cut -f1 | sort | uniq -d)" = "" ] || { echo "FAILED: two rows have one name" && failed=1; }
[ $failed -eq 0 ] && echo "without a GPU both say so"
