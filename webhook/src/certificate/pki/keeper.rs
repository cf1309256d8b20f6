//! Who creates and renews the CA: the controller, which is this process or another one.

use std::time::{Duration, SystemTime};

use kube::Client;
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval, sleep},
};

use super::{PkiError, SecretName, Trust, secret};

/// The time between two looks at a Secret that the controller has not filled yet.
const PAUSE: Duration = Duration::from_secs(1);

/// Who maintains the CA in the Secret.
#[derive(Clone)]
pub enum Upkeep {
    /// This process, also for others.
    Here(Client),
    /// The controller, in another process; this one only reads.
    Elsewhere(Client),
}

impl Upkeep {
    /// Returns the CA of the Secret: creates it, or waits until the controller has.
    ///
    /// # Errors
    /// When the Secret cannot be read or written, or holds something else.
    pub(super) async fn first(
        &self,
        name: &SecretName,
        now: SystemTime,
    ) -> Result<Trust, PkiError> {
        let client = match self {
            Self::Here(client) => return secret::ensure(client, name, None, now).await,
            Self::Elsewhere(client) => client,
        };
        let mut told = false;
        loop {
            if let Some(trust) = secret::read(client, name).await? {
                return Ok(trust);
            }
            if !told {
                tracing::info!(secret = %name, "waiting until `nvlink-webhook controller` fills the Secret");
                told = true;
            }
            sleep(PAUSE).await;
        }
    }

    /// Returns the CA of the Secret now, after the one `known` so far.
    ///
    /// # Errors
    /// As [`Upkeep::first`]; also when the Secret is empty and the controller must fill it.
    pub(super) async fn look(
        &self,
        name: &SecretName,
        known: &Trust,
        now: SystemTime,
    ) -> Result<Trust, PkiError> {
        match self {
            Self::Here(client) => secret::ensure(client, name, Some(known), now).await,
            Self::Elsewhere(client) => {
                let found = secret::read(client, name).await?;
                found.ok_or_else(|| PkiError::Empty(name.clone()))
            }
        }
    }
}

/// The CA of the controller, which no process that serves writes.
#[derive(Clone)]
pub struct Keeper {
    client: Client,
    secret: SecretName,
    trust: Trust,
    bundle: watch::Sender<String>,
}

impl Keeper {
    /// Reads the CA from its Secret, or creates it.
    ///
    /// # Errors
    /// When the Secret cannot be read or written, or holds something else.
    pub async fn start(client: Client, secret: SecretName) -> Result<Self, PkiError> {
        let trust = secret::ensure(&client, &secret, None, SystemTime::now()).await?;
        let bundle = watch::Sender::new(trust.bundle.clone());
        Ok(Self {
            client,
            secret,
            trust,
            bundle,
        })
    }

    /// Returns a receiver of the CAs that the API server must trust, which follows the Secret.
    #[must_use]
    pub fn bundle(&self) -> watch::Receiver<String> {
        self.bundle.subscribe()
    }

    /// Checks the Secret and the clock, forever.
    pub async fn follow(mut self, every: Duration) {
        let mut tick = interval(every);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            let now = SystemTime::now();
            match secret::ensure(&self.client, &self.secret, Some(&self.trust), now).await {
                Ok(found) if found.bundle == self.trust.bundle => self.trust = found,
                Ok(found) => {
                    self.bundle.send_replace(found.bundle.clone());
                    self.trust = found;
                }
                Err(error) => tracing::warn!(%error, "continuing with the CA in memory"),
            }
        }
    }
}
