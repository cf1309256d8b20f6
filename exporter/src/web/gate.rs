//! Decides on each request: rate, user and password, headers of the answer.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
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

use super::settings::Settings;

/// Passwords that wait for their check; more are sent away. A check takes a
/// tenth of a second and more of a core, and only one runs at a time, so that
/// guessing costs the node no more than that.
const MAX_WAITING: usize = 16;
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
    waiting: Semaphore,
    checking: Arc<Semaphore>,
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
            waiting: Semaphore::new(MAX_WAITING),
            checking: Arc::new(Semaphore::new(1)),
        }
    }

    async fn check(&self, users: &BTreeMap<String, String>, headers: &HeaderMap) -> Verdict {
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
        match self.verify(password, hash).await {
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
    async fn verify(&self, password: Vec<u8>, hash: String) -> Option<bool> {
        let _waiting = self.waiting.try_acquire().ok()?;
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
        false => gate.check(&settings.users, request.headers()).await,
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

/// A bucket of tokens: one more each interval, up to `burst`.
#[derive(Debug)]
pub(super) struct Bucket {
    interval: Duration,
    burst: u32,
    /// Until when requests are paid for in advance.
    paid: Mutex<Option<Instant>>,
}

impl Bucket {
    pub(super) fn new(interval: Duration, burst: u32) -> Self {
        let paid = Mutex::default();
        Self {
            interval,
            burst,
            paid,
        }
    }

    /// Whether a request may pass at `now`.
    fn take(&self, now: Instant) -> bool {
        let mut paid = self.paid.lock().unwrap_or_else(PoisonError::into_inner);
        let from = paid.map_or(now, |paid| paid.max(now));
        let next = from + self.interval;
        let allowed = next.duration_since(now) <= self.interval * self.burst;
        if allowed {
            *paid = Some(next);
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_gives_a_burst_and_fills_again() {
        let bucket = Bucket::new(Duration::from_secs(1), 3);
        let now = Instant::now();
        let taken = |after: u64| bucket.take(now + Duration::from_millis(after));
        assert_eq!([0, 0, 0, 0].map(taken), [true, true, true, false]);
        assert_eq!([900, 1100, 1200].map(taken), [false, true, false]);
        assert_eq!(
            [9000, 9000, 9000, 9000].map(taken),
            [true, true, true, false]
        );
    }

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
