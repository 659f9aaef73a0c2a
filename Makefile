# Everything a developer runs. `make` alone lists it.
# Needs Go and, for the race detector, a C compiler; nothing else is set up first.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO ?= go
# Time for one test binary, race detector included.
TIMEOUT ?= 10m
# Time for each fuzz target.
FUZZTIME ?= 20s
# Arguments for demo and bench, as in: make bench ARGS=--help
ARGS ?=

# The linter is pinned here and built into bin/, so that go.mod stays free of
# it. The version is part of the file's name: a new one is built when it changes.
GOLANGCI_LINT_VERSION := v2.15.0
GOLANGCI_LINT := bin/golangci-lint-$(GOLANGCI_LINT_VERSION)

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: test
test: ## Run every test under the race detector
	$(GO) test -race -count=1 -timeout $(TIMEOUT) ./...

.PHONY: lint
lint: $(GOLANGCI_LINT) ## Run the pinned golangci-lint (builds it the first time)
	$(GOLANGCI_LINT) run ./...

$(GOLANGCI_LINT):
	GOBIN=$(CURDIR)/bin $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)
	mv bin/golangci-lint $@

.PHONY: fmt
fmt: ## Format the sources
	gofmt -s -w .

.PHONY: build
build: ## Build the program into bin/
	$(GO) build -trimpath -o bin/ ./cmd/...

.PHONY: demo
demo: ## Run the demo (ARGS=...)
	$(GO) run ./cmd/kakutei demo $(ARGS)

.PHONY: bench
bench: ## Measure this machine (ARGS=...)
	$(GO) run ./cmd/kakutei bench $(ARGS)

# go test takes one target at a time, so they are looked up in the sources.
.PHONY: fuzz
fuzz: ## Fuzz each target for FUZZTIME (default 20s)
	@targets=$$(grep -rhoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | wc -l); \
	if [ "$$targets" -eq 0 ]; then echo "no fuzz targets found" >&2; exit 1; fi; \
	grep -roE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sort | while IFS=: read -r file func; do \
		name=$${func#func }; \
		echo "== $$(dirname "$$file") $$name"; \
		$(GO) test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$$(dirname "$$file")" </dev/null; \
	done

.PHONY: cover
cover: ## Measure what the tests reach (coverage.out)
	$(GO) test -count=1 -timeout $(TIMEOUT) -coverpkg=./... -coverprofile=coverage.out ./...
	$(GO) tool cover -func=coverage.out | tail -n 1

.PHONY: clean
clean: ## Remove what the other targets made
	rm -rf bin dist coverage.out
