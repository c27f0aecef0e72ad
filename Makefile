# pytest in three times as many processes as there are cores, because most tests wait, and in 8 at most; each process
# has servers of its own. CHOOSE=--last-failed runs again what failed.
PYTEST = .venv/bin/python -m pytest
SUPPORT = PYTHONPATH=tests .venv/bin/python -m
# What one process has compiled, the next need not, whatever the environment says.
export PYTHONDONTWRITEBYTECODE =
# The Go that .venv holds, and no other that it would fetch.
export GOTOOLCHAIN = local
WORKERS ?= $(shell n=$$(nproc); echo $$((n < 3 ? 3 * n : 8)))
PARALLEL = $(PYTEST) --numprocesses $(WORKERS) --dist worksteal --durations 20 $(CHOOSE)

# What `scripts/servers` fetches, but what is too old.
OTHER_RELEASES = redis-7.4,redis-8.0,redis-8.2,redis-8.6,valkey-8.0,valkey-8.1,valkey-9.1
THREADED_RELEASES = $(OTHER_RELEASES)

# Warnings are errors in CI only: a newer clippy than that has new ones.
STRICT = $(if $(filter true,$(CI)),-- --deny warnings)

.PHONY: help run demo test test-module test-client test-daemon test-python test-node test-go test-all test-releases \
	test-long test-fresh package test-packages bench accuracy build build-all ready docs lint
.NOTPARALLEL:

help: ## This list
	@echo "make TARGET, where TARGET is one of these; each does its own set-up:"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | while IFS='|' read -r target text; do \
		[ "$$target" = help ] || printf '  %-14s %s\n' "$$target" "$$text"; done

run: setup-run build ## A server with the module, ready for redis-cli
	@scripts/run

# swlimitd behind an nginx, with something to try. Only the programs are built.
demo: setup-run ## swlimitd behind an nginx, with something to try
	@case "$(CRATES)" in *"exclude swlimitd"*) \
		echo "demo: install a newer Rust (rustup update stable), or swlimitd's package, which needs none" >&2; exit 1;; esac
	@echo "Building the module and swlimitd; the first time that takes minutes"
	cargo build $(CRATES)
	@scripts/demo

# Every part's tests, in minutes, on the installed server. The other releases are for tests that no other will do for: one uses
# the C library's allocator, which memcheck watches, one defragments, one is too old. The client's tests on real servers
# are run by pytest, on each release.
test: ready ## Every part's tests, on the installed server, in minutes
	$(PARALLEL) tests

# Those of one part, for who changes no other.
MODULE = tests/module tests/script tests/conformance/vectors
test-module: ready ## The module's tests only
	$(PARALLEL) tests/crates $(MODULE)

test-client: build-all ## The Rust client's tests only
	$(PARALLEL) tests/crates tests/clients/rust

test-daemon: ready ## swlimitd's tests only
	$(PARALLEL) tests/crates tests/daemon

test-python: build-all ## The Python client's tests only
	$(PARALLEL) tests/clients/python

test-node: build-all ## The Node.js client's tests only
	$(PARALLEL) tests/clients/node

test-go: setup-test build ## The Go client's only
	@$(SUPPORT) support.golang
	$(PARALLEL) tests/clients/go

# The same on every other release, and the tests that take longer.
test-all: test test-releases test-long ## All of that on every release of the servers, and longer tests

# What depends on no server has been tested by then; of the clients, what the server tells them.
test-releases: build-all ## The tests that depend on the server, on the other releases
	-scripts/servers
	SWLIMIT_SERVERS=$(OTHER_RELEASES) $(PARALLEL) $(MODULE) tests/clients/rust tests/docs \
		tests/clients/node/test_node.py tests/clients/python/test_d*

# Only Valkey 9 moves slots atomically.
test-long: setup-long build-all ## The tests that take minutes
	@case "$(CRATES)" in *"exclude swlimitd"*) ;; *) cargo check --package swlimitd --no-default-features;; esac
	$(PARALLEL) tests --long -m "long or threaded"
	SWLIMIT_SERVERS=$(THREADED_RELEASES) $(PARALLEL) tests --long -m "threaded and not long"
	SWLIMIT_SERVERS=valkey-9.1 $(PARALLEL) tests --long -m long -k atomically

