# Paredão. `make help` lists the targets.

GO ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT ?= $(shell git rev-parse --short HEAD 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)

# The Azure SDK and Azurite are pinned as a pair: newer SDKs ask for an API
# version that this Azurite refuses.
AZURITE_VERSION := 3.37.0
GOLANGCI_VERSION := v2.15.0
TOOLS := .tools
COVER_MIN := 80

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

.PHONY: build
build: ## build all binaries into bin/
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

.PHONY: run
run: build ## start allinone with the demo poll
	@exec bin/allinone

.PHONY: tools
tools: ## install what the tests need: redis-server, Azurite
	@command -v redis-server >/dev/null || scripts/install redis-server
	@command -v npm >/dev/null || scripts/install npm
	@test "$$(node -p "require('./$(TOOLS)/node_modules/azurite/package.json').version" 2>/dev/null)" = "$(AZURITE_VERSION)" \
		|| npm install --no-audit --no-fund --loglevel=error --prefix $(TOOLS) azurite@$(AZURITE_VERSION)

.PHONY: chaos-tools
chaos-tools: tools # what the fault laboratory needs besides: nginx, libfaketime
	@command -v nginx >/dev/null || scripts/install nginx-light
	@ls /usr/lib/*/faketime/libfaketimeMT.so.1 >/dev/null 2>&1 || scripts/install libfaketime

.PHONY: test
test: chaos-tools ## run all tests with the race detector, on real Redis and real Azurite
	$(GO) test -race -timeout 30m -coverprofile=coverage.out ./...
	@grep -E '^mode:|^paredao/internal/' coverage.out | grep -vE '^paredao/internal/(testkit|ledger|lab)/' > coverage.internal.out
	@$(GO) tool cover -func=coverage.internal.out | awk 'END { sub("%", "", $$3); \
		printf "statement coverage of internal/: %s %% (at least $(COVER_MIN))\n", $$3; exit $$3 < $(COVER_MIN) }'

.PHONY: test-long
test-long: tools build ## the fault tests at full length: 60 s a fault, 1,000 idle seconds
	$(GO) test -race -timeout 90m -count=1 ./internal/e2e -e2e.seconds=60 -e2e.idle=1000

.PHONY: lint
lint: ## gofmt, go vet, golangci-lint
	@test -z "$$(gofmt -l $$(git ls-files '*.go') | tee /dev/stderr)" || { echo 'run: gofmt -w .' >&2; exit 1; }
	$(GO) vet ./...
	@test -x $(TOOLS)/bin/golangci-lint || GOBIN=$(CURDIR)/$(TOOLS)/bin $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	$(TOOLS)/bin/golangci-lint run ./...

BENCH ?=
.PHONY: bench
bench: build bin/bench bench-tools ## the api against its peers, with wrk: BENCH='--only accept --rounds 3'
	@exec bin/bench $(BENCH)

.PHONY: bin/bench
bin/bench:
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/ ./loadtest/bench ./loadtest/rate ./loadtest/peers/...

.PHONY: bench-tools
bench-tools: tools
	@command -v wrk >/dev/null || scripts/install wrk

.PHONY: bench-go
bench-go: ## Go benchmarks of the hot steps
	$(GO) test -run '^$$' -bench . -benchmem ./internal/...

.PHONY: allocs
allocs: ## compare the allocations of the hot steps with the committed ones
	@scripts/allocs

.PHONY: replay
replay: build tools ## post the 1,265,550 votes of a published run, and prove the count
	$(GO) run ./loadtest/replay --bin bin

SCENARIO ?= mix
SECONDS ?= 180
CHAOS = exec bin/chaos --scenario $(SCENARIO) $(if $(SEED),--seed $(SEED)) $(if $(FSYNC),--appendfsync $(FSYNC)) $(if $(ARCHIVE),--archive $(ARCHIVE)) $(if $(CONNECTIONS),--connections $(CONNECTIONS))

.PHONY: chaos
chaos: build bin/chaos chaos-tools ## the fault laboratory: SCENARIO=mix SECONDS=180 SEED= FSYNC= ARCHIVE= CONNECTIONS=
	@$(CHAOS) --seconds $(SECONDS)

.PHONY: chaos-long
chaos-long: SECONDS = 1800
chaos-long: CONNECTIONS = 2048
chaos-long: chaos ## the same for half an hour, with 2,048 connections

.PHONY: chaos-list
chaos-list: bin/chaos ## list the scenarios of the fault laboratory
	@bin/chaos --list

# Not by go run, which hides exit codes and passes no signal on.
.PHONY: bin/chaos
bin/chaos:
	$(GO) build -trimpath -o bin/chaos ./loadtest/chaos

.PHONY: load
load: build ## load the whole stack with wrk and prove that nothing was lost
	loadtest/run.sh

.PHONY: clean
clean: ## remove what was built
	rm -rf bin chaos-report bench-report coverage.out coverage.internal.out
