//! How the API server serves the NodeTopology.

use kube::core::ApiResource;
use nvlink_topology::{API_VERSION, GROUP, KIND, VERSION};

/// Plural of the kind, as in URLs.
pub const PLURAL: &str = "nodetopologies";

/// The kind for an [`Api`](kube::Api) of objects that are not typed.
#[must_use]
pub fn resource() -> ApiResource {
    ApiResource {
        group: GROUP.to_owned(),
        version: VERSION.to_owned(),
        api_version: API_VERSION.to_owned(),
        kind: KIND.to_owned(),
        plural: PLURAL.to_owned(),
    }
}
