#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# registers.sh BUDGETS FOLDER: the compiler's reports (*.report below FOLDER) against the budgets.
set -euo pipefail

# check BUDGETS REPORT...: prints each kernel and what is wrong with it; fails if something is.
check() {
  c++filt <"$1" >/dev/null # there, before the pipe hides it
  cat "${@:2}" | sed -n "s/.*Compiling entry function '\([^']*\)' for '\([^']*\)'.*/kernel \1 \2/p
      s/^ *\([0-9]*\) bytes stack frame, \([0-9]*\) bytes spill stores, .*/stack \1 \2/p
      s/.*Used \([0-9]*\) registers.*/registers \1/p" |
    c++filt | sed 's/^kernel .*<\(.*::\)*\([A-Za-z0-9_]*\)>(.* \(sm_[0-9a-z]*\)$/kernel \2 \3/' |
    awk -v budgets="$1" '
      BEGIN { while ((getline line < budgets) > 0) if (line !~ /^#/ && split(line, f, " ") == 2) most[f[1]] = f[2] }
      function wrong(text) { print text; bad = 1 }
      $1 == "kernel" { kernel = $2; arch = $3; seen[kernel] = 1; next }
      $1 == "stack" && $2 + $3 > 0 { wrong(kernel " " arch ": a stack of " $2 " bytes, " $3 " bytes of spills") }
      $1 == "registers" {
        if (!(kernel in most)) wrong(kernel " " arch ": " $2 " registers and no budget")
        else if ($2 > most[kernel]) wrong(kernel " " arch ": " $2 " registers, budget " most[kernel])
        else print kernel " " arch ": " $2 " registers"
      }
      END {
        for (k in most) if (!(k in seen)) wrong(k ": a budget and no kernel")
        exit bad
      }'
}

# The check itself: it must find each kind, and only those.
planted=$(mktemp -d)
trap 'rm -rf "$planted"' EXIT
printf '%s\n' '# a comment' 'Good 64' 'Large 32' 'Gone 10' >"$planted/budgets"
entry() {
  echo "ptxas info    : Compiling entry function '_ZN7kvferry8internal4cuda5entryINS1_${#1}$1EEEvNT_6ParamsE' for 'sm_90'"
  echo "    $2 bytes stack frame, $3 bytes spill stores, 8 bytes spill loads"
  echo "ptxas info    : Used $4 registers, used 1 barriers, 56 bytes smem"
}
{ entry Good 0 0 64 && entry Good 16 4 60 && entry Large 0 0 33 && entry Unknown 0 0 1; } >"$planted/x.report"
expected='Gone: a budget and no kernel
Good sm_90: 60 registers
Good sm_90: 64 registers
Good sm_90: a stack of 16 bytes, 4 bytes of spills
Large sm_90: 33 registers, budget 32
Unknown sm_90: 1 registers and no budget'
if [ "$(check "$planted/budgets" "$planted/x.report" | sort)" != "$expected" ]; then
  echo "the check is broken; it found:"
  check "$planted/budgets" "$planted/x.report"
  exit 1
fi

mapfile -t reports < <(find "$2" -name '*.report')
[ ${#reports[@]} -gt 0 ] || { echo "no report below $2" && exit 1; }
check "$1" "${reports[@]}"
