//! The CAs of other replicas, which stay in the registration for a while.
//!
//! After a change of the CA, the files of replicas follow at different times. If each replica
//! registered only its own CA, the API server would trust only the one that wrote last.

use std::{collections::HashMap, time::Duration};

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration as Registration;
use tokio::time::Instant;

use crate::certificate::{
    pki::{self, certificates},
    registered::bundles,
};

/// For how long a CA stays that is not this replica's. Kubelets update a Secret volume within about
/// two minutes, by their periods of synchronization and of their cache; then the replica reads it.
const STAYS: Duration = Duration::from_secs(600);
/// The most such CAs.
const MOST: usize = 8;

/// When the CAs of others were first seen in the registration, by their PEM text.
#[derive(Debug, Default)]
pub(super) struct Others(HashMap<String, Instant>);

impl Others {
    /// Returns what to register: the CAs of this replica, `ours`, and those others in `found` that
    /// were not there for long. The text of `found` stays if it says the same.
    pub(super) fn beside(
        &mut self,
        ours: &str,
        found: Option<&Registration>,
        now: Instant,
    ) -> String {
        let present = found.map(bundles).unwrap_or_default();
        let all = present.iter().flat_map(|text| certificates(text));
        let own: Vec<String> = certificates(ours).collect();
        let mut others: Vec<String> = all.filter(|one| !own.contains(one)).collect();
        others.sort();
        others.dedup();
        self.0.retain(|known, _| others.contains(known));
        others.retain(|one| {
            let since = *self.0.entry(one.clone()).or_insert(now);
            // A text that is no certificate could make the API server refuse them all.
            now - since < STAYS && pki::expiry("the registration", one.as_bytes()).is_ok()
        });
        others.truncate(MOST);
        let wanted = pki::joined(ours, others.iter().map(String::as_str));
        let sorted = |text: &str| {
            let mut all: Vec<String> = certificates(text).collect();
            all.sort();
            all
        };
        match present.first() {
            Some(text)
                if present.iter().all(|one| one == text) && sorted(text) == sorted(&wanted) =>
            {
                text.clone()
            }
            _ => wanted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registration::{WebhookTarget, registration};

    fn ca() -> String {
        let made = rcgen::generate_simple_self_signed(["x".to_owned()]).unwrap();
        let pem = made.cert.pem().replace("\r\n", "\n");
        format!("{}\n", pem.trim())
    }

    fn registered(bundle: &str) -> Registration {
        let target = WebhookTarget::Url("https://h:1".to_owned());
        registration(&target, &[], bundle.as_bytes())
    }

    #[test]
    fn replicas_with_different_cas_agree_on_both() {
        let (old, new, now) = (ca(), ca(), Instant::now());
        let (mut a, mut b) = (Others::default(), Others::default());
        assert_eq!(a.beside(&old, None, now), old);
        let both = a.beside(&new, Some(&registered(&old)), now);
        assert_eq!(both, format!("{new}{old}"));
        // The other one changes nothing, in whichever order it would write.
        assert_eq!(b.beside(&old, Some(&registered(&both)), now), both);
        assert_eq!(a.beside(&new, Some(&registered(&both)), now), both);
        // Both have the new one: the first to whom the old one is too old removes it.
        let later = now + STAYS;
        assert_eq!(b.beside(&new, Some(&registered(&both)), later), both);
        assert_eq!(a.beside(&new, Some(&registered(&both)), later), new);
        assert_eq!(b.beside(&new, Some(&registered(&new)), later), new);
    }

    #[test]
    fn what_is_no_ca_does_not_stay() {
        let (own, now) = (ca(), Instant::now());
        let block = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for garbage in ["", "text", block, &format!("{own}{block}")] {
            let found = registered(garbage);
            assert_eq!(Others::default().beside(&own, Some(&found), now), own);
        }
        let many: String = (0..2 * MOST).map(|_| ca()).collect();
        let joined = Others::default().beside(&own, Some(&registered(&many)), now);
        assert_eq!(certificates(&joined).count(), 1 + MOST);
        // One entry lacks what the others have.
        let other = ca();
        let mut found = registered(&format!("{own}{other}"));
        let entries = found.webhooks.as_mut().unwrap();
        entries[1].client_config.ca_bundle = None;
        let joined = Others::default().beside(&own, Some(&found), now);
        assert_eq!(joined, format!("{own}{other}"));
    }
}
