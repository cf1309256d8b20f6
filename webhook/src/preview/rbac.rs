//! Rights from the Roles and bindings of files, as the API server grants them.

use std::{collections::BTreeMap, time::Instant};

use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject as Bound,
};
use nvlink_topology::GROUP;
use serde_json::Value;

use crate::authorize::{Authorizer, Grant, ListedAuthorizer, RESOURCE, Subject, USE, User};

/// Members of it may do everything.
const MASTERS: &str = "system:masters";

/// Roles and who they are bound to.
#[derive(Clone, Debug, Default)]
pub(super) struct Rbac {
    /// By namespace, empty for ClusterRoles, and name.
    roles: BTreeMap<(String, String), Vec<PolicyRule>>,
    bindings: Vec<Binding>,
}

#[derive(Clone, Debug)]
struct Binding {
    /// What to call it: `RoleBinding ci/name`.
    shown: String,
    /// Where it grants; absent: everywhere.
    namespace: Option<String>,
    role: (String, String),
    subjects: Vec<Bound>,
}

/// The kinds that [`Rbac::add`] takes.
pub(super) const KINDS: [&str; 4] = ["Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"];

impl Rbac {
    /// Adds an object of one of [`KINDS`].
    ///
    /// # Errors
    /// When it is not shaped like one.
    pub(super) fn add(&mut self, kind: &str, object: Value) -> serde_json::Result<()> {
        match kind {
            "Role" => {
                let role: Role = serde_json::from_value(object)?;
                let namespace = role.metadata.namespace.unwrap_or_default();
                let name = role.metadata.name.unwrap_or_default();
                let key = (namespace_or_default(namespace), name);
                self.roles.insert(key, role.rules.unwrap_or_default());
            }
            "ClusterRole" => {
                let role: ClusterRole = serde_json::from_value(object)?;
                let key = (String::new(), role.metadata.name.unwrap_or_default());
                self.roles.insert(key, role.rules.unwrap_or_default());
            }
            "RoleBinding" => {
                let binding: RoleBinding = serde_json::from_value(object)?;
                let namespace =
                    namespace_or_default(binding.metadata.namespace.unwrap_or_default());
                let name = binding.metadata.name.unwrap_or_default();
                self.bindings.push(Binding {
                    shown: format!("RoleBinding {namespace}/{name}"),
                    role: role(binding.role_ref, &namespace),
                    namespace: Some(namespace),
                    subjects: binding.subjects.unwrap_or_default(),
                });
            }
            _ => {
                let binding: ClusterRoleBinding = serde_json::from_value(object)?;
                let name = binding.metadata.name.unwrap_or_default();
                self.bindings.push(Binding {
                    shown: format!("ClusterRoleBinding {name}"),
                    role: role(binding.role_ref, ""),
                    namespace: None,
                    subjects: binding.subjects.unwrap_or_default(),
                });
            }
        }
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bindings.is_empty()
    }

    /// What to tell of bindings to roles that no file has: they grant nothing here.
    pub(super) fn dangling(&self) -> Option<String> {
        const SHOWN: usize = 3;
        let bindings = self.bindings.iter();
        let dangling: Vec<_> = bindings
            .filter(|binding| !self.roles.contains_key(&binding.role))
            .map(|binding| format!("{} ({})", binding.shown, binding.role.1))
            .collect();
        let more = dangling.len().checked_sub(SHOWN).filter(|more| *more > 0);
        let shown = dangling.iter().take(SHOWN).cloned().collect::<Vec<_>>();
        (!dangling.is_empty()).then(|| {
            format!(
                "bindings whose role no file has grant nothing here: {}{}",
                shown.join(", "),
                more.map_or_else(String::new, |more| format!(" and {more} more"))
            )
        })
    }

    /// Whether `user` may use `class` in `namespace`.
    fn grants(&self, user: &User, class: &str, namespace: &str) -> bool {
        let here = |binding: &&Binding| {
            binding
                .namespace
                .as_deref()
                .is_none_or(|own| own == namespace)
        };
        let mut bindings = self.bindings.iter().filter(here);
        user.groups.iter().any(|group| group == MASTERS)
            || bindings.any(|binding| {
                let within = binding.namespace.as_deref().unwrap_or_default();
                let mut subjects = binding.subjects.iter();
                let rules = self.roles.get(&binding.role);
                subjects.any(|subject| is(subject, user, within))
                    && rules.is_some_and(|rules| rules.iter().any(|rule| allows(rule, class)))
            })
    }
}

fn namespace_or_default(name: String) -> String {
    match name.is_empty() {
        true => "default".to_owned(),
        false => name,
    }
}

fn role(role: RoleRef, namespace: &str) -> (String, String) {
    let namespace = match role.kind == "Role" {
        true => namespace.to_owned(),
        false => String::new(),
    };
    (namespace, role.name)
}

/// Whether `user` is the subject of a binding in `within`.
fn is(subject: &Bound, user: &User, within: &str) -> bool {
    match subject.kind.as_str() {
        "User" => subject.name == user.username,
        "Group" => user.groups.contains(&subject.name),
        "ServiceAccount" => {
            let namespace = subject.namespace.as_deref().unwrap_or(within);
            user.username == format!("system:serviceaccount:{namespace}:{}", subject.name)
        }
        _ => false,
    }
}

fn allows(rule: &PolicyRule, class: &str) -> bool {
    let names = |list: &Option<Vec<String>>, word: &str| {
        let mut items = list.iter().flatten();
        items.any(|item| item == word || item == "*")
    };
    let only = rule.resource_names.as_deref().unwrap_or_default();
    names(&rule.api_groups, GROUP)
        && names(&rule.resources, RESOURCE)
        && rule.verbs.iter().any(|verb| verb == USE || verb == "*")
        && (only.is_empty() || only.iter().any(|name| name == class))
}

/// The rights that a preview goes by.
#[derive(Clone, Debug, Default)]
pub(super) struct Rights {
    /// Classes that everybody may use.
    pub(super) listed: ListedAuthorizer,
    pub(super) rbac: Rbac,
}

impl Authorizer for Rights {
    async fn may_use(
        &self,
        subject: &Subject,
        class: &str,
        namespace: &str,
        deadline: Instant,
    ) -> Grant {
        let account = subject.as_user(namespace);
        let grants = |user| self.rbac.grants(user, class, namespace);
        match grants(&subject.user) || grants(&account) {
            true => Grant::Granted,
            false => {
                let listed = self.listed.may_use(subject, class, namespace, deadline);
                listed.await
            }
        }
    }
}
