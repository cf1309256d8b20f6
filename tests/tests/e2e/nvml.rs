//! The source `nvml` with a fake driver, through the real exporter.

mod boards;
mod counters;
mod fabric;
mod faults;
mod hang;
mod partial;
mod release;
mod scrape;
mod verdict;
mod wiring;
