CARGO ?= cargo

.PHONY: help demo test lint doc bench

help: ## what there is to make
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 8

demo: ## sell 100 items without and with a lock, on the embedded store
	$(CARGO) run --features sqlite --example flash_sale

test: ## install what the tests need and run all of them
	.ci/packages
	.ci/test

lint: ## formatting, and clippy for each set of features
	.ci/lint

doc: ## the documentation of the crates, in target/doc
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --lib --all-features --no-deps

bench: ## the benchmarks, in target/criterion
	$(CARGO) bench --workspace --all-features --bench '*'
