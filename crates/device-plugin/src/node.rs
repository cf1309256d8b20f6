//! What is known of the node.

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
};

use nvlink_source::Reading;

use crate::board::Board;

/// Who reads the node.
pub trait Node: fmt::Debug + Send + Sync + 'static {
    /// Returns the name of the node.
    fn name(&self) -> String;

    /// Shows the latest reading, unless that is too old.
    fn show(&self, look: &mut dyn FnMut(&Reading));

    /// Waits for the next reading.
    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// The board of the node as it is now.
#[derive(Debug)]
pub(crate) struct Boards {
    node: Arc<dyn Node>,
    board: Mutex<Option<Arc<Board>>>,
}

impl Boards {
    pub(crate) fn new(node: Arc<dyn Node>) -> Self {
        Self {
            node,
            board: Mutex::default(),
        }
    }

    /// Returns who reads the node.
    pub(crate) fn node(&self) -> &dyn Node {
        &*self.node
    }

    /// Returns the board; `None` while the graph is not known completely, or old.
    pub(crate) fn current(&self) -> Option<Arc<Board>> {
        let mut current = None;
        self.node.show(&mut |reading| {
            if reading.unread.is_empty() {
                let spec = &reading.topology.spec;
                let mut board = self.board.lock().unwrap_or_else(PoisonError::into_inner);
                if board.as_ref().is_none_or(|board| !board.is_of(spec)) {
                    *board = Board::new(spec).map(Arc::new);
                }
                current.clone_from(&board);
            }
        });
        current
    }
}
