#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh: the kernels of aarch64, cross-compiled and run in an emulator; and whether the whole library compiles
# for aarch64.
set -euo pipefail
cd "$(dirname "$0")/../.."
for tool in aarch64-linux-gnu-g++ qemu-aarch64; do
  command -v $tool >/dev/null || { echo "$tool is missing: tools/setup.sh neon" && exit 1; }
done
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

flags=(-std=c++20 -Wall -Wextra -Wpedantic -Werror -Iinclude -Isrc)
cpu=src/backends/cpu
aarch64-linux-gnu-g++ "${flags[@]}" -O2 -static -o "$scratch/neon" tests/neon/main.cpp \
  $cpu/{copy_neon,copy_generic,dequant_generic,ids_generic,kernels_generic,kernels_aarch64}.cpp
qemu-aarch64 "$scratch/neon"
aarch64-linux-gnu-g++ "${flags[@]}" -I. -O2 -static -o "$scratch/fibres" tests/neon/fibres.cpp \
  tests/cuda_emulation/fibre{,_switch_aarch64}.cpp
qemu-aarch64 "$scratch/fibres"

# {fmt}'s headers do not depend on the architecture, but most of those beside them in /usr/include do.
mkdir "$scratch/include"
ln -s /usr/include/fmt "$scratch/include/fmt"
sources=()
for source in src/core/*.cpp src/backends/cpu/*.cpp src/ops/*.cpp src/ops/*/*.cpp; do
  case $source in
    *_test.cpp | *_cases.cpp | */registry.cpp) ;;                    # the harness's
    *_avx2.cpp | *_avx512.cpp | *_x86_64.cpp | *_other.cpp) ;;       # another architecture's
    *) sources+=("$source") ;;
  esac
done
printf '%s\0' "${sources[@]}" |
  xargs -0 -n 1 -P "$(nproc)" aarch64-linux-gnu-g++ "${flags[@]}" -DFMT_HEADER_ONLY -I"$scratch/include" -fsyntax-only
echo "${#sources[@]} sources of the library compile for aarch64"
