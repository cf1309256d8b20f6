//! The connections of a server, within [`Bounds`]: an [`Acceptor`] accepts them,
//! [`Places`] counts them and the memory that their responses hold, and a client
//! that does not read its responses, or is silent, loses its connection.
//! [`CutOffs`] counts clients that were cut off.
//!
//! What the libraries offer is used where it is enough: hyper limits the head of a request, the
//! buffers, the streams and the pings of HTTP/2 (`web::listen`). The rest is here because
//!
//! * hyper, axum and axum-server do not limit connections, and a semaphore before `accept`
//!   stops when it is used up: silent connections would keep every scrape out. [`Places`]
//!   gives the place of a silent one to the new one, and counts by peer;
//! * tower's limits on concurrency and load end with the handler, when the response begins. Its
//!   memory is held until the client has read it ([`Seat::hold`]);
//! * no timeout of hyper, tower-http or tokio-io-timeout ends a client that does not read
//!   (`paced` says why). Nor does HTTP/1.1 alone, which only saves the parts of `pace`; and the
//!   API server calls admission over HTTP/2.

mod accept;
mod cut_offs;
mod pace;
mod paced;
mod places;

use std::time::Duration;

pub use self::{
    accept::Acceptor,
    cut_offs::{CutOff, CutOffs},
    places::{Held, Peer, Place, Places, Seat},
};

/// How much of a server its clients may use.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Connections open at a time.
    pub connections: usize,
    /// Connections open at a time from one peer.
    pub connections_of_peer: usize,
    /// Memory that all pending responses hold together, in bytes. A larger
    /// response is admitted only while no other holds memory.
    pub bytes: usize,
    /// The same for the responses of one peer.
    pub bytes_of_peer: usize,
    /// After this time a connection with a pending response may lose its place to a new one.
    pub patience: Duration,
    /// Time for a client to read a response, including the time to make it.
    pub taken: Duration,
    /// The longest that a client may be silent.
    pub silent: Duration,
}
