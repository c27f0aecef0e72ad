PYTEST = .venv/bin/python -m pytest tests
OTHER_RELEASES = redis-7.4,redis-8.0,valkey-8.0,valkey-8.1,valkey-9.1
THREADED_RELEASES = $(OTHER_RELEASES)

# Warnings are errors in CI only: a newer clippy than that has new ones.
STRICT = $(if $(filter true,$(CI)),-- --deny warnings)

.PHONY: run demo test test-all test-releases test-long test-fresh package test-packages bench accuracy build build-daemon lint
.NOTPARALLEL:

run: setup-run build
	@scripts/run

# swlimitd behind an nginx, with something to try.
demo: setup-test build build-daemon
	@scripts/demo

# Everything, in minutes, on the installed server. The other releases are for tests that no other will do for: one uses
# the C library's allocator, which memcheck watches, one defragments, one is too old. The client's tests on real servers
# are run by pytest, on each release.
test: setup-test build build-daemon lint
	-@scripts/servers valkey-9.1 redis-7.4 redis-6.2
	-@scripts/proxies
	cargo test --quiet $$(scripts/crates) --lib --bins
	cargo test --quiet $$(scripts/crates) --doc
	$(PYTEST)

# The same on every other release, and the tests that take longer.
test-all: test test-releases test-long

# What depends on no server has been tested by then; of the clients, what the server tells them.
test-releases: setup-test build
	-scripts/servers
	SWLIMIT_SERVERS=$(OTHER_RELEASES) $(PYTEST) --ignore=tests/install --ignore=tests/tools --ignore=tests/daemon \
		--ignore=tests/node/test_package.py --ignore-glob='tests/python/test_[!d]*'

# Only Valkey 9 moves slots atomically.
test-long: setup-test build
	$(PYTEST) --long -m "long or threaded"
	SWLIMIT_SERVERS=$(THREADED_RELEASES) $(PYTEST) --long -m "threaded and not long"
	SWLIMIT_SERVERS=valkey-9.1 $(PYTEST) --long -m long -k atomically

# What a newcomer does, in fresh Debian systems; with TESTS=make_run that command only.
test-fresh: setup-fresh
	$(PYTEST) --fresh -m fresh $(if $(TESTS),-k $(TESTS))

# What is published, into dist/; and the proof that each of it works on a real server.
package: setup-test
	@scripts/package

test-packages: setup-fresh package
	$(PYTEST)/packages

bench:
	@scripts/benchmark

accuracy:
	@scripts/measure-accuracy

build: setup-build
	cargo build

# As `cargo test` does, so that little is built twice.
build-daemon: setup-build
	cargo build --bins $$(scripts/crates)

lint: setup-test
	cargo fmt --all --check
	cargo clippy --all-targets $$(scripts/crates) $(STRICT)
	.venv/bin/ruff check --quiet tests scripts src/python
	@PATH="$(CURDIR)/.venv/bin:$$PATH" npm --silent --prefix src/node run lint

setup-%:
	@scripts/setup $*
