//! Decides on each request: rate, user and password, headers of the answer.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Instant,
};

use crate::connections::Peer;
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

use super::settings::Settings;

/// How many passwords of one peer may wait for their check; further ones are
/// rejected. A check takes a tenth of a second of one core or more, and only one of strangers runs at a
/// time, so that guessing passwords costs the node at most one core.
const MAX_WAITING: usize = 32;
/// How many right passwords, and how many wrong ones, are remembered. There are
/// only as many right ones as users.
const MAX_REMEMBERED: usize = 256;
/// How many peers are remembered that gave a right password.
const MAX_FRIENDS: usize = 256;
/// The hash that is checked if the user is unknown, so that the answer takes
/// equally long. Its cost is 10, the usual choice with `htpasswd -B`.
const NOBODY: &str = "$2b$10$CwTycUXWue0Thq9StjUM0uJ8iRUcLGWYSkiXh3HwkyzGZ8a6Q0U9K";

#[derive(Debug)]
pub(super) struct Gate {
    pub(super) settings: ArcSwap<Settings>,
    /// The key of the hashes of remembered passwords; it never leaves the process.
    key: Option<hmac::Key>,
    checked: Mutex<Checked>,
    /// The line of each peer that has passwords waiting. Each peer has at most one
    /// password waiting for `checking`, so that a peer that guesses delays no other.
    /// exporter-toolkit has one line for all: whoever guesses without a break there keeps
    /// Prometheus out from the restart of the exporter on.
    lines: Mutex<BTreeMap<Option<Peer>, Weak<Line>>>,
    checking: Arc<Semaphore>,
    /// Peers that gave a right password. A new one of theirs waits for no stranger's.
    friends: Mutex<HashSet<Peer>>,
    checking_friends: Arc<Semaphore>,
}

/// Passwords that need no second check. Wrong ones are among them, because a
/// client with a wrong password usually keeps sending it.
#[derive(Debug, Default)]
struct Checked {
    right: HashSet<Vec<u8>>,
    wrong: HashSet<Vec<u8>>,
}

impl Checked {
    fn recall(&self, tag: &[u8]) -> Option<bool> {
        match self.right.contains(tag) {
            true => Some(true),
            false => self.wrong.contains(tag).then_some(false),
        }
    }

    fn remember(&mut self, tag: Vec<u8>, is_right: bool) {
        let tags = match is_right {
            true => &mut self.right,
            false => &mut self.wrong,
        };
        if tags.len() >= MAX_REMEMBERED {
            tags.clear();
        }
        tags.insert(tag);
    }
}

/// The line in which the passwords of one peer wait, in the order of arrival.
#[derive(Debug)]
struct Line {
    room: Semaphore,
    turn: Semaphore,
}

