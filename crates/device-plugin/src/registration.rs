//! What a device plugin says of itself when it registers.

use prost::{Message, bytes::Bytes};
use tonic::Status;

use super::{
    directories::KUBELET,
    messages::{Options, RegisterRequest},
};

/// The longest name of a resource: a domain of 253 characters, `/`, and a name of 63.
const LONGEST: usize = 253 + 1 + 63;

/// The most characters of a wrong name that an error shows.
const SHOWN: usize = 100;

/// A registration that can be passed on.
#[derive(Clone, Debug)]
pub(super) struct Registration {
    message: Bytes,
    request: RegisterRequest,
}

impl Registration {
    /// Checks a registration as far as this program depends on it; the rest is for the kubelet to
    /// check.
    pub(super) fn new(message: Bytes) -> Result<Self, Status> {
        let request = RegisterRequest::decode(message.clone());
        let request = request.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let name = &request.endpoint;
        let is_name = !name.contains(['/', '\0']) && !["", ".", "..", KUBELET].contains(&&**name);
        if !is_name || name.len() > 100 {
            let shown: String = name.chars().take(SHOWN).collect();
            let reason = format!("the endpoint {shown:?} is not the name of a socket");
            return Err(Status::invalid_argument(reason));
        }
        let resource = &request.resource_name;
        let good = |b: u8| b.is_ascii_alphanumeric() || b"-_./".contains(&b);
        if resource.is_empty() || resource.len() > LONGEST || !resource.bytes().all(good) {
            let shown: String = resource.chars().take(SHOWN).collect();
            let reason = format!("{shown:?} is not the name of a resource");
            return Err(Status::invalid_argument(reason));
        }
        Ok(Self { message, request })
    }

    /// Returns the name of the resource.
    pub(super) fn resource(&self) -> &str {
        &self.request.resource_name
    }

    /// Returns the name of the plugin's socket.
    pub(super) fn endpoint(&self) -> &str {
        &self.request.endpoint
    }

    /// Reports whether the plugin answers what it prefers.
    pub(super) fn prefers(&self) -> bool {
        let options = self.request.options.unwrap_or_default();
        options.get_preferred_allocation_available
    }

    /// Returns the registration of the same resource at another socket, which answers what it
    /// prefers if `prefers`. Of fields that occur twice the last one counts, and messages are
    /// merged, so fields that this program does not know survive.
    pub(super) fn moved(&self, endpoint: &str, prefers: bool) -> Bytes {
        let more = RegisterRequest {
            endpoint: endpoint.to_owned(),
            options: prefers.then(preferring),
            ..RegisterRequest::default()
        };
        [&self.message[..], &more.encode_to_vec()].concat().into()
    }
}

/// Returns options that say that preferences are answered.
pub(super) fn preferring() -> Options {
    Options {
        get_preferred_allocation_available: true,
        ..Options::default()
    }
}
