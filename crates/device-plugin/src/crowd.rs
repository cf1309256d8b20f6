//! The connections to one socket. Those without a call make room for new ones: a peer that opens many
//! and says nothing must not keep the kubelet, or a device plugin, out.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::{
    Router,
    body::Body,
    extract::Request,
    middleware::{Next, from_fn},
    response::Response,
};
use http_body_util::BodyExt;
use tokio::sync::Notify;

/// The connections, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Crowd(Vec<Arc<Seat>>);

/// What is known of a connection.
#[derive(Debug, Default)]
pub(super) struct Seat {
    /// The number of calls that have not ended, answers included that are streams.
    calls: AtomicUsize,
    leaves: Notify,
}

impl Crowd {
    /// Adds a connection. If there are `most` already, the oldest one without a call leaves; `None` if all
    /// have calls.
    pub(super) fn enter(&mut self, most: usize) -> Option<Arc<Seat>> {
        // The task of a connection that has ended holds its seat no more.
        self.0.retain(|seat| Arc::strong_count(seat) > 1);
        if self.0.len() >= most {
            let idle = |seat: &Arc<Seat>| seat.calls.load(Ordering::Relaxed) == 0;
            let at = self.0.iter().position(idle)?;
            self.0.remove(at).leaves.notify_one();
        }
        let seat = Arc::new(Seat::default());
        self.0.push(Arc::clone(&seat));
        Some(seat)
    }
}

impl Seat {
    /// Waits until the connection must make room.
    pub(super) async fn must_leave(&self) {
        self.leaves.notified().await;
    }

    /// Returns a router that counts the calls of the connection.
    pub(super) fn counting(self: &Arc<Self>, router: Router) -> Router {
        let seat = Arc::clone(self);
        router.layer(from_fn(move |request: Request, next: Next| {
            let call = Call::begin(&seat);
            async move {
                let answer: Response = next.run(request).await;
                // The call ends with the body.
                answer.map(|body| {
                    Body::new(body.map_frame(move |frame| {
                        let _not_ended = &call;
                        frame
                    }))
                })
            }
        }))
    }
}

/// A call that has not ended.
struct Call(Arc<Seat>);

impl Call {
    fn begin(seat: &Arc<Seat>) -> Self {
        seat.calls.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(seat))
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_one_without_a_call_makes_room() {
        let mut crowd = Crowd::default();
        let enter = |crowd: &mut Crowd| crowd.enter(2);
        let (first, second) = (enter(&mut crowd).unwrap(), enter(&mut crowd).unwrap());
        let busy = Call::begin(&first);
        let third = enter(&mut crowd).unwrap();
        assert!(crowd.0.iter().all(|seat| !Arc::ptr_eq(seat, &second)));
        let other = Call::begin(&third);
        assert!(enter(&mut crowd).is_none(), "all have calls");
        drop((busy, first));
        assert!(enter(&mut crowd).is_some(), "one has ended");
        drop(other);
    }
}
