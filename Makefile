# Every task, with what it does: `make help`.
.DEFAULT_GOAL := help
.PHONY: help serve test check fmt lint drift openapi bench cluster cluster-down cluster-ha test-ha test-console test-compose chaos chaos-long

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

drift: ## Fail if openapi/openapi.json or the files for Docker do not fit the code
	scripts/drift.sh

openapi: ## Generate openapi/openapi.json from the code
	mkdir -p openapi
	cargo run --locked --quiet -p latchgate -- openapi > openapi/openapi.json.new
	mv openapi/openapi.json.new openapi/openapi.json

bench: ## Measure a node beside a bare HTTP handler (ARGS go to the comparison; ARGS=handoffs: across nodes)
	scripts/bench.sh $(ARGS)

bench-peers: ## Measure Latchgate beside other lock services, and print the targets with what was reached (ARGS="--rounds 5")
	scripts/bench-peers.sh $(ARGS)
.PHONY: bench-peers

cluster: ## Start those of Postgres, Redis, three nodes and nginx that are not running (ARGS="--balance round_robin")
	scripts/cluster.sh up $(ARGS)

cluster-ha: ## The same with stores that fail over by themselves: Patroni, etcd, HAProxy, and Redis with Sentinels
	scripts/cluster.sh up --ha $(ARGS)

cluster-down: ## Stop the cluster and remove its data
	scripts/cluster.sh down

test-openapi: ## Lint openapi/openapi.json, drive a node with clients generated from it, and fuzz it at random (SECONDS_EACH=600 for longer)
	SECONDS_EACH=$${SECONDS_EACH:-45} scripts/test-openapi.sh
.PHONY: test-openapi

fuzz: ## Run the fuzz targets under libFuzzer (ARGS="contents state", SECONDS_EACH=600 for longer)
	scripts/fuzz.sh $(ARGS)
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

reproduce: ## Build the released binary twice, in two directories, and compare
	scripts/reproduce.sh
.PHONY: reproduce

test-ha: ## Chaos in such a cluster, and fail-overs with asynchronous replication (about 15 minutes)
	scripts/chaos.sh --on ha --minutes 9
	scripts/test-ha.sh

test-guard: ## Pause holders and kill workers whose transactions have a guard or a post, and count what is lost (MINUTES=10 for longer)
	scripts/test-guard.sh $(MINUTES)
.PHONY: test-guard

simulation-long: ## Ten million steps of the simulation, and deeper searches of the turns and the switch (for a night)
	SIMULATION_TIMES=8 cargo test --locked -p latchgate --test simulation -- --nocapture
	SEARCH_DEPTH=9 cargo test --locked -p latchgate-core --test turn_protocol -- --nocapture
	SEARCH_DEPTH=14 cargo test --locked -p latchgate --lib in_every_order_of_events -- --nocapture
.PHONY: simulation-long

sensitivity: ## Show that tests notice each defect of service/testkit/defects (ARGS="version-check ttl-short" for some)
	scripts/sensitivity.sh $(ARGS)
.PHONY: sensitivity

test-console: ## Use the console in headless Chromium
	scripts/test-console.sh

test-compose: ## Build and run docker-compose.yml under a Docker engine of its own (as root; about ten minutes)
	scripts/test-compose.sh

chaos: ## Faults of every kind under load, with a check of what clients saw (ARGS="--minutes 10 --seed 7 --only clock --on pair")
	scripts/chaos.sh $(ARGS)

chaos-long: ## The same for hours, after which nothing may be left behind either (HOURS=2)
	scripts/chaos.sh --minutes $$(($${HOURS:-2} * 60)) $(ARGS)
