//! Keeps the library in memory after `dlclose`: its delivered events and its counters
//! belong to the machine, and must last while programs open and close the library.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
