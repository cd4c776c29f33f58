#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh [PYTHON]...: `pip install .` as users see it, with each interpreter (default: that of .venv): builds the wheel
# from the source distribution, installs it into an empty virtual environment and uses it there, away from the
# checkout: the tool, and tests.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
[ $# -gt 0 ] || set -- "$root/.venv/bin/python"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1
unset PYTHONPATH KVFERRY_REQUIRE_TORCH # there is none in an empty environment
# Folders are new each time; all but the extension is the same for every interpreter, and from an earlier run.
export CCACHE_BASEDIR=${TMPDIR:-/tmp} CCACHE_NOHASHDIR=1

fail() {
  echo "wheel: $*" >&2
  exit 1
}

for python in "$@"; do
  here=$work/$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  echo "wheel: $("$python" --version)"
  "$python" -m venv "$here/venv"
  pip=("$here/venv/bin/python" -m pip -q)

  # One build environment for both steps; what it holds is in no wheel.
  "$python" -m venv "$here/build"
  "$here/build/bin/python" -m pip -q install build
  # Optimised less than for users: what is tested is how it is packed, and it compiles in less time.
  (cd "$root" && "$here/build/bin/python" -m build --outdir "$here/dist" \
    -C cmake.define.CMAKE_CXX_FLAGS_RELEASE="-O1 -DNDEBUG" . >"$here/log" 2>&1) || {
    tail -n 40 "$here/log" >&2
    fail "the build failed"
  }
  "${pip[@]}" install "$here"/dist/kvferry-*.whl
  # Nothing is needed to import it.
  [ "$("$here/venv/bin/python" -m pip list | wc -l)" -le 5 ] || fail "the package brought others with it"

  cd "$here"
  venv/bin/python -c 'import kvferry, sys; assert "numpy" not in sys.modules; print("wheel: kvferry", kvferry.__version__)'
  for tool in "venv/bin/python -m kvferry" venv/bin/kvferry; do
    $tool list >list.txt || fail "$tool list: $?"
    grep -q gather_pa_kv_cache list.txt || fail "$tool list shows no operators"
    rc=0
    $tool no-such-command >/dev/null 2>&1 || rc=$?
    [ $rc -ne 0 ] || fail "$tool hides the tool's exit code"
  done
  venv/bin/python -m kvferry list | head -n 1 >/dev/null || fail "a closed pipe is an error"
  ldd venv/lib/python*/site-packages/kvferry/bin/kvferry venv/lib/python*/site-packages/kvferry/*.so | grep -q fmt &&
    fail "the wheel needs a libfmt of the system"

  "${pip[@]}" install numpy ml_dtypes pytest hypothesis
  cp -r "$root/python/tests" tests
  KVFERRY_HYPOTHESIS_EXAMPLES=20 venv/bin/python -m pytest -q -p no:cacheprovider \
    tests/test_core_smoke.py tests/test_core_operators.py tests/test_gather.py tests/test_selection.py tests/test_dlpack.py
  cd "$root"
done
