# Every target works on a machine with Go 1.26; those that need Debian packages
# install them when run as root. "make help" lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Settings, for the command line or the environment.
CLUSTER ?= own
IMAGE_REGISTRY ?=
TAG ?= dev
FUZZTIME ?= 10s
GOTESTFLAGS ?=
BENCHFLAGS ?=
export CLUSTER IMAGE_REGISTRY TAG FUZZTIME

# Modules beside the product's own: tools, so that the product depends on none of their dependencies.
TOOL_MODULES := hack/image hack/chart hack/cluster/images hack/cluster/hyperkube engine/compute/cpu/asm

CLUSTER_DIR := $(or $(OUTRIDER_CLUSTER_DIR),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/outrider/cluster)

##@ Build

.PHONY: build
build: ## Build every command into bin, static. VERSION= names the version
	@hack/build.sh

.PHONY: images
images: build ## Build the operator's and the engine's images into bin/images, without Docker. ARCHS="amd64 arm64" builds for both
	@hack/images.sh

.PHONY: images-cuda
images-cuda: ## The same of the engine for NVIDIA GPUs, with their run-time libraries (Debian and PyPI; 1.5 GB). CUDA=12 for older drivers
	@hack/images.sh outrider-engine-cuda

.PHONY: release
release: ## Build what a release has into bin/release: binaries, images, chart, install manifest, SBOMs, checksums. CHECK=1 builds twice and compares
	@hack/release.sh
	@[ -z "$(CHECK)" ] || hack/release.sh --check

.PHONY: generate
generate: ## Make again every generated file: deep copies, apply configurations, CRD, roles, API reference, assembly
	@hack/generate.sh

.PHONY: manifests
manifests: generate ## The same: CRD and roles come from the same run

.PHONY: clean
clean: ## Remove what was built here, and the cluster with what was built for it
	@hack/cluster/down.sh
	@rm -rf bin "$(CLUSTER_DIR)"

##@ Check

.PHONY: fmt
fmt: ## Format the Go code
	@gofmt -w $$(git ls-files --cached --others --exclude-standard '*.go')

.PHONY: bench-operator
bench-operator: build ## Measure the operator, and LeaderWorkerSet's controller, with 1,000 objects on a real API server. BENCHFLAGS= for flags
	@hack/cluster/install.sh assets
	@hack/lws.sh build
	@KUBEBUILDER_ASSETS="$(CLUSTER_DIR)/bin" go run ./hack/benchoperator -sets bin/lws-manager -sets-module bin/lws $(BENCHFLAGS)

.PHONY: vet
vet: ## go vet, with every build tag
	go vet -tags apiserver,e2e,cuda ./...
	@for m in $(TOOL_MODULES); do (cd $$m && go vet ./...); done

.PHONY: lint
lint: ## golangci-lint with kube-api-linter, see .golangci.yml
	@hack/lint.sh

.PHONY: vuln
vuln: ## govulncheck: known vulnerabilities in what the binaries call. It asks vuln.go.dev; VULNDB=file:///FOLDER takes a copy
	@hack/vuln.sh

.PHONY: verify-generated
verify-generated: ## Fail when a generated file or go.mod is not what its generator makes
	@hack/verify-generated.sh

##@ Test

.PHONY: test
test: test-unit test-cuda-emulated test-apiserver test-e2e test-e2e-faults test-e2e-groups ## All tests: unit, CUDA without a GPU, API server, end to end, faults, several nodes

.PHONY: test-unit
test-unit: ## Tests that run anywhere, with the race detector where it is affordable
	@hack/test.sh unit $(GOTESTFLAGS)

.PHONY: test-cuda-emulated
test-cuda-emulated: ## The CUDA device's tests, and its own kernels, on processors, over an emulation of CUDA
	@hack/test.sh cuda-emulated $(GOTESTFLAGS)

.PHONY: test-apiserver
test-apiserver: ## Tests against a real kube-apiserver and etcd (build tag apiserver)
	@hack/test.sh apiserver $(GOTESTFLAGS)

.PHONY: test-e2e
test-e2e: ## Tests on a real one-node cluster (build tag e2e); root only, unless CLUSTER=current
	@hack/test.sh e2e $(GOTESTFLAGS)

.PHONY: test-e2e-faults
test-e2e-faults: ## The same, with faults of the whole cluster: no API server, no operator, a drained node, too much load
	@hack/test.sh e2e-faults $(GOTESTFLAGS)

.PHONY: test-e2e-groups
test-e2e-groups: ## The same, with LeaderWorkerSet's controller: replicas of several nodes
	@hack/test.sh e2e-groups $(GOTESTFLAGS)

.PHONY: bench-engine
bench-engine: ## Measure plain decoding, fixed depths and auto by load; BENCHFLAGS selects, see hack/bench
	@go run ./hack/bench -model gocode -json bench-gocode.json $(BENCHFLAGS)
	@go run ./hack/bench -model synthetic -accept 0.05,0.4,0.7,0.9 -json bench-synthetic.json $(BENCHFLAGS)

.PHONY: test-browser
test-browser: ## The engine's page in headless Chromium (build tag browser)
	go test -tags browser -run Chromium ./engine/server

.PHONY: test-soak
test-soak: ## 32 clients on one engine for SOAK (5m), many of whom give up (build tag soak)
	go test -tags soak -run TestSoak -v -timeout 2h ./engine/server

.PHONY: test-clients
test-clients: ## OpenAI's client for JavaScript, unmodified, on an engine with the bundled model
	@hack/clients/run.sh

.PHONY: test-cluster
test-cluster: cluster-up ## Try what the operator needs from the development cluster: 36 checks
	@hack/cluster/tests/check.sh

.PHONY: test-chart
test-chart: ## The Helm chart on the development cluster: install, upgrade, rollback, uninstall; DRAW=DIR also draws the dashboards under load
	@hack/chart-test.sh $(if $(DRAW),--draw $(DRAW))

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME each
	@hack/fuzz.sh

.PHONY: bench
bench: ## Run the Go benchmarks
	go test -run '^$$' -bench . -benchmem $(GOTESTFLAGS) ./...

##@ Run

.PHONY: quickstart
quickstart: ## From nothing to a streamed completion on Kubernetes. CLUSTER=current uses the kubeconfig in force
	@hack/quickstart.sh

.PHONY: quickstart-down
quickstart-down: ## Remove what quickstart made
	@hack/quickstart.sh down

.PHONY: cluster-up
cluster-up: ## Start the development cluster, unless it runs; hack/cluster/kin runs commands in it
	@hack/cluster/up.sh

.PHONY: cluster-down
cluster-down: ## Stop the development cluster and remove its state
	@hack/cluster/down.sh

.PHONY: deploy
deploy: ## Bring the images, the CRD and the operator to the cluster
	@hack/deploy.sh

##@ Help

.PHONY: help
help: ## Show this
	@awk 'BEGIN {FS = ":.*## "} \
	  /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z0-9-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@printf '\nSettings: CLUSTER=own|current  IMAGE_REGISTRY=ghcr.io/outrider-dev  TAG=dev  FUZZTIME=10s  GOTESTFLAGS=\n'
