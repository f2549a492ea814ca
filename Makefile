# The only list of commands; `make help` prints it, and the gate calls nothing else.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.SUFFIXES:

# Tests that look at the whole.
TESTED := -p tests-sim -p tests-golden -p tests-wire -p tests-e2e -p tests-tidy
# The AWS half, over an in-process DynamoDB engine; its SDK takes minutes to compile.
AWS := -p tailstep-aws -p tailstep-fn-sandbox -p tailstep-fn-microvm
# The official Python client, in the three lines that are promised to work.
SDKS := 2.14.0 1.17.0 0.121.0
TAILSTEP := $(or $(CARGO_TARGET_DIR),target)/debug/tailstep

.PHONY: help
help: ## List the commands
	@sed -n 's/^\([a-z-]*\): .*## /\1\t/p' $(MAKEFILE_LIST) | while IFS="$$(printf '\t')" read -r name what; do \
		printf '  make %-12s %s\n' "$$name" "$$what"; done

.PHONY: setup
setup: $(SDKS:%=.venv/anthropic-%/made-from) tests/e2e/node/node_modules/.package-lock.json ## Install the official clients that `make conformance` runs

.venv/anthropic-%/made-from: tests/e2e/sdk/requirements-%.txt
	python3 -m venv --clear .venv/anthropic-$*
	.venv/anthropic-$*/bin/pip install --quiet --disable-pip-version-check --no-deps -r $<
	cp $< $@

tests/e2e/node/node_modules/.package-lock.json: tests/e2e/node/package-lock.json
	cd tests/e2e/node && npm ci --no-audit --no-fund --loglevel=error
	touch $@

.PHONY: programs
programs:
	cargo build -p tailstep -p tailstep-sandbox

.PHONY: demo
demo: programs ## Let an agent mend a failing test, and show its diff
	sh examples/fix-failing-test/demo.sh $(TAILSTEP)

.PHONY: dev
dev: programs ## Serve the API on this machine; ARGS adds arguments
	$(TAILSTEP) dev $(ARGS)

.PHONY: test
test: ## Run every test that needs no network, account or container
	cargo test
	cargo test $(TESTED)
	cargo test $(AWS)

.PHONY: lint
lint: ## Check format, lints, and (if cargo-deny is there) dependencies
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	@if cargo deny --version >/dev/null 2>&1; then cargo deny check; \
	else echo "cargo-deny is not installed: dependencies are not checked"; fi

.PHONY: sim
sim: ## Simulate thousands of faulty runs, and require every planted bug to be caught
	cargo run --profile fast -p tests-sim -- $(ARGS)

.PHONY: crash
crash: ## Kill a working server fifty times, at random moments
	TAILSTEP_CRASH_KILLS=50 cargo test -p tests-e2e --test crash -- --nocapture

.PHONY: conformance
conformance: setup programs ## Drive the API with the official Python and JavaScript clients and workers
	sh tests/e2e/sdk/conformance.sh $(TAILSTEP)

.PHONY: probes
probes: programs ## Attack the sandbox with the probes in TAILSTEP_PROBES
	sh tests/e2e/probes.sh $(TAILSTEP)

.PHONY: wire
wire: ## Deploy the Lambda form to an emulator, and make it work
	python3 tests/wire/rig.py all

.PHONY: template
template: ## Validate the deployment's template, and test what it must keep
	python3 tests/wire/rig.py template

.PHONY: bench
bench: ## Measure what a step costs
	cargo run --profile fast -p tests-bench

.PHONY: bench-sandbox
bench-sandbox: ## Measure what a sandbox costs against a plain process
	cargo build --profile fast -p tailstep -p tailstep-sandbox --bins
	cargo run --profile fast -p tailstep-sandbox --example spawn_cost -- target/fast/tailstep
