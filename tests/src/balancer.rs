//! Stands in for a Service with several replicas: accepts connections on one address and forwards
//! them to the ready replicas in turn.

use std::{
    io,
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result};

use crate::http;

/// Time between two readiness checks of the replicas.
const LOOK: Duration = Duration::from_millis(100);

/// A replica: where it serves, and where it reports whether it is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    pub address: SocketAddr,
    /// `http://…/readyz`.
    pub readyz: String,
}

/// The address that stands for all replicas.
#[derive(Debug)]
pub struct Balancer {
    pub address: SocketAddr,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    backends: Mutex<Vec<Backend>>,
    ready: Mutex<Vec<SocketAddr>>,
    turn: AtomicUsize,
}

impl Balancer {
    /// Listens on a free port of loopback, without replicas at first.
    ///
    /// # Errors
    /// When it can get no port or no thread.
    pub fn start() -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("cannot listen")?;
        let address = listener.local_addr()?;
        let state = Arc::new(State::default());
        let looking = Arc::downgrade(&state);
        thread::Builder::new().spawn(move || look(&looking))?;
        let serving = Arc::clone(&state);
        thread::Builder::new().spawn(move || {
            for client in listener.incoming().flatten() {
                let state = Arc::clone(&serving);
                // Without a thread, the connection is closed, as by a Service without replicas.
                drop(thread::Builder::new().spawn(move || pass(&client, &state)));
            }
        })?;
        Ok(Self { address, state })
    }

    /// Replaces the replicas.
    pub fn set(&self, backends: Vec<Backend>) {
        *lock(&self.state.backends) = backends;
        self.state.look();
    }
}

impl State {
    fn look(&self) {
        let backends = lock(&self.backends).clone();
        let is_ready = |one: &&Backend| http::text(&one.readyz).is_ok();
        let ready = backends.iter().filter(is_ready).map(|one| one.address);
        let ready = ready.collect();
        *lock(&self.ready) = ready;
    }

    /// Returns a connection to the next replica that accepts one.
    fn connect(&self) -> Option<TcpStream> {
        let ready = lock(&self.ready).clone();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        (0..ready.len()).find_map(|n| TcpStream::connect(ready[(turn + n) % ready.len()]).ok())
    }
}

fn look(state: &Weak<State>) {
    while let Some(state) = state.upgrade() {
        state.look();
        drop(state);
        thread::sleep(LOOK);
    }
}

/// Copies in both directions until both ends are closed.
fn pass(client: &TcpStream, state: &State) {
    let Some(server) = state.connect() else {
        return;
    };
    thread::scope(|scope| {
        scope.spawn(|| copy(client, &server));
        copy(&server, client);
    });
}

fn copy(mut from: &TcpStream, mut to: &TcpStream) {
    // A broken connection is shut down in both directions, so that the other copier notices.
    let how = match io::copy(&mut from, &mut to) {
        Ok(_) => Shutdown::Write,
        Err(_) => Shutdown::Both,
    };
    drop(to.shutdown(how));
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
