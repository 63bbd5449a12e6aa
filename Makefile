# On a new machine start with `make quickstart`, which needs only Python 3.11 or newer, or with `make test`, which installs all it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CLUSTER_TESTS := cluster or sdk or spark
# Tests mostly wait, so JOBS processes run them concurrently on two cores. All tests of a file, and all that share a kind of real server, run in one of them.
JOBS ?= 3
SIDE_BY_SIDE := -n $(JOBS) --ignore tests/quality
# Tests start hundreds of Python processes: without stored bytecode, each compiles mqbridge again, for 0.2 s or more.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help quickstart quickstart-spark setup native wheels check test test-fast test-thorough test-long fuzz fuzz-native chaos soak log-faults bench docs wheel \
  generate lock clean

help:            ## show this list
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-14s %s\n", $$1, $$2 }'

# --- setup -------------------------------------------------------------------------------------------------------

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
	@echo "==> installing the packages for checks and tests"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[dev,spark]'
	@touch $@

$(VENV)/.dev: $(VENV)/.packages | native
	@touch $@

# The compiled module is built again when its sources change. With NATIVE=0 it is neither built nor removed.
NATIVE ?= 1
native: $(VENV)/.packages
	@[ "$(NATIVE)" = 0 ] || why=$$(sh native/cargo.sh); \
	  if [ "$(NATIVE)" = 0 ]; then :; \
	  elif [ -z "$$why" ]; then $(MAKE) --no-print-directory $(VENV)/.native; \
	  else echo "==> continuing without the compiled module: $$why. To build it, install Rust from https://rustup.rs, then: make setup"; fi

$(VENV)/.native: $(VENV)/.packages $(shell find native/src native/Cargo.* native/pyproject.toml native/mqbridge_native.pyi)
	@echo "==> building the compiled module (takes a minute the first time)"
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/maturin develop --quiet --release --locked --manifest-path native/Cargo.toml \
	  || { echo "==> the compiled module cannot be built here. It is optional; to continue without it: make NATIVE=0 $(or $(filter-out $@,$(MAKECMDGOALS)),setup)"; exit 2; }
	@touch $@

$(VENV)/.spark: $(VENV)/.runtime
	@echo "==> installing Spark into $(VENV) (about 450 MB of packages)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[spark]'
	@touch $@

setup: $(VENV)/.dev ## create .venv with the mqbridge command and all development tools
	@echo "==> ready. Next: make quickstart, make check, make test; or: source $(VENV)/bin/activate && mqbridge --help"

# --- demonstrations, one minute each --------------------------------------------------------------------------------------

quickstart: $(VENV)/.runtime ## publish to a Pulsar listener, bridge between two embedded logs, and verify that no message was lost
	@$(BIN)/mqbridge quickstart

quickstart-spark: $(VENV)/.spark ## write, count and mirror a topic with Spark; needs Java 17, which it tries to install
	@sh tests/prerequisites.sh java
	@$(BIN)/mqbridge spark quickstart

# --- quality ----------------------------------------------------------------------------------------------------------

check: $(VENV)/.dev ## run ruff, mypy, the rules of imports and of the test tree, check that generated files are current, build the wheel; with cargo also rustfmt, clippy and cargo test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python proto/generate.py --check
	$(BIN)/python -m tools.configuration_page --check
	$(BIN)/python -m tools.metrics_page --check
	$(BIN)/python -m tools.mapping_page --check
	$(BIN)/python -m tools.listeners_page --check
	$(BIN)/python -m tools.command_page --check
	$(BIN)/python -m tools.spark_options_page --check
	$(BIN)/python -m tools.architecture_page --check
	$(BIN)/python -m tests.fuzz.seeds --check
	$(BIN)/python -m pytest -q tests/quality
	PYO3_PYTHON=$(CURDIR)/$(BIN)/python sh native/check.sh
	@echo "==> all checks passed"

test: $(VENV)/.dev ## run the checks and the tests, with real TubeMQ, Pulsar and RocketMQ servers (a quarter of an hour on two cores, longer the first time)
	@sh tests/prerequisites.sh
	@echo "==> downloading the real servers (only once; they are cached)"
	@$(BIN)/python -m tests.kit.clusters fetch
	@$(MAKE) --no-print-directory check
	@echo "==> tests"
	@$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "not (long or thorough)"
	@echo "==> all tests passed. Next: make quickstart, or make test-thorough (slower tests), make test-long (full-size runs), make bench"

test-fast: $(VENV)/.dev ## run the tests that need no Java (three or four minutes)
	@$(BIN)/python -m pytest -q $(SIDE_BY_SIDE) -m "not ($(CLUSTER_TESTS) or long or thorough)"

test-thorough: $(VENV)/.dev ## run the slower tests that `make test` skips: faults, second brokers, locked clusters, groups shared with Java, large state (50 minutes)
	@sh tests/prerequisites.sh
	@$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "thorough and not long" --hypothesis-profile drawn
	@echo "==> property tests with ten times as many examples, newly drawn (make test always uses the same ones)"
	@$(BIN)/python -m pytest -q $(SIDE_BY_SIDE) -m "hypothesis and not ($(CLUSTER_TESTS) or long or thorough)" --hypothesis-profile drawn
	@echo "==> all thorough tests passed. Next: make test-long, or make bench"

