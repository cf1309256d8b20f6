//! The `ClassIndex`: all classes in one object, for the policies.

// The derive macro generates public types inside functions.
#![allow(unreachable_pub)]

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

/// All classes, as the ValidatingAdmissionPolicies read them. The controller writes it; to change a
/// class, change its DomainClass.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "nvlink-domains.io",
    version = "v1alpha1",
    kind = "ClassIndex",
    plural = "classindexes",
    category = "nvlink",
    derive = "PartialEq",
    doc = "All classes, as the ValidatingAdmissionPolicies read them. The controller writes it; to change a class, change its DomainClass.",
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct ClassIndexSpec {
    /// The fields of each class, by its name, and what all classes have in common, by keys that begin
    /// with `_`.
    #[serde(default)]
    #[schemars(extend("x-kubernetes-map-type" = "atomic"))]
    pub data: BTreeMap<String, String>,
    /// The number of the term of the leader that wrote it. Only this leader moves pods on in the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub term: Option<i32>,
}
