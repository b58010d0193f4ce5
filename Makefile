CARGO ?= cargo

.PHONY: help demo test load campaign endurance lint features doc bench wear

help: ## what there is to make
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 8

demo: ## sell 100 items without and with a lock, on the embedded store
	$(CARGO) run --features sqlite --example flash_sale

test: ## install what the tests need and run all of them
	.ci/packages
	.ci/test

load: ## 16 processes x 200 runs of one lock, the full size of a test that `test` runs smaller
	DISTLOCK_TEST_RUNS=200 $(CARGO) test --release -p lock-cli --test queue -- --nocapture

campaign: ## try to break each store for 7 minutes; see docs/proof.md
	for store in redis postgres etcd etcd3 sqlite; do \
		$(CARGO) run --release -p integration-tests --bin campaign -- --store $$store --minutes 7 || exit; \
	done

endurance: ## 10,000 dropped acquires, 1,000 pauses and 100,000 names on each store
	DISTLOCK_TEST_FULL=1 $(CARGO) test --release -p integration-tests --test endurance -- --test-threads 1 --nocapture

lint: ## formatting, and clippy for each set of features
	.ci/lint

features: ## every two features together, and what a feature brings along
	.ci/features

doc: ## the documentation of the crates, in target/doc
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --lib --all-features --no-deps

bench: ## stores and other libraries side by side, in a quarter of an hour: target/bench/report.html
	.ci/packages
	mkdir -p target/bench
	$(CARGO) run --release -p peers -- --seconds 1 --json target/bench/report.json \
		--html target/bench/report.html --markdown target/bench/report.md

wear: ## what very many cycles leave behind, in Postgres' tables and in etcd's history
	$(CARGO) bench -p integration-tests --bench '*'
