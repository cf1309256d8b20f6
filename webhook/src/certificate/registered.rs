//! Whether the API server trusts a CA: before that, no certificate of it may be used.

use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhook, MutatingWebhookConfiguration as Registration,
};
use kube::{Api, Client};
use nvlink_api::REGISTRATION;
use nvlink_runtime::client;
use tokio::sync::watch;

use super::pki::certificates;

/// Who writes the registration.
#[derive(Clone)]
pub enum Registered {
    /// This process: the CAs that it wrote last.
    Here(watch::Receiver<String>),
    /// The controller, in another process.
    Elsewhere(Client),
}

impl Registered {
    /// Reports whether the registration names all CAs of `bundle`, PEM. What cannot be read does
    /// not; the log says so.
    pub async fn trusts(&self, bundle: &str) -> bool {
        match self {
            Self::Here(written) => covers(&written.borrow(), bundle),
            Self::Elsewhere(client) => match read(client).await {
                Ok(entries) => {
                    !entries.is_empty() && entries.iter().all(|entry| covers(entry, bundle))
                }
                Err(error) => {
                    let reason = client::reason(&error);
                    tracing::warn!(name = REGISTRATION, reason, "cannot read the registration");
                    false
                }
            },
        }
    }
}

/// Returns the CAs of each entry.
async fn read(client: &Client) -> kube::Result<Vec<String>> {
    let api: Api<Registration> = Api::all(client.clone());
    let found = api.get_opt(REGISTRATION).await?;
    Ok(found.as_ref().map(bundles).unwrap_or_default())
}

/// Returns the CAs of each entry, PEM.
pub(crate) fn bundles(registration: &Registration) -> Vec<String> {
    let entries = registration.webhooks.iter().flatten();
    let bundle = |entry: &MutatingWebhook| {
        let bundle = entry.client_config.ca_bundle.as_ref();
        bundle.map_or_else(String::new, |text| {
            String::from_utf8_lossy(&text.0).into_owned()
        })
    };
    entries.map(bundle).collect()
}

fn covers(known: &str, bundle: &str) -> bool {
    let known: Vec<String> = certificates(known).collect();
    certificates(bundle).all(|one| known.contains(&one))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ca() -> String {
        let made = rcgen::generate_simple_self_signed(["x".to_owned()]).unwrap();
        made.cert.pem().replace("\r\n", "\n")
    }

    #[tokio::test]
    async fn all_cas_must_be_there() {
        let (old, new) = (ca(), ca());
        let (sender, written) = watch::channel(String::new());
        let registered = Registered::Here(written);
        assert!(!registered.trusts(&old).await);
        sender.send_replace(old.clone());
        assert!(registered.trusts(&old).await);
        assert!(!registered.trusts(&format!("{new}{old}")).await);
        sender.send_replace(format!("{old}{new}"));
        assert!(registered.trusts(&format!("{new}{old}")).await);
    }
}
