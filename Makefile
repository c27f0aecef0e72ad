PYTEST = .venv/bin/python -m pytest tests
OTHER_RELEASES = redis-7.4,redis-8.0,valkey-8.0,valkey-8.1,valkey-9.1

.PHONY: run test test-all test-releases test-long bench accuracy build setup lint

run: build
	@scripts/run

# Everything, in minutes, on the installed server.
test: build lint
	cargo test --workspace --quiet
	$(PYTEST)

# The same on every other release, and the tests that take longer.
test-all: test test-releases test-long

test-releases: build
	-scripts/servers
	SWLIMIT_SERVERS=$(OTHER_RELEASES) $(PYTEST)

# Clusters twice: only Valkey 9 moves slots atomically.
test-long: build
	$(PYTEST) --long -m "long or threaded"
	SWLIMIT_SERVERS=$(OTHER_RELEASES) $(PYTEST) --long -m "threaded and not long"
	SWLIMIT_SERVERS=valkey-9.1 $(PYTEST) --long -m long -k test_cluster

bench:
	@scripts/benchmark

accuracy:
	@scripts/measure-accuracy

build: setup
	cargo build --release

lint: setup
	cargo fmt --all --check
	cargo clippy --workspace --release --all-targets -- --deny warnings
	.venv/bin/ruff check --quiet tests scripts

setup:
	@scripts/setup
