#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# cuda_report.sh COMPILER ARGUMENTS... -o OBJECT ...: keeps what the compiler says in OBJECT.report, and shows it only
# when it fails.
set -u
object=
for ((i = 1; i < $#; ++i)); do
  [ "${!i}" = -o ] && { next=$((i + 1)) && object=${!next}; }
done
"$@" 2>"$object.report"
status=$?
[ $status -eq 0 ] || cat "$object.report" >&2
exit $status
