//! Who may use a class: `spec.access` of a `DomainClass`.

// The derive macro generates public types inside functions.
#![allow(unreachable_pub)]

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

/// Who may use a class.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Access {
    /// `Open`: everybody may use the class. `Restricted`: the requesting user or the pod's service
    /// account must have the verb `use` on it, or the pod must belong to a listed CI project.
    #[serde(default)]
    pub mode: AccessMode,
    /// Where the verb `use` must be granted. `Namespace`: in the pod's namespace, by a RoleBinding
    /// or a ClusterRoleBinding. `Cluster`: only by a ClusterRoleBinding, so that all rights in a
    /// namespace do not include this one.
    #[serde(default)]
    pub granted_in: GrantedIn,
    /// CI projects that may use the class, regardless of the service account of their jobs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub ci_projects: Vec<CiProject>,
    /// The most GPUs of the class that the pods of one project hold at a time; the others wait in
    /// the queue. If absent, no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_gpus_per_project: Option<u32>,
    /// Namespaces whose daemons may run on the nodes of the class. Pods there that hold no GPU may
    /// tolerate the taint of the class or name a node, be privileged and mount host paths. Anybody
    /// who may create pods in such a namespace controls these nodes.
    // Always serialized, so that a JSON Patch can add a namespace to it.
    #[serde(default)]
    #[schemars(
        length(max = 64),
        inner(length(max = 63), regex(pattern = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub daemon_namespaces: Vec<String>,
}

/// Whether everybody may use a class.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AccessMode {
    /// Everybody may use it.
    #[default]
    Open,
    /// Only subjects with the verb `use` on it, and listed CI projects, may use it.
    Restricted,
}

/// Where the verb `use` on a restricted class must be granted.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum GrantedIn {
    /// In the pod's namespace.
    #[default]
    Namespace,
    /// In the whole cluster.
    Cluster,
}

/// Projects of one CI system. The request must come from a listed runner, and the
/// pod must belong to a listed project.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new(
        "self.provider == 'gitlab' ? !has(self.identities) && (has(self.projectIds) || has(self.rootNamespaceIds)) : has(self.identities) && !has(self.projectIds) && !has(self.rootNamespaceIds)"
    ).message("gitlab needs projectIds or rootNamespaceIds, and accepts no identities; the other providers need identities, and accept no ids")
)]
pub struct CiProject {
    /// The CI system.
    pub provider: CiProvider,
    /// Ids of GitLab projects, as in the pod label `project.runner.gitlab.com/id`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 256), inner(range(min = 1)))]
    pub project_ids: Vec<u64>,
    /// Ids of GitLab root namespaces, as in the pod label
    /// `project.runner.gitlab.com/root-namespace-id`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 256), inner(range(min = 1)))]
    pub root_namespace_ids: Vec<u64>,
    /// Service accounts that the pods of the jobs run as, with the namespaces of the pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 256))]
    pub identities: Vec<Account>,
    /// Service accounts of the runners, which create the pods of the jobs.
    #[schemars(length(min = 1, max = 64))]
    pub runners: Vec<Account>,
}

/// A CI system.
#[derive(
    JsonSchema,
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    IntoStaticStr,
    VariantArray,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase", const_into_str)]
pub enum CiProvider {
    /// GitLab Runner, with its Kubernetes executor.
    Gitlab,
    /// Buildkite's agent stack.
    Buildkite,
    /// Tekton Pipelines.
    Tekton,
    /// GitHub's Actions Runner Controller.
    Arc,
}

/// A service account.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Account {
    /// Namespace of the service account.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
    /// Name of the service account.
    #[schemars(length(min = 1, max = 253))]
    pub service_account: String,
}
