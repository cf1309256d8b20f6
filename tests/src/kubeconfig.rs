//! Kubeconfig files.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// The address of the API server, and the CA to trust.
#[derive(Clone, Debug)]
pub(crate) struct Server<'a> {
    pub(crate) url: &'a str,
    pub(crate) authority: &'a Path,
}

/// Writes a kubeconfig for the holder of `token`, acting as `user` if given.
pub(crate) fn write(
    path: &Path,
    server: &Server<'_>,
    token: &str,
    user: Option<&str>,
) -> Result<()> {
    let mut identity = json!({"token": token});
    if let Some(user) = user {
        // The API server itself adds the groups of a service account.
        identity["as"] = Value::from(user);
    }
    // YAML is a superset of JSON.
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{
            "name": "test",
            "cluster": {"server": server.url, "certificate-authority": server.authority},
        }],
        "users": [{"name": "test", "user": identity}],
    });
    let text = serde_json::to_string_pretty(&config)?;
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}
