//! Who may use a class: `spec.access` of a `DomainClass`.

// The derive makes public types inside functions.
#![allow(unreachable_pub)]

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Who may use a class.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Access {
    /// `Open`: everybody. `Restricted`: who has the verb `use` on this class in the pod's
    /// namespace, as the requesting user or as the pod's service account, and the CI projects.
    #[serde(default)]
    pub mode: AccessMode,
    /// Where somebody must have the verb `use`: `Namespace`, in the pod's namespace, by a RoleBinding
    /// or a ClusterRoleBinding. `Cluster`, by a ClusterRoleBinding alone, so that who has all rights
    /// in a namespace has not this one.
    #[serde(default)]
    pub granted_in: GrantedIn,
    /// CI projects that may use the class, whoever their jobs run as.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub ci_projects: Vec<CiProject>,
    /// Namespaces whose daemons may run on the nodes of the class. Pods in them that hold no GPU
    /// may tolerate its taint or name a node, and have privileges and paths of the host there.
    /// Whoever may create pods in such a namespace has these nodes.
    // Always there, so that one can be added to it by a JSON Patch.
    #[serde(default)]
    #[schemars(
        length(max = 64),
        inner(length(max = 63), regex(pattern = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$")),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub daemon_namespaces: Vec<String>,
}

/// Whether a class is open to everybody.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AccessMode {
    /// Everybody may use it.
    #[default]
    Open,
    /// Only who has the verb `use` on it, and the listed CI projects.
    Restricted,
}

/// Where somebody must have the verb `use` on a restricted class.
#[derive(JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum GrantedIn {
    /// In the pod's namespace.
    #[default]
    Namespace,
    /// In the whole cluster.
    Cluster,
}

/// Projects of one CI system: the request must come from a listed runner, and
/// what the runner says about the pod must be listed as well.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new(
        "self.provider == 'gitlab' ? !has(self.identities) && (has(self.projectIds) || has(self.rootNamespaceIds)) : has(self.identities) && !has(self.projectIds) && !has(self.rootNamespaceIds)"
    ).message("gitlab takes projectIds and rootNamespaceIds, the other providers take identities; at least one of them")
)]
pub struct CiProject {
    /// The CI system.
    pub provider: CiProvider,
    /// GitLab projects by id: label `project.runner.gitlab.com/id`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 256), inner(range(min = 1)))]
    pub project_ids: Vec<u64>,
    /// GitLab root namespaces by id: label `project.runner.gitlab.com/root-namespace-id`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 256), inner(range(min = 1)))]
    pub root_namespace_ids: Vec<u64>,
    /// Service accounts that the jobs' pods run as, in the pods' namespaces.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 256))]
    pub identities: Vec<Account>,
    /// Service accounts that create the pods of the jobs.
    #[schemars(length(min = 1, max = 64))]
    pub runners: Vec<Account>,
}

/// A CI system.
#[derive(JsonSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
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
    /// Its namespace.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub service_account: String,
}
