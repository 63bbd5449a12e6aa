# Two commands for a fresh machine: `make quickstart` (needs only Python 3.11+) and `make test` (sets up everything it needs).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CLUSTER_TESTS := cluster or sdk or spark
# Tests wait more than they work: two runs side by side, each with servers of its own, take turns at the files.
JOBS ?= 2
SIDE_BY_SIDE := -n $(JOBS) --dist loadfile --no-loadscope-reorder

.PHONY: help quickstart quickstart-spark setup native wheels check test test-fast test-thorough test-long fuzz fuzz-native chaos bench docs wheel \
  generate lock clean

help:            ## this list
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-14s %s\n", $$1, $$2 }'

# --- setting up -------------------------------------------------------------------------------------------------------

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "mqbridge needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	@echo "==> creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.runtime: $(VENV)/.python pyproject.toml requirements.lock
	@echo "==> installing mqbridge into $(VENV) (about 20 MB of packages)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e .
	@touch $@

$(VENV)/.packages: $(VENV)/.runtime
	@echo "==> installing what checks and tests need"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[dev,spark]'
	@touch $@

$(VENV)/.dev: $(VENV)/.packages | native
	@touch $@

# The compiled module is built anew when its sources change. NATIVE=0 leaves it as it is, or absent.
NATIVE ?= 1
native: $(VENV)/.packages
	@[ "$(NATIVE)" = 0 ] || why=$$(sh native/cargo.sh); \
	  if [ "$(NATIVE)" = 0 ]; then :; \
	  elif [ -z "$$why" ]; then $(MAKE) --no-print-directory $(VENV)/.native; \
	  else echo "==> going on without the compiled module: $$why. With Rust from https://rustup.rs 'make setup' builds it"; fi

$(VENV)/.native: $(VENV)/.packages $(shell find native/src native/Cargo.* native/pyproject.toml native/mqbridge_native.pyi)
	@echo "==> building the compiled module (a minute, the first time)"
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin develop --quiet --release --locked --manifest-path native/Cargo.toml \
	  || { echo "==> the compiled module cannot be built here. Everything works without it: make NATIVE=0 $(or $(filter-out $@,$(MAKECMDGOALS)),setup)"; exit 2; }
	@touch $@

$(VENV)/.spark: $(VENV)/.runtime
	@echo "==> installing Spark into $(VENV) (about 450 MB of packages)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[spark]'
	@touch $@

setup: $(VENV)/.dev ## a .venv with the mqbridge command and everything for development
	@echo "==> ready. Next: make quickstart, make check, make test; or: source $(VENV)/bin/activate && mqbridge --help"

# --- the main job, in one minute --------------------------------------------------------------------------------------

quickstart: $(VENV)/.runtime ## the gateway between embedded topics: live progress, then proof that nothing was lost
	@$(BIN)/mqbridge quickstart

quickstart-spark: $(VENV)/.spark ## a topic written, counted per minute and mirrored with Spark; needs Java 17, which it installs where it may
	@sh tests/prerequisites.sh java
	@$(BIN)/mqbridge spark quickstart

# --- quality ----------------------------------------------------------------------------------------------------------

check: $(VENV)/.dev ## ruff, mypy strict, import rules, generated code and pages current; rustfmt, clippy and cargo test where cargo is
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python proto/generate.py --check
	$(BIN)/python -m mqbridge.config.reference --check
	$(BIN)/python -m mqbridge.gateway.metrics.page --check
	$(BIN)/python -m mqbridge.cli.mapping_page --check
	$(BIN)/python -m mqbridge.cli.command_page --check
	$(BIN)/python -m mqbridge.spark.options_page --check
	$(BIN)/python docs/explanation/architecture.py --check
	$(BIN)/python -m tests.fuzz.seeds --check
	$(BIN)/python -m pytest -q tests/test_imports.py
	PYO3_PYTHON=$(CURDIR)/$(BIN)/python sh native/check.sh
	@echo "==> all checks passed"

test: $(VENV)/.dev ## the tests, real TubeMQ, Pulsar and RocketMQ included (half an hour on two cores, the first time more)
	@sh tests/prerequisites.sh
	@echo "==> fetching the real servers (once; kept in the cache)"
	@$(BIN)/python -m tests.kit.clusters fetch
	@$(MAKE) --no-print-directory check
	@echo "==> tests"
	@$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "not (long or thorough)"
	@echo "==> all tests passed. Next: make quickstart, or make test-thorough (more of the same), make test-long (the full-size runs), make bench"

test-fast: $(VENV)/.dev ## what needs no Java: three or four minutes
	@$(BIN)/python -m pytest -q $(SIDE_BY_SIDE) -m "not ($(CLUSTER_TESTS) or long or thorough)"

