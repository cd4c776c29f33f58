#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# gpu_check.sh OUT: builds KVFerry for sm_90, holds its CUDA backend against the CPU on this machine's first GPU and
# measures it, in 8 minutes at most. It downloads nothing. Every step has a time limit and files of its own in OUT,
# written as it goes on: what was found stays if the rest is cut off.
#
#   machine.json            what this machine is
#   build.log               configuration and compilation
#   cases.json              every case of every operator, in managed and in pinned memory, and blocks above 4 GiB
#   memcheck.log, racecheck.log (and .json)   a few cases under compute-sanitizer, where it works
#   cuda.json               the benchmark: each row beside other ways to do it, with its target
#   torch.json              the same rows by PyTorch, where python3 has one with CUDA
#   steps.json              a line for each step: exit status, seconds
#
# Needs CMake 3.25, g++ 12, nvcc 13 (in PATH, CUDA_HOME or /usr/local/cuda) and {fmt}: its package, found by
# find_package (CMAKE_PREFIX_PATH may name its place), or FMT_INCLUDE, a folder with its headers (fmt/format.h).
# Neither GoogleTest nor Python packages. Environment: BUILD, the build folder (build/gpu_check); JOBS.
#
# Exit: 0 all was right (speed does not count); 1 it does not build, or a result was wrong; 77 no GPU, after the build.
set -euo pipefail

[ $# -eq 1 ] || { echo "usage: gpu_check.sh OUT" >&2 && exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
build=${BUILD:-build/gpu_check}
jobs=${JOBS:-$(nproc)}
total=470
failed=()
rm -f "$out"/{machine,cases,memcheck,racecheck,cuda,torch,steps}.json "$out"/*.log

json() { # a string of JSON
  local text=${1//\\/\\\\}
  text=${text//\"/\\\"}
  printf '"%s"' "${text//[$'\n\t\r']/ }"
}

# note STEP RC SECONDS TEXT: a line of steps.json, and one for who looks on.
note() {
  printf '{"step": %s, "rc": %d, "seconds": %d, "what": %s}\n' "$(json "$1")" "$2" "$3" "$(json "$4")" >>"$out/steps.json"
  echo "$1: $4 ($3 s)"
}

# step NAME SECONDS COMMAND...: the command with its output in NAME.log, for so long at most; its status.
rc=0
step() {
  local name=$1 limit=$2 left=$((total - SECONDS))
  shift 2
  ((limit < left)) || limit=$left
  rc=0
  if ((limit < 5)); then
    echo "no time was left" >"$out/$name.log"
    rc=124
  else
    timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1 || rc=$?
    [ $rc -ne 137 ] || rc=124
  fi
}

machine() {
  local nvcc
  nvcc=$(command -v nvcc || ls "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" 2>/dev/null || true)
  echo "{"
  if command -v nvidia-smi >/dev/null; then
    local fields=(name driver_version memory.total pcie.link.gen.max pcie.link.width.max clocks.max.sm
      clocks.max.memory power.limit compute_cap mig.mode.current ecc.mode.current) field value
    for field in "${fields[@]}"; do
      value=$(nvidia-smi --id=0 --query-gpu="$field" --format=csv,noheader 2>/dev/null | head -n 1 || true)
      printf '  %s: %s,\n' "$(json "gpu.$field")" "$(json "$value")"
    done
  fi
  printf '  "nvcc": %s,\n' "$(json "$([ -n "$nvcc" ] && "$nvcc" --version | tail -n 2 | head -n 1)")"
  printf '  "cmake": %s,\n' "$(json "$(cmake --version | head -n 1)")"
  printf '  "compiler": %s,\n' "$(json "$(${CXX:-c++} --version | head -n 1)")"
  printf '  "cpu": %s,\n' "$(json "$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1)")"
  printf '  "cores": %d,\n' "$(nproc)"
  printf '  "memory_kib": %d,\n' "$(sed -n 's/^MemTotal: *\([0-9]*\).*/\1/p' /proc/meminfo)"
  printf '  "kernel": %s,\n' "$(json "$(uname -sr)")"
  printf '  "commit": %s\n}\n' "$(json "$(git rev-parse HEAD 2>/dev/null || true)")"
}

begin=$SECONDS
machine >"$out/machine.json" || true
note machine 0 $((SECONDS - begin)) "machine.json"

# ---- build

begin=$SECONDS
generator=("Unix Makefiles") keep_going=-k
if command -v ninja >/dev/null; then
  generator=(Ninja) keep_going=-k0
