//! The policies of a cluster, compared with those of this version.

use nvlink_api::{
    pod::text,
    yaml::{self, YamlError},
};
use serde_json::Value;
use similar::TextDiff;

use super::{LEASE_NAMESPACE, Site};

const POLICY: &str = "ValidatingAdmissionPolicy";
const BINDING: &str = "ValidatingAdmissionPolicyBinding";

/// The wanted objects that the cluster does not have, or has with another spec, which is all that
/// is compared.
pub struct Differing<'a> {
    missing: Vec<&'a Value>,
    /// Each found object, and the wanted one.
    changed: Vec<(&'a Value, &'a Value)>,
}

impl<'a> Differing<'a> {
    /// Compares `found`, null for each missing object, with `wanted`.
    #[must_use]
    pub fn new(found: &'a [Value], wanted: &'a [Value]) -> Self {
        let pairs = found.iter().zip(wanted);
        let differing = pairs.filter(|(found, wanted)| found.get("spec") != wanted.get("spec"));
        let (missing, changed): (Vec<_>, Vec<_>) =
            differing.partition(|(found, _)| found.is_null());
        Self {
            missing: missing.into_iter().map(|(_, wanted)| wanted).collect(),
            changed,
        }
    }

    /// Reports whether nothing differs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.changed.is_empty()
    }

    /// Returns the names, a line for each kind and kind of difference.
    #[must_use]
    pub fn names(&self) -> String {
        let changed: Vec<_> = self.changed.iter().map(|(_, wanted)| *wanted).collect();
        let mut lines = String::new();
        for (what, objects) in [("missing", &self.missing), ("changed", &changed)] {
            for (kinds, kind) in [("policies", POLICY), ("bindings", BINDING)] {
                let of_kind = objects.iter().filter(|it| text(it, &["kind"]) == kind);
                let names: Vec<_> = of_kind.map(|it| text(it, &["metadata", "name"])).collect();
                if !names.is_empty() {
                    let (count, names) = (names.len(), names.join(", "));
                    lines.push_str(&format!("{what} {kinds} ({count}): {names}\n"));
                }
            }
        }
        lines
    }

    /// Returns the commands that show the differences, unless they are `shown`, and repair the policies. An apply would only
    /// add to lists that somebody else has changed, so existing objects are replaced.
    #[must_use]
    pub fn remedy(&self, shown: bool, site: &Site) -> String {
        let exempt = site.exempt.join(",");
        let mut print = format!("nvlink-webhook policies --exempt-namespace={exempt}");
        if site.lease_namespace != LEASE_NAMESPACE {
            print = format!("{print} --lease-namespace={}", site.lease_namespace);
        }
        let mut lines = Vec::new();
        if !shown && !self.changed.is_empty() {
            lines.push(format!("to see the differences: {print} --diff"));
        }
        if !self.missing.is_empty() {
            lines.push(format!(
                "to create what is missing: {print} | kubectl apply --server-side -f -"
            ));
        }
        if !self.changed.is_empty() {
            lines.push(format!(
                "to repair what was changed: {print} | kubectl replace -f -"
            ));
        }
        lines.join("\n")
    }

    /// Returns the differences as a unified diff.
    ///
    /// # Errors
    /// When a document cannot be written as YAML.
    pub fn diff(&self) -> Result<String, YamlError> {
        let missing = self.missing.iter().map(|wanted| (&Value::Null, *wanted));
        let mut all = String::new();
        for (found, wanted) in missing.chain(self.changed.iter().copied()) {
            let spec = |document: &Value| -> Result<String, YamlError> {
                match document.get("spec") {
                    None => Ok(String::new()),
                    Some(spec) => yaml::write(std::slice::from_ref(spec)),
                }
            };
            let (before, after) = (spec(found)?, spec(wanted)?);
            let name = format!(
                "{}/{}",
                text(wanted, &["kind"]),
                text(wanted, &["metadata", "name"])
            );
            let diff = TextDiff::from_lines(&before, &after)
                .unified_diff()
                .header(
                    &format!("{name} in the cluster"),
                    &format!("{name} of this version"),
                )
                .to_string();
            all.push_str(&diff);
        }
        Ok(all)
    }
}