MESSAGES := 5000000
TESTS := tests
test-long: $(VENV)/.dev ## run the full-size acceptance tests on real servers; TESTS=tests/spark MESSAGES=500000 for the mirrors on Spark
	@sh tests/prerequisites.sh
	@MQBRIDGE_MESSAGES=$(MESSAGES) $(BIN)/python -m pytest -m long -s $(TESTS)

FUZZ_SECONDS ?= 60
fuzz: $(VENV)/.dev ## fuzz every decoder, guided by coverage; FUZZ_SECONDS=60 per decoder, FUZZ_ARGS='--only rocketmq'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[fuzz]' \
	  || echo "==> the fuzzer cannot be installed here; see the messages below"
	@$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS) $(FUZZ_ARGS)

FUZZ_BYTES ?= 100000000
FUZZ_NATIVE = MQBRIDGE_FUZZ_BYTES=$(FUZZ_BYTES) cargo $(1) test --quiet --locked --release --no-default-features --test fuzz
SANITIZED := x86_64-unknown-linux-gnu
fuzz-native:     ## fuzz every decoder of the compiled module, also with AddressSanitizer; FUZZ_BYTES=100000000 per decoder
	@cd native && $(call FUZZ_NATIVE,) -- targets --nocapture
	@if [ "$$(uname -sm)" = "Linux x86_64" ] && cargo +nightly --version >/dev/null 2>&1; then echo "==> once more with AddressSanitizer and debug assertions"; cd native \
	  && export RUSTFLAGS=-Zsanitizer=address ASAN_OPTIONS=detect_leaks=1:quarantine_size_mb=16 CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true \
	  && $(call FUZZ_NATIVE,+nightly) --target $(SANITIZED) --target-dir target/sanitized -- targets --nocapture; \
	else echo "==> skipping AddressSanitizer, which needs nightly Rust on x86-64 Linux: rustup toolchain install nightly"; fi

SECONDS := 60
chaos: $(VENV)/.dev ## run two gateway instances on real servers with random faults; SEED=7 (or 1-10) SECONDS=60 DIRECTION=pulsar-rocketmq (or all)
	@sh tests/prerequisites.sh
	@$(BIN)/python -m tests.chaos $(if $(SEED),--seed $(SEED)) --seconds $(SECONDS) $(if $(DIRECTION),--direction $(DIRECTION)) $(CHAOS_ARGS)

MINUTES := 60
soak: $(VENV)/.dev ## run two gateway instances beside a TubeMQ with little traffic, and restart its Broker every five minutes; MINUTES=60
	@sh tests/prerequisites.sh
	@$(BIN)/python -m tests.chaos soak --minutes $(MINUTES) $(if $(DIRECTION),--direction $(DIRECTION)) $(CHAOS_ARGS)

FAULTS := 1000
log-faults: $(VENV)/.dev ## kill, cut off, damage and move the embedded log at random, and judge what is left; SEED=7 FAULTS=1000 ONLY=kill,bits
	@$(BIN)/python -m tests.log.faults $(if $(SEED),--seed $(SEED)) --faults $(FAULTS) $(if $(ONLY),--only $(ONLY)) $(FAULTS_ARGS)

bench: $(VENV)/.dev ## measure the figures of docs/explanation/benchmarks.md and profile.md, also for the official Java clients and Spark's Kafka connector
	@sh tests/prerequisites.sh
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[bench]' \
	  || echo "==> pulsar-client and py-spy cannot be installed here: skipping that client and the profile"
	@$(BIN)/python -m tests.bench --write
	@! test -x $(BIN)/py-spy || $(BIN)/python -m tests.bench profile rocketmq-pulsar ordinary --write

wheel: $(VENV)/.python ## build a pure Python wheel of mqbridge in dist/, for `pipx install`; for the compiled module see `make wheels`
	@rm -rf build
	@echo "==> building the wheel"
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	@rm -rf build
	@echo "==> done. Next: pipx install $$(ls dist/mqbridge-*.whl)"

wheels: $(VENV)/.packages ## build wheels of the compiled module in dist/ for the installed Rust targets of Linux and macOS, and test the one for this machine
	@why=$$(sh native/cargo.sh); [ -z "$$why" ] || { echo "==> no wheels: $$why"; exit 2; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements.lock -e '.[wheels]'
	@$(BIN)/python native/wheels.py

# --- generated files --------------------------------------------------------------------------------------------------

generate: $(VENV)/.dev ## generate the protobuf modules and the reference pages
	@$(BIN)/python proto/generate.py
	@$(BIN)/python -m tools.configuration_page --write
	@$(BIN)/python -m tools.metrics_page --write
	@$(BIN)/python -m tools.mapping_page --write
	@$(BIN)/python -m tools.listeners_page --write
	@$(BIN)/python -m tools.command_page --write
	@$(BIN)/python -m tools.spark_options_page --write
	@$(BIN)/python -m tools.architecture_page --write
	@$(BIN)/python -m tests.fuzz.seeds --write

lock: $(VENV)/.dev ## update the versions in requirements.lock
	@$(BIN)/pip-compile --quiet --extra dev --extra spark --strip-extras --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --allow-unsafe \
	  --output-file requirements.lock pyproject.toml

clean:           ## remove all build results and caches
	@rm -rf $(VENV) build dist *.egg-info native/target .mypy_cache .pytest_cache .ruff_cache .hypothesis tests/java/target tests/go/target
