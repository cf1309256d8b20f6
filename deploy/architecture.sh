# To be sourced: what a program's architecture is called elsewhere. `name_architecture amd64` sets
# $machine, as in GNU names and `uname -m`, and $target, as in Rust.
name_architecture() {
    case $1 in
        amd64) machine=x86_64 target=x86_64-unknown-linux-gnu ;;
        arm64) machine=aarch64 target=aarch64-unknown-linux-gnu ;;
        riscv64) machine=riscv64 target=riscv64gc-unknown-linux-gnu ;;
        *) printf 'unknown architecture %s: use amd64, arm64 or riscv64\n' "$1" >&2 && exit 2 ;;
    esac
}
