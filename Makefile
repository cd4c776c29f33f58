# SPDX-License-Identifier: Apache-2.0
JOBS ?= $(shell nproc)

build = cmake --preset $(1) --log-level=WARNING && cmake --build --preset $(1) -j $(JOBS)

# $(1): the name of the results, $(2): options of run.py
define bench
tools/setup.sh bench && $(call build,release) --target kvferry_bench && mkdir -p bench/results && \
python=$$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3) && \
$$python bench/run.py build/release/libkvferry_bench.so $(2) \
  --json bench/results/$(1).json --svg bench/results/$(1).svg
endef

.PHONY: help setup build demo bench bench-sweep bench-growth bench-python test test-long fmt lint

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

setup: ## install the missing Debian packages (12 or 13; as root or through sudo) and fill .venv for the Python package
	@tools/setup.sh python

build: setup ## build everything, warnings as errors
	@$(call build,dev)

demo: ## replay a built-in traffic and write kvferry-report.html and .json
	@tools/setup.sh
	@$(call build,release) --target kvferry_cli
	build/release/kvferry replay

test: build ## build and run the tests (N passed, N failed)
	@tests/run.sh build/dev -j $(JOBS) -LE long

test-long: build ## the slow and large tests, valgrind, aarch64, and whether the tests find planted defects
	@tools/setup.sh mutants valgrind neon
	@tests/run.sh build/dev -L long; long=$$?; tests/mutants/run.py && exit $$long

fmt: ## format the sources in place
	@tools/setup.sh lint
	@tools/lint.sh fmt

lint: ## formatting, clang-tidy and ruff
	@tools/setup.sh python lint
	@cmake --preset dev --log-level=WARNING
	@tools/lint.sh check

bench: ## every row of bench/targets.json against other ways to do it (minutes; wants a quiet machine)
	@$(call bench,cpu)
	@cmake --build --preset release --target kvferry_bench_acl && build/release/bench/kvferry_bench_acl

bench-sweep: ## piece sizes from 8 B to 64 MB against memcpy for each piece (4 minutes; wants a quiet machine)
	@$(call bench,cpu_sweep,--sweep)

bench-growth: ## what a call costs by tokens, sequences and ids, and its memory (wants a quiet machine)
	@$(call bench,cpu_growth,--growth)

bench-python: ## what a call from Python costs over the same call from C++ (seconds; wants a quiet machine)
	@tools/setup.sh python bench && $(call build,release) --target kvferry_bench _core
	@PYTHONPATH=build/release/python .venv/bin/python bench/python_overhead.py build/release/libkvferry_bench.so \
	  --json bench/results/python.json