# What a newcomer does, in fresh Debian systems; with TESTS=make_run that command only.
test-fresh: setup-fresh ## The set-up, in new Debian systems, as root
	$(PYTEST) tests --fresh -m fresh $(if $(TESTS),-k $(TESTS))

# What is published, into dist/; and the proof that each of it works on a real server. With TARGETS=… of these targets of
# Rust only.
package: setup-test ## What is published, into dist/; of TARGETS=... only
	@scripts/package $(TARGETS)

test-packages: setup-fresh package ## The same, and the proof that each package works
	SWLIMIT_TARGETS="$(TARGETS)" $(PYTEST) $(CHOOSE) tests/distribution/packages
	@[ -n "$(TARGETS)" ] || .ci/packaging-hash > .ci/packaged

bench: ## CPU, latency and memory beside others
	@scripts/benchmark

accuracy: ## Decisions beside an exact log
	@scripts/measure-accuracy

# All clients beside a server that fails in ways that a seed draws. `make soak HOURS=2 SEED=7` does the same again.
soak: ready
	PYTHONPATH=scripts:tests .venv/bin/python -m longrun --hours $(or $(HOURS),2) $(if $(SEED),--seed $(SEED))

# What reads bytes that are not trusted, by coverage: `make fuzz MINUTES=60 TARGETS=effects`.
fuzz:
	@scripts/fuzz --minutes $(or $(MINUTES),10) $(TARGETS)

# Known holes in what others wrote. What cannot be looked up from here is said.
audit: setup-test
	@scripts/audit

# The documentation as a site with a search, in target/site.
docs: ## The documentation as a site with a search, in target/site
	@scripts/make-docs

build: setup-build ## The module alone
	cargo build

# All that tests need, at once: for fewer crates cargo would choose other features of what they depend on, and build that
# again.
CRATES = $$(scripts/crates)
build-all: setup-test ## All programs and their tests
	@echo "Building everything; where nothing is built yet, that takes minutes"
	cargo build $(CRATES) --all-targets
	@$(SUPPORT) support.node

# What `make test` cannot do without; what cannot be had here is said, and its tests are skipped. Fetching is mostly
# waiting, and so goes on beside what is compiled: without scripts/servers, whose setup would wait for cargo. So is what
# the Go tests are made of compiled: cargo now and then leaves a core to others.
ready: setup-test ## Everything that tests need: built and fetched
	@trap wait EXIT; $(SUPPORT) support.golang & \
		{ $(SUPPORT) support.releases valkey-9.1 redis-7.4 redis-6.2; $(SUPPORT) support.proxies; \
		$(SUPPORT) support.kubernetes; } & \
	$(MAKE) --no-print-directory build-all

# Those of all modules of src/clients/go/go.work; tests/clients/go/go.mod pins staticcheck.
GO_PACKAGES = $$(go list -m -f '{{.Dir}}/...')
lint: setup-lint ## Formatting and lints, of every language
	cargo fmt --all --check
	cargo fmt --check --manifest-path tests/fuzz/Cargo.toml
	cargo clippy --all-targets $(CRATES) $(STRICT)
	RUSTDOCFLAGS="$(if $(filter true,$(CI)),--deny warnings)" cargo doc --quiet --no-deps --package swlimit-client
	.venv/bin/ruff check --quiet tests scripts src/clients/python
	.venv/bin/zizmor --offline --quiet --pedantic .github/workflows
	@PATH="$(CURDIR)/.venv/bin:$$PATH" npm --silent --prefix src/clients/node run lint
	@.venv/bin/go -C tests/clients/go build -o "$(CURDIR)/target/staticcheck" honnef.co/go/tools/cmd/staticcheck
	@cd src/clients/go && PATH="$(CURDIR)/.venv/bin:$$PATH" && go vet $(GO_PACKAGES) && ../../../target/staticcheck $(GO_PACKAGES)
	$(PYTEST) tests/docs/test_prose.py

setup-%:
	@scripts/setup $*
