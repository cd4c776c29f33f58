#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh KVFERRY: the command line tool as a user meets it.
#   explain/*.golden   first line "$ kvferry ARGUMENTS", then exactly what it prints
#   bad_arguments.txt  "EXIT CODE | ARGUMENTS | text that stderr must have"
# UPDATE=1 writes the golden files anew.
set -uo pipefail
cd "$(dirname "$0")"
kvferry=$(realpath "$1")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0
fail() {
  printf 'FAILED %s\n' "$*"
  failed=$((failed + 1))
}

count=0
for golden in explain/*.golden; do
  count=$((count + 1))
  command=$(head -n 1 "$golden")
  eval "set -- ${command#\$ kvferry }"
  { echo "$command" && "$kvferry" "$@" 2>&1; } >"$scratch/seen"
  if [ "${UPDATE:-}" ]; then
    cp "$scratch/seen" "$golden"
  elif ! diff -u "$golden" "$scratch/seen"; then
    fail "$golden"
  fi
done
[ "$count" -ge 8 ] || fail "only $count golden files"

checked=0
while IFS='|' read -r code arguments text; do
  case $code in '#'* | '') continue ;; esac
  checked=$((checked + 1))
  code=${code// /}
  text=${text# }
  eval "set -- $arguments"
  (cd "$scratch" && "$kvferry" "$@" >stdout 2>stderr </dev/null)
  seen=$?
  [ "$seen" -eq "$code" ] || fail "kvferry$arguments: exit code $seen, expected $code: $(head -c 300 "$scratch/stderr")"
  [ -z "$text" ] || grep -qF -- "$text" "$scratch/stderr" || fail "kvferry$arguments: stderr lacks '$text': $(head -c 300 "$scratch/stderr")"
done <bad_arguments.txt
[ "$checked" -ge 20 ] || fail "only $checked bad command lines"

# What --help promises: every command is named and explains itself.
for command in replay list explain run bench; do
  "$kvferry" --help | grep -q "^  $command " || fail "--help does not name $command"
  "$kvferry" "$command" --help >"$scratch/help" 2>&1 || fail "$command --help"
  [ "$(wc -l <"$scratch/help")" -ge 5 ] || fail "$command --help says too little"
done

# Every backend, with what it has or why it is absent.
"$kvferry" list >"$scratch/list" || fail "list"
grep -qE '^  cpu    available: (.*, )?generic$' "$scratch/list" || fail "list does not say what the CPU has"
grep -qE '^  cuda   (available: cuda:0 .+ \(sm_[0-9]+, [0-9]+ SMs\)|absent: .+)' "$scratch/list" || fail "list does not say whether there is CUDA"

echo "$count explanations, $checked bad command lines, $failed wrong"
[ "$failed" -eq 0 ]