impl Default for Line {
    fn default() -> Self {
        Self {
            room: Semaphore::new(MAX_WAITING),
            turn: Semaphore::new(1),
        }
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
            // Without randomness, no password is remembered.
            key: hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).ok(),
            checked: Mutex::default(),
            lines: Mutex::default(),
            checking: Arc::new(Semaphore::new(1)),
            friends: Mutex::default(),
            checking_friends: Arc::new(Semaphore::new(1)),
        }
    }

    async fn check(
        self: &Arc<Self>,
        users: &BTreeMap<String, String>,
        headers: &HeaderMap,
        peer: Option<Peer>,
    ) -> Verdict {
        let Some((user, password)) = credentials(headers) else {
            return Verdict::Denied;
        };
        let known = users.get(&user);
        let stranger = || users.values().max_by_key(|hash| cost(hash));
        let hash = match known {
            Some(hash) => hash.clone(),
            None => of_cost(NOBODY, stranger().map_or("", |hash| cost(hash))),
        };
        let tag = self.tag(&user, &hash, &password);
        match self.verify(peer, tag, password, hash).await {
            Some(true) if known.is_some() => {
                self.befriend(peer);
                Verdict::Allowed
            }
            Some(_) => Verdict::Denied,
            None => Verdict::Busy,
        }
    }

    fn recall(&self, tag: Option<&[u8]>) -> Option<bool> {
        let checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        checked.recall(tag?)
    }

    /// Checks a password outside the threads that serve, one of strangers at a time. Returns `None` if
    /// too many passwords wait. The check goes on, and is remembered, if the client leaves: otherwise a
    /// scraper that gives up after ten seconds would be the last in line each time.
    async fn verify(
        self: &Arc<Self>,
        peer: Option<Peer>,
        tag: Option<Vec<u8>>,
        password: Vec<u8>,
        hash: String,
    ) -> Option<bool> {
        if let Some(is_right) = self.recall(tag.as_deref()) {
            return Some(is_right);
        }
        let (this, line) = (Arc::clone(self), self.line(peer));
        let check = async move {
            let _room = line.room.try_acquire().ok()?;
            let _turn = line.turn.acquire().await.ok()?;
            // The same password may have been checked in the meantime: then it needs no core.
            if let Some(is_right) = this.recall(tag.as_deref()) {
                return Some(is_right);
            }
            this.verify_now(peer, tag, password, hash).await
        };
        tokio::spawn(check).await.ok()?
    }

    async fn verify_now(
        &self,
        peer: Option<Peer>,
        tag: Option<Vec<u8>>,
        password: Vec<u8>,
        hash: String,
    ) -> Option<bool> {
        let checking = match self.is_friend(peer) {
            true => &self.checking_friends,
            false => &self.checking,
        };
        let checking = Arc::clone(checking).acquire_owned().await.ok()?;
        // By another peer, too.
        if let Some(is_right) = self.recall(tag.as_deref()) {
            return Some(is_right);
        }
        let check = move || {
            // Held to the end, even if the client disconnects.
            let _checking = checking;
            bcrypt::verify(password, &hash).unwrap_or(false)
        };
        let is_right = tokio::task::spawn_blocking(check).await.ok()?;
        if let Some(tag) = tag {
            let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
            checked.remember(tag, is_right);
        }
        Some(is_right)
    }

    fn is_friend(&self, peer: Option<Peer>) -> bool {
        let friends = self.friends.lock().unwrap_or_else(PoisonError::into_inner);
        peer.is_some_and(|peer| friends.contains(&peer))
    }

    fn befriend(&self, peer: Option<Peer>) {
        let mut friends = self.friends.lock().unwrap_or_else(PoisonError::into_inner);
        if friends.len() < MAX_FRIENDS {
            friends.extend(peer);
        }
    }

    fn line(&self, peer: Option<Peer>) -> Arc<Line> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = lines.get(&peer).and_then(Weak::upgrade) {
            return line;
        }
        lines.retain(|_, line| line.strong_count() > 0);
        let line = Arc::new(Line::default());
        lines.insert(peer, Arc::downgrade(&line));
        line
    }

    /// Returns the tag by which a password is remembered. The bcrypt hash is part of
    /// it, so that a password is checked again when its hash changes.
    fn tag(&self, user: &str, hash: &str, password: &[u8]) -> Option<Vec<u8>> {
        let mut context = hmac::Context::with_key(self.key.as_ref()?);
        for part in [user.as_bytes(), hash.as_bytes(), password] {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part);
        }
        Some(context.sign().as_ref().to_vec())
    }
}

/// Returns the cost in `$2b$COST$…`.
fn cost(hash: &str) -> &str {
    hash.split('$').nth(2).unwrap_or_default()
}

fn of_cost(hash: &str, cost: &str) -> String {
    let rest = hash.splitn(4, '$').nth(3).unwrap_or_default();
    format!("$2b${cost}${rest}")
}

/// Parses user and password in the header `Authorization`.
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

/// Admits a request or rejects it.
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
    fn credentials_are_parsed_as_the_standard_requires() {
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
    fn an_unknown_user_takes_as_long_to_check_as_a_known_one() {
        let hash = of_cost(NOBODY, "04");
        assert_eq!(cost(&hash), "04");
        assert!(!bcrypt::verify("", &hash).unwrap());
    }
}