fi
configure=(cmake -S . -B "$build" -G "${generator[@]}" --log-level=WARNING -DCMAKE_BUILD_TYPE=Release
  -DKVFERRY_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=90-real -DKVFERRY_BUILD_GPU_CHECK=ON -DKVFERRY_BUILD_TOOLS=OFF
  -DKVFERRY_BUILD_TESTS=OFF -DKVFERRY_BUILD_ACL=OFF -DKVFERRY_BUILD_PYTHON=OFF -DKVFERRY_INSTALL=OFF
  "-DKVFERRY_FMT_INCLUDE=${FMT_INCLUDE:+$(realpath "$FMT_INCLUDE")}")
step configure 90 "${configure[@]}"
cp "$out/configure.log" "$out/build.log"
if [ $rc -ne 0 ]; then
  what="cannot be configured: see build.log"
  if grep -qi 'fmt' "$out/build.log"; then
    what="there is no {fmt}: set FMT_INCLUDE to a folder with its headers, or CMAKE_PREFIX_PATH"
  fi
  note build $rc $((SECONDS - begin)) "$what"
  exit 1
fi
step compile 150 cmake --build "$build" -j "$jobs" --target kvferry_gpu_cases kvferry_cuda_bench -- "$keep_going"
cat "$out/compile.log" >>"$out/build.log"
rm -f "$out/configure.log" "$out/compile.log"
cases=$build/tests/cuda/kvferry_gpu_cases bench=$build/bench/cuda/kvferry_cuda_bench
if [ $rc -ne 0 ]; then
  note build $rc $((SECONDS - begin)) "does not compile, or not in time: see build.log"
  failed+=(build)
  [ -x "$cases" ] || exit 1 # the other may be there, but what it measures must be right
else
  note build 0 $((SECONDS - begin)) "compiled for sm_90"
fi

# ---- cases

begin=$SECONDS
step cases 125 "$cases" --seconds 110 --out "$out/cases.json"
if [ $rc -eq 77 ]; then
  note cases 77 $((SECONDS - begin)) "$(tail -n 1 "$out/cases.log")"
  [ ${#failed[@]} -eq 0 ] || exit 1
  exit 77
fi
what=$(grep -s '"total"' "$out/cases.json" || echo "it ended early: see cases.log and the end of cases.json")
[ $rc -eq 0 ] || failed+=(cases)
note cases $rc $((SECONDS - begin)) "$what"

# ---- a few of them under compute-sanitizer

sanitizer=$(command -v compute-sanitizer || ls "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer" 2>/dev/null || true)
for tool in memcheck racecheck; do
  begin=$SECONDS
  if [ -z "$sanitizer" ]; then
    echo "there is no compute-sanitizer in PATH, CUDA_HOME or /usr/local/cuda" >"$out/$tool.log"
    note $tool 0 0 "skipped: no compute-sanitizer"
    continue
  fi
  step $tool 40 "$sanitizer" --tool $tool --error-exitcode 99 "$cases" --memory pinned --registered 5 --random 5 \
    --no-large --seconds 30 --patience 30 --out "$out/$tool.json"
  what=$(grep -s 'ERROR SUMMARY\|RACECHECK SUMMARY' "$out/$tool.log" | tail -n 1 || true)
  if [ $rc -eq 99 ] || grep -qs '"failure":' "$out/$tool.json"; then
    failed+=($tool)
  elif [ $rc -eq 124 ]; then
    what="the time was over: ${what:-nothing was found until then}"
  elif [ $rc -ne 0 ] && [ $rc -ne 4 ]; then
    what="skipped: it does not work here, see $tool.log"
  fi
  note $tool $rc $((SECONDS - begin)) "$what"
done

# ---- the benchmark

begin=$SECONDS
if [ -x "$bench" ]; then
  step bench 100 "$bench" --seconds 80 --out "$out/cuda.json"
  what=$(sed -n 's/^ *"\(complete\|failures\|targets_met\|targets\)": \(.*\)/\1 \2/p' "$out/cuda.json" 2>/dev/null | tr '\n' ' ' || true)
  # The time is no result.
  [ $rc -eq 0 ] || [ $rc -eq 124 ] || failed+=(bench)
  note bench $rc $((SECONDS - begin)) "${what:-see bench.log}"
fi

begin=$SECONDS
if command -v python3 >/dev/null && [ -x "$bench" ]; then
  "$bench" --list >"$build/rows.txt"
  step torch 25 python3 bench/cuda/torch_peers.py --rows "$build/rows.txt" --ours "$out/cuda.json" --out "$out/torch.json"
  note torch $rc $((SECONDS - begin)) "$(tail -n 1 "$out/torch.log")"
else
  note torch 77 0 "skipped: no python3"
fi

if [ ${#failed[@]} -gt 0 ]; then
  echo "FAILED: ${failed[*]} ($SECONDS s in all)"
  exit 1
fi
echo "all was right ($SECONDS s in all)"
