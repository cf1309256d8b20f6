//! What the kubelet of a node says of its devices, and what their names mean.
//!
//! The exporter reads from it who holds which GPUs. The device plugin shares the names of devices and
//! the sockets, and need not know the exporter.
//! What only a server of device plugins needs is in `crates/device-plugin`.
//! The modules; each uses only those above it:
//!
//! - [`socket`] connects to gRPC servers on Unix sockets.
//! - [`podresources`] has the messages of the kubelet's API of pods' resources.
//! - [`client`] calls that API.
//! - [`slices`] are the devices of DRA drivers, from ResourceSlices.
//! - [`devices`] maps the names of devices to GPUs.

pub mod client;
pub mod devices;
pub mod podresources;
pub mod slices;
pub mod socket;
