# SPDX-License-Identifier: Apache-2.0
JOBS ?= $(shell nproc)

build = cmake --preset $(1) --log-level=WARNING && cmake --build --preset $(1) -j $(JOBS)

.PHONY: help setup build demo bench test test-long fmt lint

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

setup: ## install the missing Debian packages (12 or 13; as root or through sudo)
	@tools/setup.sh

build: setup ## build everything, warnings as errors
	@$(call build,dev)

demo: setup ## replay a built-in traffic and write kvferry-report.html and .json
	@$(call build,release) --target kvferry_cli
	build/release/kvferry replay

test: build ## build and run the tests (N passed, N failed)
	@tests/run.sh build/dev -j $(JOBS) -LE long

test-long: build ## the slow and large tests, and whether the tests find planted defects
	@tools/setup.sh mutants
	@tests/run.sh build/dev -L long; long=$$?; tests/mutants/run.py && exit $$long

fmt: ## format the sources in place
	@tools/setup.sh lint
	@tools/lint.sh fmt

lint: setup ## formatting and clang-tidy
	@tools/setup.sh lint
	@cmake --preset dev --log-level=WARNING
	@tools/lint.sh check

bench: setup ## time the operators at model shapes, each implementation in turn
	@$(call build,release) --target kvferry_cli
	build/release/kvferry bench "gather_pa_kv_cache:lens=4096*4,bs=16,h=8,dk=128,impl=avx2;generic" "scatter_pa_kv_cache:t=8192,bs=16,h=8,dk=128,impl=avx2;generic" "group_memcpy:h=4096,w=1152,impl=avx2;generic"
