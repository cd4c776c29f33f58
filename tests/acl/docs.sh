#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# docs.sh PREFIX ROOT: runs the commands that docs/acl.md shows for an installed tree, in PREFIX, on the article's
# sample: its 768 results must be 1.
set -euo pipefail
prefix=$1
root=$2
commands=$(awk '/^<!-- commands -->$/ { found = 1; next } found && /^```sh$/ { inside = 1; next }
  inside && /^```$/ { exit } inside' "$root/docs/acl.md")
[ -n "$commands" ] || { echo "docs/acl.md shows no commands"; exit 1; }
cp "$root/examples/acl/gather_pa_kv_cache_article.cpp" "$prefix/sample.cpp"
output=$(cd "$prefix" && bash -euc "$commands")
rm "$prefix/sample.cpp" "$prefix/sample"
[ "$(grep -c '^result\[[0-9]*\] is: 1$' <<<"$output")" = 768 ] && [ "$(wc -l <<<"$output")" = 768 ] ||
  { echo "the sample did not print 768 results equal to 1:"; head <<<"$output"; exit 1; }
echo "the commands of docs/acl.md work: 768 results equal to 1"
