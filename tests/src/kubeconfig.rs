//! Kubeconfig files.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// The address of the API server, and the CA to trust.
#[derive(Clone, Debug)]
pub(crate) struct Server<'a> {
    pub(crate) url: &'a str,
    pub(crate) authority: &'a Path,
    /// The name in its certificate, if the address is not in it.
    pub(crate) name: Option<&'a str>,
}

/// Whom the API server sees.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct User<'a> {
    pub(crate) token: &'a str,
    /// The user as whom the holder of the token acts.
    pub(crate) name: Option<&'a str>,
    /// The groups of that user. The API server itself adds those of a service account.
    pub(crate) groups: &'a [&'a str],
}

/// Writes a kubeconfig for `user`.
pub(crate) fn write(path: &Path, server: &Server<'_>, user: User<'_>) -> Result<()> {
    let mut identity = json!({"token": user.token});
    if let Some(name) = user.name {
        identity["as"] = Value::from(name);
        if !user.groups.is_empty() {
            identity["as-groups"] = Value::from(user.groups);
        }
    }
    let mut cluster = json!({
        "server": server.url,
        "certificate-authority": server.authority,
    });
    if let Some(name) = server.name {
        cluster["tls-server-name"] = Value::from(name);
    }
    // YAML is a superset of JSON.
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": identity}],
    });
    let text = serde_json::to_string_pretty(&config)?;
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Returns a client with the server and the rights of a kubeconfig.
pub(crate) async fn client(path: &Path) -> Result<kube::Client> {
    let file = kube::config::Kubeconfig::read_from(path)?;
    let config = kube::Config::from_custom_kubeconfig(file, &Default::default()).await?;
    Ok(kube::Client::try_from(config)?)
}
