#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh BUILD_FOLDER [ctest arguments]: runs the tests of a build, names what was skipped and prints as its
# last line "N passed, N failed", counting every GoogleTest and pytest case and every other test once.
# With KVFERRY_NO_SKIPS set (CI) a skip that tests/allowed_skips.txt does not allow counts as a failure.
set -uo pipefail

here=$(cd "$(dirname "$0")" && pwd)
build=$1
shift
results=$build/test-results
rm -rf "$results"
mkdir -p "$results"

progress=()
[ -t 1 ] && progress=(--progress)
ctest --test-dir "$build" --output-on-failure --timeout 600 --no-tests=error "${progress[@]}" \
  --output-junit test-results.junit "$@"
ctest_rc=$?

# One line per test: "pass NAME", "fail NAME" or "skip NAME: reason". The report of GoogleTest or pytest for a ctest
# test, if there is one, takes the place of ctest's own line.
attribute='function attribute(name) {
  return match($0, " " name "=\"[^\"]*\"") ? substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 4) : ""
}'
ctest_tests() {
  awk "$attribute"'
    BEGIN { word["run"] = "pass"; word["fail"] = "fail" }
    /<testcase / { s = attribute("status"); print (s in word ? word[s] : "skip") " " attribute("name") }' "$1"
}
reported_cases() {
  awk -v RS="<" "$attribute"'
    function flush() { if (id != "") print state " " id }
    /^testcase / {
      flush()
      id = attribute("classname") "." attribute("name")
      sub(/^\.?(python\.tests\.)?/, "", id)
      state = attribute("result") ~ /^(completed)?$/ ? "pass" : "skip"
    }
    /^(failure|error) / { state = "fail" }
    /^skipped /  {
      state = "skip"
      reason = attribute("message")
      sub(/.*&#x0A;/, "", reason)
      if (reason == "collection skipped" && match($0, /Skipped: [^\n"]*/)) {  # all of a file, says pytest
        reason = substr($0, RSTART + 9, RLENGTH - 9)
      }
      id = id ": " reason
    }
    END { flush() }' "$1"
}

cases=$(
  ctest_tests "$build/test-results.junit" | while read -r state name; do
    if [ -s "$results/$name.xml" ]; then
      lines=$(reported_cases "$results/$name.xml")
      echo "$lines"
      # It died, or a sanitizer spoke, outside any case.
      [ "$state" = fail ] && ! grep -q '^fail ' <<<"$lines" && echo "fail $name (outside its cases)"
    else
      echo "$state $name"
    fi
  done
)

allowed=$(sed -e 's/[[:space:]]*#.*//' -e '/^$/d' "$here/allowed_skips.txt")
passed=0 failed=0 skipped=0
while read -r state name; do
  case $state in
    pass) passed=$((passed + 1)) ;;
    fail)
      failed=$((failed + 1))
      echo "failed: $name"
      ;;
    skip)
      expected=${KVFERRY_NO_SKIPS:+no}
      while read -r pattern; do
        # shellcheck disable=SC2254  # the pattern is meant as one
        case $name in $pattern | $pattern:*) expected=yes ;; esac
      done <<<"$allowed"
      if [ "$expected" = no ]; then
        failed=$((failed + 1))
        echo "failed: $name (skipped, and not in tests/allowed_skips.txt)"
      else
        skipped=$((skipped + 1))
        echo "skipped: $name"
      fi
      ;;
  esac
done <<<"$cases"
if [ $ctest_rc -ne 0 ] && [ $failed -eq 0 ]; then
  failed=1
  echo "failed: ctest ended with $ctest_rc"
fi

[ $skipped -eq 0 ] || echo "$skipped skipped"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
