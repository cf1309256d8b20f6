# The targets for developers and CI. `make help` lists them.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test bench lint packages control-plane toolchain

TARGET := $(or $(CARGO_TARGET_DIR),$(CARGO_BUILD_TARGET_DIR),target)
SCRIPTS := .ci/run tests/controlplane/build tests/controlplane/packages

help: ## list the targets
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 24

demo: packages ## show everything on simulated nodes and a real control plane; KEEP=1 leaves it running
	cargo build --locked -p nvlink-exporter -p nvlink-webhook -p nvlink-fake-nvml -p nvlink-tests
	@KEEP="$(KEEP)" "$(TARGET)/debug/demo"

test: packages ## run all tests, including the end-to-end tests on a real control plane and Prometheus
	cargo test --workspace --locked --no-run
	@tests/controlplane/build
	cargo test --workspace --locked

bench: packages ## run the benchmarks; the last two use a control plane: 10,000 nodes, and the cost of pods
	cargo build --release --locked -p nvlink-exporter
	@cp "$(TARGET)/release/nvlink-exporter" "$(TARGET)/release/nvlink-exporter-shipped" # cargo bench may overwrite the original
	NVLINK_EXPORTER="$(abspath $(TARGET))/release/nvlink-exporter-shipped" cargo bench --locked -p nvlink-topology -p nvlink-webhook -p nvlink-exporter \
		--bench search --bench admission --bench serving --bench render --bench serve
	@tests/controlplane/build
	cargo bench --locked -p nvlink-tests --bench scale --bench cost

lint: toolchain ## check formatting, clippy and rustdoc with warnings denied, and scripts
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --locked
	cargo fmt --manifest-path webhook/fuzz/Cargo.toml --check
	cargo clippy --manifest-path webhook/fuzz/Cargo.toml --target-dir "$(TARGET)" --locked -- -D warnings
	@for script in $(SCRIPTS); do bash -n "$$script" || exit 1; done

packages: ## install missing Debian packages: etcd, Prometheus, Alertmanager, Chromium
	@tests/controlplane/packages

control-plane: ## build the Kubernetes control plane once, into the user's cache
	@tests/controlplane/build

toolchain:
	@cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1 || \
		{ echo "installing rustfmt and clippy with rustup"; rustup component add rustfmt clippy; }
