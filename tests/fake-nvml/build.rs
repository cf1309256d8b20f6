//! Keeps the library in memory after `dlclose`: what it has delivered and
//! counted is the machine's, and lasts while programs open and close it.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
