#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh BUILD_FOLDER: installs that build into a temporary folder, moves the folder, and builds and runs
# examples/cpp/gather.cpp and examples/c/gather.c as users do: with find_package, with pkg-config, and the first
# with the sources as a subproject.
set -euo pipefail
build=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "install: $*" >&2; exit 1; }
expect_ok() { [ "$("$@" | tail -n 1)" = ok ] || fail "$1 did not end with ok"; }
launcher=()
command -v ccache >/dev/null && launcher=(-D CMAKE_CXX_COMPILER_LAUNCHER=ccache)
configure() { cmake -G Ninja -S "$1" "${launcher[@]}" "${@:2}" --log-level=WARNING; }

echo "install: cmake --install"
cmake --install "$build" --prefix "$work/first" >/dev/null
# An installed tree may be moved.
mv "$work/first" "$work/prefix"
prefix=$work/prefix
lib=$(dirname "$(find "$prefix" -name libkvferry.so)")
(cd "$prefix" && find . -not -type d | sort)

echo "install: every header compiles alone, without the project's own dependencies"
! grep -rnE '#include *[<"](fmt|nlohmann|CLI|gtest)/' "$prefix/include" || fail "a header includes a dependency"
(cd "$prefix/include" && find kvferry -name '*.hpp') | while read -r header; do
  echo "#include <$header>" | c++ -std=c++20 -Wall -Wextra -Werror -fsyntax-only -I "$prefix/include" -x c++ -
done
[ -e "$prefix/include/kvferry/kvferry.h" ] || fail "kvferry.h is not installed"
! readelf -d "$lib/libkvferry.so" | grep -E 'NEEDED.*fmt|RPATH|RUNPATH' || fail "libkvferry.so needs a dependency"

echo "install: find_package"
for project in "$here/c" "$here"; do
  rm -rf "$work/package"
  configure "$project" -B "$work/package" -D CMAKE_PREFIX_PATH="$prefix"
  cmake --build "$work/package"
  expect_ok "$work/package/consumer"
done
[ "$("$work/package/acl_consumer" | grep -c 'is: 1$')" = 768 ] || fail "the ACL sample did not print 768 results of 1"

echo "install: pkg-config"
export PKG_CONFIG_PATH=$lib/pkgconfig
version=$(sed -n 's/^project(kvferry VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
[ "$(pkg-config --modversion kvferry)" = "$version" ] || fail "kvferry.pc does not say version $version"
# shellcheck disable=SC2046  # flags are words
c++ -std=c++20 "$root/examples/cpp/gather.cpp" -o "$work/consumer" $(pkg-config --cflags --libs kvferry)
LD_LIBRARY_PATH=$lib expect_ok "$work/consumer"
# shellcheck disable=SC2046
cc -std=c11 "$root/examples/c/gather.c" -o "$work/consumer" $(pkg-config --cflags --libs kvferry)
LD_LIBRARY_PATH=$lib expect_ok "$work/consumer"

# shellcheck disable=SC2046
c++ -std=c++17 "$root/examples/acl/gather_pa_kv_cache_article.cpp" -o "$work/acl_consumer" \
  $(pkg-config --cflags --libs kvferry-acl)
[ "$(LD_LIBRARY_PATH=$lib "$work/acl_consumer" | grep -c 'is: 1$')" = 768 ] || fail "the ACL sample through pkg-config"
"$root/tests/acl/docs.sh" "$prefix" "$root"
[ ! -e "$prefix/include/acl" ] || fail "the ACL headers are where a CANN installation has its own"

echo "install: subproject"
configure "$here" -B "$work/subproject" -D KVFERRY_SOURCE="$root"
cmake --build "$work/subproject"
expect_ok "$work/subproject/consumer"

echo "install: the tool"
"$prefix/bin/kvferry" list >/dev/null
echo "install: ok"
