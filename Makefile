# The targets for developers and CI. `make help` lists them.

SHELL := /bin/bash
.DEFAULT_GOAL := help
# All tests but the end-to-end tests: no root, no cluster, no downloads. The selection is of the whole
# workspace, because cargo compiles dependencies again for another one.
UNIT := --workspace --locked --lib --bins --test '[!e]*' --test 'e[!2]*'

.PHONY: help check generate demo demo-observe test bench lint dist images manifests docs packages packages-demo control-plane helm toolchain

TARGET := $(or $(CARGO_TARGET_DIR),$(CARGO_BUILD_TARGET_DIR),target)
SCRIPTS := .ci/run tests/generate tests/runner tests/step tests/controlplane/build tests/controlplane/packages tests/helm/build tests/src/lab/sandbox.sh \
	deploy/architecture.sh deploy/dist deploy/helm deploy/images/build deploy/manifests deploy/programs \
	deploy/licenses/place deploy/licenses/tool deploy/licenses/write \
	dashboards/build dashboards/tools dashboards/check/run docs/build

# Nodes need root. sudo would drop what tells where the programs are.
AS_ROOT = $(if $(filter-out 0,$(shell id -u)),$(shell command -v sudo)) env PATH="$$PATH" HOME="$$HOME" \
	XDG_CACHE_HOME="$$XDG_CACHE_HOME" KUBEBUILDER_ASSETS="$$KUBEBUILDER_ASSETS" KUBERNETES="$$KUBERNETES" NO_COLOR="$$NO_COLOR"

help: ## list the targets
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

check: toolchain ## check formatting and clippy, and run the tests that need no root, no cluster and no downloads
	@tests/step "formatting" -- cargo fmt --all --check
	@tests/step "clippy" -- cargo clippy --workspace --all-targets --locked -- -D warnings
	@tests/step "compiling the tests" -- cargo test $(UNIT) --no-run
	@CORPUS=$(or $(CORPUS),0..20000) CASES_PERCENT=$(or $(CASES_PERCENT),20) tests/step "tests" -- cargo test $(UNIT)

generate: ## write all generated files: pages of docs/, golden files, dashboards, and what the chart has from the programs
	@tests/generate

demo: packages-demo control-plane ## show everything on a real control plane and nodes with simulated GPUs; KEEP=1 leaves it running
	cargo build --locked -p nvlink-exporter -p nvlink-webhook -p kubectl-nvlink -p nvlink-fake-nvml -p nvlink-tests
	@$(AS_ROOT) KEEP="$(KEEP)" "$(TARGET)/debug/demo"

demo-observe: packages-demo control-plane ## break a link and two jobs, and show the alerts from Prometheus to the receiver; KEEP=1 leaves it running
	cargo build --locked -p nvlink-exporter -p nvlink-webhook -p kubectl-nvlink -p nvlink-fake-nvml -p nvlink-tests
	@$(AS_ROOT) KEEP="$(KEEP)" "$(TARGET)/debug/demo" observe

test: ## run all tests, including the end-to-end tests on a real control plane and Prometheus; prints the slowest
	@tests/step "Debian packages (tests/controlplane/packages)" -- tests/controlplane/packages
	@tests/step "compiling the tests" cargo="https://rustup.rs" -- cargo test --workspace --locked --no-run
	@tests/step "Kubernetes and containerd" go="https://go.dev/dl" -- tests/controlplane/build
	@tests/step "Prow, the training operator and Karpenter" go="https://go.dev/dl" -- tests/controlplane/build prow-controller-manager training-operator karpenter
	@tests/step "helm" -- tests/helm/build
	@tests/step "Grafana's SDK and schema" python3="the package python3-venv" npm="the package npm" -- dashboards/tools
	@tests/step "cargo-cyclonedx" -- deploy/licenses/tool cargo-cyclonedx cyclonedx --help >/dev/null
	@for architecture in $(filter-out amd64,$(or $(ARCHITECTURES),riscv64)); do \
		tests/step "programs of $$architecture" -- deploy/programs $$architecture dev -p nvlink-fake-nvml >/dev/null || exit 1; done
	@tests/step "tests; their times are in $(TARGET)/test-times.txt" -- \
		bash -o pipefail -c 'cargo test --workspace --locked 2>&1 | tests/slowest "$(TARGET)/test-times.txt"'

bench: packages ## run the benchmarks; the last five use a control plane: 10,000 nodes, the cost of pods, the page in Chromium, the queue, and rules and dashboards (7 GB of disk, 10 GB of memory)
	cargo build --release --locked -p nvlink-exporter
	@cp "$(TARGET)/release/nvlink-exporter" "$(TARGET)/release/nvlink-exporter-shipped" # cargo bench may overwrite the original
	@tests/controlplane/build
	@failed=0; export NVLINK_EXPORTER="$(abspath $(TARGET))/release/nvlink-exporter-shipped"; \
	cargo bench --locked --no-fail-fast -p nvlink-topology -p nvlink-planner -p nvlink-webhook -p nvlink-exporter \
		--bench search --bench round --bench admission --bench serving --bench extender --bench page --bench render --bench serve || failed=$$?; \
	cargo bench --locked --no-fail-fast -p nvlink-tests --bench devices --bench scale --bench cost --bench page --bench queue --bench rules || failed=$$?; \
	exit $$failed # a benchmark that misses its goal does not hide the others

lint: toolchain ## check formatting, clippy and rustdoc with warnings denied, licenses, and scripts
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
	deploy/licenses/tool cargo-deny --config deploy/licenses/deny.toml --workspace --locked check bans licenses sources
	@for script in $(SCRIPTS); do bash -n "$$script" || exit 1; done

dist: packages ## build what a release consists of, into target/dist; ARCHITECTURES="amd64 arm64 riscv64"
	@deploy/dist

images: dist ## build the images of nvlink-exporter and nvlink-webhook as OCI archives, into target/images
	@deploy/images/build

manifests: helm ## render the chart as plain manifests, into target/manifests; REGISTRY=registry.example.com/gpu VALUES=my-values.yaml
	@deploy/manifests "$(TARGET)/manifests" $(if $(VALUES),--values "$(VALUES)") $(if $(REGISTRY),--set "global.registry=$(REGISTRY)")

docs: ## build the documentation as a searchable site, into target/docs, and check its links
	@tests/step "documentation" cargo="https://rustup.rs" python3="the package python3" -- docs/build "$(TARGET)/docs"

packages: ## install missing Debian packages: etcd, Prometheus, Chromium, runc, buildah, QEMU, cross compilers
	@tests/controlplane/packages

packages-demo:
	@tests/controlplane/packages demo

control-plane: ## build the Kubernetes programs of the tests and containerd once, into the user's cache
	@tests/controlplane/build

helm: ## build helm once, into the user's cache
	@tests/helm/build

toolchain:
	@cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 || \
		tests/step "installing rustfmt and clippy" rustup="https://rustup.rs" -- rustup component add rustfmt clippy
