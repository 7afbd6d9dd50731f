# The short commands. `make` alone builds the program at build/bin/pith; `make help` lists the rest.
.DEFAULT_GOAL := build
.PHONY: build chat install uninstall package demo python python-hf wheel test test-cuda test-emulated asan tsan fuzz cuda bench format lint clean help

# One compiler per core, and no more than free memory allows (1.5 GB each).
JOBS ?= $(shell awk -v cores=$$(nproc) '/^MemAvailable/ { fit = int($$2 / 1500000); \
  if (fit < 1) fit = 1; print (fit < cores ? fit : cores) }' /proc/meminfo)
PREFIX ?= /usr/local
# One architecture compiles in half the time of all; a release build takes the preset's list.
CUDA_ARCH ?= 90a-real
CUDA_TARGETS ?= pith_cli test_cuda cuda_benches
EMULATED ?= *
# Seconds of each fuzzer.
TIME ?= 60
CTEST = ctest --output-on-failure -j2 --no-tests=error

build: ## the program, at build/bin/pith
	@tools/setup.sh build
	@cmake --preset release -Wno-dev --log-level=NOTICE
	@cmake --build build -j $(JOBS) --target pith_cli

chat: build ## ask a fetched model (469 MiB, once) about a report: the exact cache beside a tenth of its memory
	@tools/setup.sh models
	@build/bin/pith pull qwen2.5-coder-0.5b
	@tools/chat.py

demo: build ## hide facts in a long text, ask for them under several policies, print the table
	@build/bin/pith demo

python: ## the Python package in an environment of its own, build/python: its tests, then a chat
	@tools/setup.sh python
	@tools/python.sh build/python
	@build/python/bin/python -m pytest -q -p no:cacheprovider tests/python
	@build/python/bin/python -m pith --kv quarter "Name three things that are blue."

python-hf: ## the cache inside transformers: torch in an environment of its own (6 GB, once), its tests
	@tools/setup.sh python
	@tools/python_torch.sh
	@tools/python_torch.sh kvpress
	@tests/python_hf_test.sh build

wheel: ## a wheel of the Python package that needs no packages of Debian, in build/wheel/dist, tried where ours are not
	@tools/setup.sh python
	@tools/wheel.sh build/wheel

test: ## build everything and run every test
	@tools/setup.sh build
	@cmake --preset release -Wno-dev --log-level=NOTICE
	@cmake --build build -j $(JOBS)
	@$(CTEST) --test-dir build

asan: ## the tests again with AddressSanitizer and UndefinedBehaviorSanitizer
	@tools/setup.sh build
	@cmake --preset asan -Wno-dev --log-level=NOTICE
	@cmake --build build/asan -j $(JOBS)
	@$(CTEST) --test-dir build/asan

tsan: ## sessions of one engine on eight threads, with ThreadSanitizer
	@tools/setup.sh build
	@cmake --preset tsan -Wno-dev --log-level=NOTICE
	@cmake --build build/tsan -j $(JOBS) --target engine_threads_test
	@TSAN_OPTIONS=halt_on_error=1 build/tsan/bin/engine_threads_test

fuzz: ## what reads files and requests of strangers, TIME seconds a fuzzer (TARGETS: some alone); needs Clang
	@tools/setup.sh fuzz
	@cmake --preset fuzz -Wno-dev --log-level=NOTICE
	@cmake --build build/fuzz -j $(JOBS) --target fuzz
	@tools/fuzz.sh $(TIME) $(TARGETS)

cuda: ## the CUDA build, in build/cuda: program, tests and benchmarks (needs nvcc, not a GPU)
	@tools/setup.sh build
	@tools/setup.sh nvcc
	@cmake --preset cuda -DCMAKE_CUDA_ARCHITECTURES=$(CUDA_ARCH) -Wno-dev --log-level=NOTICE
	@cmake --build build/cuda -j $(JOBS) --target $(CUDA_TARGETS)

test-cuda: cuda ## the CUDA tests; those that need a GPU skip where there is none
	@build/cuda/bin/test_cuda --gtest_brief=1

test-emulated: ## the CUDA tests (EMULATED=filter) on a card emulated on the CPU: needs the toolkit's headers, no GPU
	@tools/setup.sh
	@cmake --preset emulated -Wno-dev --log-level=NOTICE
	@cmake --build build/emulated -j $(JOBS) --target test_cuda cuda_decode_bench
	@build/emulated/bin/cuda_decode_bench --only nothing # all codecs that it knows are made
	@tools/emulated.sh build/emulated/bin/test_cuda "$(EMULATED)"

bench: build ## measure speed on this machine
	@tools/bench.sh

install: build ## program, library, manual pages, completions under PREFIX (default /usr/local)
	@cmake --install build --prefix $(PREFIX)

uninstall: ## take away what the last install wrote
	@cmake -P build/uninstall.cmake

package: build ## a Debian package, and a tarball that runs where it is unpacked, in build/packages
	@cd build && cpack -G 'DEB;TGZ' -B packages

format: ## put every C++ file into the house format
	@tools/setup.sh
	@tools/check_format.sh --fix

lint: ## every static check: format, clang-tidy, includes, docs, claims, tree, classes, walks
	@tools/setup.sh
	@cmake --preset release -Wno-dev --log-level=NOTICE
	@! tools/setup.sh nvcc >/dev/null 2>&1 || cmake --preset cuda -DCMAKE_CUDA_ARCHITECTURES=$(CUDA_ARCH) \
	  -Wno-dev --log-level=NOTICE
	@tools/check.sh

clean: ## remove all that was built
	@rm -rf build .pip-build .pip-wheel

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 22
