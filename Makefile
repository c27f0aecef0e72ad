MODULE = target/release/libswlimit.so
PYTHON = .venv/bin/python

.PHONY: run test test-all bench accuracy build setup lint

run: build
	@scripts/run

test: build lint
	cargo test --quiet
	$(PYTHON) -m pytest tests

test-all: build lint
	cargo test --quiet
	SWLIMIT_SERVERS=all $(PYTHON) -m pytest tests --long

bench:
	@scripts/bench/run

accuracy:
	@scripts/accuracy/run

build: setup
	cargo build --release

lint: setup
	cargo fmt --check
	cargo clippy --release --all-targets -- --deny warnings

setup:
	@scripts/setup
