//! Decides on each request: rate, user and password, headers of the answer.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use arc_swap::ArcSwap;
use axum::{
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use ring::{hmac, rand::SystemRandom};
use tokio::sync::Semaphore;

use super::{places::Peer, settings::Settings};

/// Passwords that wait for their check; more are sent away. A check takes a
/// tenth of a second and more of a core, and only one runs at a time, so that
/// guessing costs the node no more than that.
const MAX_WAITING: usize = 64;
/// Those of one peer: who guesses must not keep out who knows.
const MAX_WAITING_OF_PEER: usize = 32;
/// Right passwords that are remembered; there are as many as users.
const MAX_REMEMBERED: usize = 256;
/// Checked when the user is unknown, so that the answer takes as long:
/// of cost 10, which `htpasswd -B` is mostly asked for.
const NOBODY: &str = "$2b$10$CwTycUXWue0Thq9StjUM0uJ8iRUcLGWYSkiXh3HwkyzGZ8a6Q0U9K";

/// What requests pass.
#[derive(Debug)]
pub(super) struct Gate {
    pub(super) settings: ArcSwap<Settings>,
    /// What passwords are remembered by; never leaves the process.
    key: Option<hmac::Key>,
    right: Mutex<HashSet<Vec<u8>>>,
    waiting: Waiting,
    checking: Arc<Semaphore>,
}

/// How many passwords of each peer wait.
#[derive(Debug, Default)]
struct Waiting(Mutex<BTreeMap<Option<Peer>, usize>>);

impl Waiting {
    fn enter(&self, peer: Option<Peer>) -> Option<InLine<'_>> {
        let mut waiting = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_peer = waiting.get(&peer).copied().unwrap_or_default();
        let all: usize = waiting.values().sum();
        if all >= MAX_WAITING || of_peer >= MAX_WAITING_OF_PEER {
            return None;
        }
        waiting.insert(peer, of_peer + 1);
        let waiting = self;
        Some(InLine { waiting, peer })
    }
}

/// One that waits, for as long as it lives.
struct InLine<'a> {
    waiting: &'a Waiting,
    peer: Option<Peer>,
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        let waiting = self.waiting.0.lock();
        let mut waiting = waiting.unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = waiting.get_mut(&self.peer) {
            *count -= 1;
        }
        waiting.retain(|_, count| *count > 0);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Allowed,
    Denied,
    Busy,
}

impl Gate {
    pub(super) fn new(settings: ArcSwap<Settings>) -> Self {
        Self {
            settings,
            // Without randomness nothing is remembered.
            key: hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).ok(),
            right: Mutex::default(),
            waiting: Waiting::default(),
            checking: Arc::new(Semaphore::new(1)),
        }
    }

    async fn check(
        &self,
        users: &BTreeMap<String, String>,
        headers: &HeaderMap,
        peer: Option<Peer>,
    ) -> Verdict {
        let Some((user, password)) = credentials(headers) else {
            return Verdict::Denied;
        };
        let known = users.get(&user);
        let tag = known.and_then(|hash| self.tag(&user, hash, &password));
        let right = || self.right.lock().unwrap_or_else(PoisonError::into_inner);
        if tag.as_ref().is_some_and(|tag| right().contains(tag)) {
            return Verdict::Allowed;
        }
        let stranger = users.values().max_by_key(|hash| cost(hash));
        let hash = match (known, stranger) {
            (Some(hash), _) => hash.clone(),
            (None, Some(other)) => of_cost(NOBODY, cost(other)),
            (None, None) => return Verdict::Denied,
        };
        match self.verify(peer, password, hash).await {
            Some(true) if known.is_some() => {}
            Some(_) => return Verdict::Denied,
            None => return Verdict::Busy,
        }
        if let Some(tag) = tag {
            let mut right = right();
            if right.len() >= MAX_REMEMBERED {
                right.clear();
            }
            right.insert(tag);
        }
        Verdict::Allowed
    }

    /// Off the threads that serve, one at a time; none when too many wait.
    async fn verify(&self, peer: Option<Peer>, password: Vec<u8>, hash: String) -> Option<bool> {
        let _waiting = self.waiting.enter(peer)?;
        let checking = Arc::clone(&self.checking).acquire_owned().await.ok()?;
        let check = move || {
            // Held to the end, also when the client goes away meanwhile.
            let _checking = checking;
            bcrypt::verify(password, &hash).unwrap_or(false)
        };
        tokio::task::spawn_blocking(check).await.ok()
    }

    /// What a password is remembered by. The hash is part of it, so a changed one is asked for anew.
    fn tag(&self, user: &str, hash: &str, password: &[u8]) -> Option<Vec<u8>> {
        let mut context = hmac::Context::with_key(self.key.as_ref()?);
        for part in [user.as_bytes(), hash.as_bytes(), password] {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part);
        }
        Some(context.sign().as_ref().to_vec())
    }
}

/// The cost in `$2b$COST$…`.
fn cost(hash: &str) -> &str {
    hash.split('$').nth(2).unwrap_or_default()
}

fn of_cost(hash: &str, cost: &str) -> String {
    let rest = hash.splitn(4, '$').nth(3).unwrap_or_default();
    format!("$2b${cost}${rest}")
}

/// User and password of the header `Authorization`.
fn credentials(headers: &HeaderMap) -> Option<(String, Vec<u8>)> {
    let header = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, encoded) = header.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let mut user = BASE64_STANDARD.decode(encoded.trim()).ok()?;
    let colon = user.iter().position(|&byte| byte == b':')?;
    let password = user.split_off(colon + 1);
    user.pop();
    Some((String::from_utf8(user).ok()?, password))
}

/// Lets a request pass, or not.
pub(super) async fn guard(State(gate): State<Arc<Gate>>, request: Request, next: Next) -> Response {
    let settings = gate.settings.load_full();
    let too_many = settings
        .rate
        .as_ref()
        .is_some_and(|rate| !rate.take(Instant::now()));
    let verdict = match settings.users.is_empty() {
        _ if too_many => Verdict::Busy,
        true => Verdict::Allowed,
        false => {
            let peer = request.extensions().get().copied();
            gate.check(&settings.users, request.headers(), peer).await
        }
    };
    let mut response = match verdict {
        Verdict::Allowed => next.run(request).await,
        Verdict::Denied => {
            let challenge = [(header::WWW_AUTHENTICATE, "Basic")];
            (StatusCode::UNAUTHORIZED, challenge, "Unauthorized\n").into_response()
        }
        Verdict::Busy => {
            let later = [(header::RETRY_AFTER, "1")];
            (StatusCode::TOO_MANY_REQUESTS, later, "Too many requests\n").into_response()
        }
    };
    let headers = settings.headers.iter();
    let headers = headers.map(|(name, value)| (name.clone(), value.clone()));
    response.headers_mut().extend(headers);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_read_as_the_standard_says() {
        let of = |value: &str| {
            let headers = HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
            credentials(&headers)
        };
        let pair = |user: &str, password: &str| Some((user.to_owned(), password.into()));
        assert_eq!(of("Basic YTpiOmM="), pair("a", "b:c"));
        assert_eq!(of("basic Og=="), pair("", ""));
        assert_eq!(of("Bearer YTpi"), None);
        assert_eq!(of("Basic YTpi!"), None);
        assert_eq!(of("Basic YWI="), None);
        assert_eq!(credentials(&HeaderMap::new()), None);
    }

    #[test]
    fn strangers_cost_as_much_as_users() {
        let hash = of_cost(NOBODY, "04");
        assert_eq!(cost(&hash), "04");
        assert!(!bcrypt::verify("", &hash).unwrap());
    }
}
