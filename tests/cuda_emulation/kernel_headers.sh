#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Kernel headers (all of src/backends/cuda/*.hpp but kernel.hpp) name nothing of CUDA: what the context does not have,
# the tests could not see.
set -euo pipefail

# check FOLDER: prints each line that breaks the rule; fails if there is one.
check() {
  local found=0 header
  for header in "$1"/*.hpp; do
    [ "$(basename "$header")" = kernel.hpp ] && continue
    # Comments may say what code may not.
    sed 's,//.*,,' "$header" | grep -nE \
      '\b(threadIdx|blockIdx|blockDim|gridDim|warpSize|asm|atomic[A-Z][A-Za-z]*)\b|\b__[a-z]|#[[:space:]]*(if|el|define|pragma unroll)|<(cuda|cooperative_groups|cub/)|\.cuh' |
      sed "s,^,$(basename "$header"):," && found=1
  done
  [ $found -eq 0 ]
}

# The check itself: it must find a planted line of each kind, and only those.
planted=$(mktemp -d)
trap 'rm -rf "$planted"' EXIT
echo '#if defined(__CUDACC__)' >"$planted/kernel.hpp"
cat >"$planted/good.hpp" <<'END'
#pragma once
#include "backends/cuda/kernel.hpp"
// no threadIdx, no #if
x.atomic_add(sh.words, 0, 1U);
END
bad=('i = threadIdx.x;' 'asm volatile("");' '__syncthreads();' '#if 1' '#define X' 'atomicAdd(p, 1);' '#include <cuda_fp16.h>'
  '#include "backends/cuda/launch.cuh"')
printf '%s\n' "${bad[@]}" >"$planted/bad.hpp"
expected=$(for i in "${!bad[@]}"; do echo "bad.hpp:$((i + 1)):${bad[i]}"; done)
if [ "$(check "$planted")" != "$expected" ]; then
  echo "the check is broken; it found:"
  check "$planted"
  exit 1
fi

check "$(dirname "$0")/../../src/backends/cuda" && echo "kernel headers name nothing of CUDA"
