//! What is known of the node.

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
};

use nvlink_source::Reading;

use crate::chooser::Chooser;

/// Who reads the node.
pub trait Node: fmt::Debug + Send + Sync + 'static {
    /// Returns the name of the node.
    fn name(&self) -> String;

    /// Shows the latest reading, unless that is too old.
    fn show(&self, look: &mut dyn FnMut(&Reading));

    /// Waits for the next reading.
    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// The node as it is now, and what chooses among its GPUs.
#[derive(Debug)]
pub(crate) struct NodeView {
    node: Arc<dyn Node>,
    chooser: Mutex<Option<Arc<Chooser>>>,
}

impl NodeView {
    pub(crate) fn new(node: Arc<dyn Node>) -> Self {
        Self {
            node,
            chooser: Mutex::default(),
        }
    }

    /// Returns who reads the node.
    pub(crate) fn node(&self) -> &dyn Node {
        &*self.node
    }

    /// Returns what chooses; `None` while the graph is not known completely, or old.
    pub(crate) fn chooser(&self) -> Option<Arc<Chooser>> {
        let mut current = None;
        self.node.show(&mut |reading| {
            if reading.unread.is_empty() {
                let spec = &reading.topology.spec;
                let mut chooser = self.chooser.lock().unwrap_or_else(PoisonError::into_inner);
                if chooser.as_ref().is_none_or(|chooser| !chooser.is_of(spec)) {
                    *chooser = Chooser::new(spec).map(Arc::new);
                }
                current.clone_from(&chooser);
            }
        });
        current
    }
}
