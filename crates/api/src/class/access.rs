//! Checks `spec.access` as the CRD's rules do, for classes from files.

use super::{InvalidClass, provider::Identity};
use crate::crd::access::Access;

/// Checks that each entry has the fields that its provider needs, and no others.
///
/// # Errors
/// When an entry does not.
pub(super) fn check(access: &Access) -> Result<(), InvalidClass> {
    for (index, entry) in access.ci_projects.iter().enumerate() {
        let ids = !entry.project_ids.is_empty() || !entry.root_namespace_ids.is_empty();
        let accounts = !entry.identities.is_empty();
        let wrong = match entry.provider.identity() {
            Identity::Labels { .. } if !ids || accounts => {
                "this provider needs projectIds or rootNamespaceIds, and accepts no identities"
            }
            Identity::Account if ids || !accounts => {
                "this provider needs identities, and accepts no projectIds or rootNamespaceIds"
            }
            _ if entry.runners.is_empty() => "name the runners that create the pods",
            _ => continue,
        };
        return Err(InvalidClass::CiProject(index, wrong));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_entry_has_the_fields_that_its_provider_needs() {
        let runner = json!([{"namespace": "n", "serviceAccount": "s"}]);
        let with = |entry: serde_json::Value| {
            let mut entry = entry;
            if entry["runners"].is_null() {
                entry["runners"] = runner.clone();
            }
            check(&serde_json::from_value(json!({"ciProjects": [entry]})).unwrap())
        };
        assert_eq!(
            with(json!({"provider": "gitlab", "projectIds": [1]})),
            Ok(())
        );
        assert_eq!(
            with(json!({"provider": "tekton", "identities": runner})),
            Ok(())
        );
        for bad in [
            json!({"provider": "gitlab"}),
            json!({"provider": "gitlab", "projectIds": [1], "identities": runner}),
            json!({"provider": "gitlab", "projectIds": [1], "runners": []}),
            json!({"provider": "arc", "projectIds": [1]}),
        ] {
            assert!(with(bad.clone()).is_err(), "{bad}");
        }
    }
}
