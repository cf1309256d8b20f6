//! Addresses to listen on, as in the flag `--web.listen-address`.

use std::{
    io,
    net::{SocketAddr, TcpListener, ToSocketAddrs},
};

use tokio::task::spawn_blocking;

/// An address on which nobody can listen.
#[derive(Debug, thiserror::Error)]
#[error("listening on {address}")]
pub struct ListenError {
    pub address: String,
    #[source]
    pub reason: io::Error,
}

/// Parses `HOST:PORT`, in a form that can be resolved; `:PORT` means all IPv4 addresses.
///
/// # Errors
/// What is expected.
pub fn address(text: &str) -> Result<String, String> {
    let expected =
        || "expected HOST:PORT, such as 0.0.0.0:9836, [::]:9836, localhost:9836 or :9836";
    let (host, port) = text.rsplit_once(':').ok_or_else(expected)?;
    if port.is_empty() || !port.bytes().all(|b| b.is_ascii_digit()) {
        return Err(expected().to_owned());
    }
    if port.parse::<u16>().is_err() {
        return Err(format!("port {port} is too large: the maximum is 65535"));
    }
    let host = if host.is_empty() { "0.0.0.0" } else { host };
    let address = format!("{host}:{port}");
    match is_host_name(host) || address.parse::<SocketAddr>().is_ok() {
        true => Ok(address),
        false => Err(expected().to_owned()),
    }
}

/// Reports whether `text` is a host name; text that looks like an IPv4 address is not.
fn is_host_name(text: &str) -> bool {
    let good = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    text.bytes().all(good) && text.bytes().any(|b| b.is_ascii_alphabetic())
}

/// Listens on all addresses, before any of them is served. Resolving a name may hang,
/// so it happens on a thread of its own.
///
/// # Errors
/// When a name cannot be resolved, or an address is in use.
pub async fn listen(addresses: Vec<String>) -> Result<Vec<TcpListener>, ListenError> {
    let mut listeners = Vec::with_capacity(addresses.len());
    for address in addresses {
        let own = address.clone();
        let bound = spawn_blocking(move || look_up(&own).and_then(TcpListener::bind));
        let bound = bound.await.map_err(io::Error::other).flatten();
        listeners.push(bound.map_err(|reason| ListenError { address, reason })?);
    }
    Ok(listeners)
}

/// Resolves one address of a host, and prefers IPv4 to IPv6 as Go programs do.
fn look_up(address: &str) -> io::Result<SocketAddr> {
    let all: Vec<_> = address.to_socket_addrs()?.collect();
    let first = all.iter().find(|one| one.is_ipv4()).or(all.first());
    first.copied().ok_or_else(|| io::ErrorKind::NotFound.into())
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn addresses() {
        for (text, expected) in [
            (":1", "0.0.0.0:1"),
            ("[::1]:2", "[::1]:2"),
            ("localhost:1", "localhost:1"),
        ] {
            assert_eq!(address(text).as_deref(), Ok(expected));
        }
        for bad in ["9836", "x:", "x:+1", "::1:1", "1.2.3:1", "a b:1", "[x]:1"] {
            let error = address(bad).unwrap_err();
            assert!(error.starts_with("expected HOST:PORT"), "{bad}: {error}");
        }
        for bad in [":99999", "localhost:123456789012"] {
            assert!(address(bad).unwrap_err().contains("too large"));
        }
    }
}