test-thorough: $(VENV)/.dev ## what `make test` leaves out for time: faults, second brokers, mixed groups with Java, large state (a quarter of an hour)
	@sh tests/prerequisites.sh
	@$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "thorough and not long"
	@echo "==> properties once more, with examples that are drawn (make test tries the same ones every time)"
	@$(BIN)/python -m pytest -q $(SIDE_BY_SIDE) -m "hypothesis and not ($(CLUSTER_TESTS) or long)" --hypothesis-profile drawn
	@echo "==> all thorough tests passed. Next: make test-long, or make bench"

MESSAGES := 5000000
TESTS := tests
test-long: $(VENV)/.dev ## the full-size acceptance runs against the real servers; TESTS=tests/spark MESSAGES=500000 for the mirrors on Spark
	@sh tests/prerequisites.sh
	@MQBRIDGE_MESSAGES=$(MESSAGES) $(BIN)/python -m pytest -m long -s $(TESTS)

FUZZ_SECONDS ?= 60
fuzz: $(VENV)/.dev ## random bytes, led by coverage, against every reader of bytes; FUZZ_SECONDS=60 each, FUZZ_ARGS='--only rocketmq'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[fuzz]' \
	  || echo "==> no fuzzer can be installed here; what that means is said below"
	@$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS) $(FUZZ_ARGS)

FUZZ_BYTES ?= 100000000
FUZZ_NATIVE = MQBRIDGE_FUZZ_BYTES=$(FUZZ_BYTES) cargo $(1) test --quiet --locked --release --no-default-features --test fuzz
SANITIZED := x86_64-unknown-linux-gnu
fuzz-native:     ## damaged bytes through every decoder of the compiled module, also under AddressSanitizer; FUZZ_BYTES=100000000 each
	@cd native && $(call FUZZ_NATIVE,) -- targets --nocapture
	@if [ "$$(uname -sm)" = "Linux x86_64" ] && cargo +nightly --version >/dev/null 2>&1; then echo "==> the same under AddressSanitizer, with debug assertions"; cd native \
	  && export RUSTFLAGS=-Zsanitizer=address ASAN_OPTIONS=detect_leaks=1:quarantine_size_mb=16 CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true \
	  && $(call FUZZ_NATIVE,+nightly) --target $(SANITIZED) --target-dir target/sanitized -- targets --nocapture; \
	else echo "==> not under AddressSanitizer, which needs nightly Rust on x86-64 Linux: rustup toolchain install nightly"; fi

SECONDS := 60
chaos: $(VENV)/.dev ## faults drawn from a seed against two instances on real servers; SEED=7 (or 1-10) SECONDS=60 DIRECTION=pulsar-rocketmq (or all)
	@sh tests/prerequisites.sh
	@$(BIN)/python -m tests.chaos $(if $(SEED),--seed $(SEED)) --seconds $(SECONDS) $(if $(DIRECTION),--direction $(DIRECTION)) $(CHAOS_ARGS)

bench: $(VENV)/.dev ## the figures of docs/explanation/benchmarks.md and docs/explanation/profile.md, beside the official Java clients and Spark's Kafka connector
	@sh tests/prerequisites.sh
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[bench]' \
	  || echo "==> pulsar-client and py-spy cannot be installed here: its figures and the profile are left out"
	@$(BIN)/python -m tests.bench --write
	@! test -x $(BIN)/py-spy || $(BIN)/python -m tests.bench profile rocketmq-pulsar ordinary --write

wheel: $(VENV)/.python ## a wheel of mqbridge in dist/, for `pipx install`; pure Python, the compiled module is in `make wheels`
	@rm -rf build
	@echo "==> building the wheel"
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	@rm -rf build
	@echo "==> done. Next: pipx install $$(ls dist/mqbridge-*.whl)"

wheels: $(VENV)/.packages ## wheels of the compiled module in dist/ for Linux and macOS, as far as Rust has them; tries the one for this machine
	@why=$$(sh native/cargo.sh); [ -z "$$why" ] || { echo "==> no wheels: $$why"; exit 2; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[wheels]'
	@$(BIN)/python native/wheels.py

# --- generated files --------------------------------------------------------------------------------------------------

generate: $(VENV)/.dev ## protobuf modules and reference pages
	@$(BIN)/python proto/generate.py
	@$(BIN)/python -m mqbridge.config.reference --write
	@$(BIN)/python -m mqbridge.gateway.metrics.page --write
	@$(BIN)/python -m mqbridge.cli.mapping_page --write
	@$(BIN)/python -m mqbridge.cli.command_page --write
	@$(BIN)/python -m mqbridge.spark.options_page --write
	@$(BIN)/python docs/explanation/architecture.py --write
	@$(BIN)/python -m tests.fuzz.seeds --write

lock: $(VENV)/.dev ## renew requirements.lock
	@$(BIN)/pip-compile --quiet --extra dev --extra spark --strip-extras --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --allow-unsafe \
	  --output-file requirements.lock pyproject.toml

clean:           ## remove what was built
	@rm -rf $(VENV) build dist *.egg-info native/target .mypy_cache .pytest_cache .ruff_cache .hypothesis tests/java/target
