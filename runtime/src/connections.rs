//! The connections of a server, within [`Bounds`]: an [`Acceptor`] takes them,
//! [`Places`] counts them and what their answers hold in memory, and a client
//! that takes no answers, or that is silent, loses its connection. What was cut
//! off is counted in [`CutOffs`].

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

/// How much clients may use of a server.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Connections that are open at a time.
    pub connections: usize,
    /// Those of one peer.
    pub connections_of_peer: usize,
    /// What all answers that are under way hold in memory, bytes; one that is
    /// larger has it alone.
    pub bytes: usize,
    /// Those of one peer.
    pub bytes_of_peer: usize,
    /// An answer that is under way for so long may lose its place to a new connection.
    pub patience: Duration,
    /// What a client gets to take an answer, the time to make it included.
    pub taken: Duration,
    /// A client is silent for so long at most.
    pub silent: Duration,
}
