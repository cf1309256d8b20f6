//! A `libnvidia-ml.so` for tests: the functions that the exporter calls, on boards described by a file.
//!
//! It is loaded by path, as the driver's own library would be, and answers with
//! the C types, units, enums and error codes of the real one. The environment
//! variable `FAKE_NVML_CONFIG` names the file, a `config::Config` in JSON. It
//! is read again whenever another file is renamed over it, so that hardware and
//! faults change while a program runs.
//!
//! A symbol cannot be hidden from a library that is loaded; the harness makes
//! copies of the file in which the names of some symbols are spoilt.
#![allow(
    unsafe_code,
    reason = "a C library: pointers come in, values go out; see `c`"
)]

mod board;
mod c;
mod call;
mod config;
mod device;
mod events;
mod fabric;
mod fields;
mod generation;
mod gpm;
mod link;
mod peers;
mod system;
mod traffic;
