//! The NodeTopology as a resource of the API server.

use kube::core::ApiResource;
use nvlink_topology::{API_VERSION, GROUP, KIND, PLURAL, VERSION};

/// Returns the resource for an [`Api`](kube::Api) of untyped objects.
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
