//! The faults of a simulated node.

use nvlink_topology::{
    RecoveryAction,
    profile::{Profile, Wiring},
};
use serde::{Deserialize, Serialize};

use super::{errors, health};
use crate::{ErrorKind, FabricCondition, FabricState, RowRemap};

/// The maximum number of faults at a time.
const MOST_FAULTS: usize = 1024;
/// The maximum number of errors per hour on a link, more than any link survives.
const MOST_ERRORS: u64 = 1_000_000_000_000;

/// One fault. In JSON its name is the key: `{"link-down": {"gpu": 3, "link": 7}}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
#[serde(
    rename_all = "kebab-case",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
pub enum Fault {
    /// The link is down, and so is the far end of a direct one.
    LinkDown {
        /// Index of the GPU.
        gpu: u32,
        /// Index of the link on the GPU.
        link: u32,
        /// The far end of a direct link still reports it as up.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        one_sided: bool,
    },
    Errors {
        /// Index of the GPU.
        gpu: u32,
        /// Index of the link on the GPU.
        link: u32,
        kind: ErrorKind,
        /// Errors per hour.
        per_hour: u64,
    },
    /// The source does not answer: a reading blocks until the fault is cleared.
    Hang,
    /// The GPU fell off the bus.
    GpuLost {
        /// Index of the GPU.
        gpu: u32,
    },
    /// The GPU has been gone since the node booted: the driver has never listed it.
    GpuAbsent {
        /// Index of the GPU.
        gpu: u32,
    },
    /// The links are trained, but there is no routing between them.
    FabricDown {
        /// State of the registration: `not_started` (the default), `in_progress` or `failed`.
        #[serde(default = "not_started")]
        state: FabricState,
    },
    /// The fabric manager reports this condition of the GPU.
    FabricCondition {
        /// Index of the GPU.
        gpu: u32,
        condition: FabricCondition,
    },
    /// The driver asks for this action.
    RecoveryAction {
        /// Index of the GPU.
        gpu: u32,
        action: RecoveryAction,
    },
    /// Rows of the GPU's memory wait to be remapped, or could not be.
    RowRemap {
        /// Index of the GPU.
        gpu: u32,
        state: RowRemap,
    },
    /// No port of the NIC is active.
    NicDown {
        /// Name of the NIC.
        nic: String,
    },
    /// The driver reports this error once, when the fault is set. It asks for no action then;
    /// `recovery-action` does.
    Xid {
        /// Index of the GPU.
        gpu: u32,
        xid: u64,
    },
    /// The GPU was reset once, when the fault is set: its links count from zero.
    GpuReset {
        /// Index of the GPU.
        gpu: u32,
    },
    /// The GPU's links carry this much all the time, in place of the simulated job's rounds.
    Traffic {
        /// Index of the GPU.
        gpu: u32,
        /// Percent of the line rate, 0 to 100. At 0 the links are idle.
        percent: u8,
    },
    /// The driver does not count bytes on the GPU's links: it has only rates.
    RatesOnly {
        /// Index of the GPU.
        gpu: u32,
    },
}

fn not_started() -> FabricState {
    FabricState::NotStarted
}

/// An invalid list of faults.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("faults{path}: {reason}")]
pub struct BadFaults {
    /// Path in the list: `[2].link-down.gpu`.
    pub path: String,
    /// What is wrong, and which values are valid.
    pub reason: String,
}

/// Parses the JSON list `text` of faults of `profile`.
///
/// # Errors
/// When it is not such a list, or names something that the board does not have.
pub(super) fn parse(profile: &Profile, text: &[u8]) -> Result<Vec<Fault>, BadFaults> {
    let mut json = serde_json::Deserializer::from_slice(text);
    let bad = |path: String, reason: String| BadFaults { path, reason };
    let faults: Vec<Fault> = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let path = path.trim_start_matches('.').to_owned();
        bad(path, error.inner().to_string())
    })?;
    json.end()
        .map_err(|error| bad(String::new(), error.to_string()))?;
    if faults.len() > MOST_FAULTS {
        let reason = format!(
            "{} entries; at most {MOST_FAULTS} are allowed",
            faults.len()
        );
        return Err(bad(String::new(), reason));
    }
    for (n, fault) in faults.iter().enumerate() {
        check(profile, fault).map_err(|(key, reason)| bad(format!("[{n}].{key}"), reason))?;
    }
    Ok(faults)
}

/// Checks that the board has the parts that `fault` names. The error is a key and a reason.
fn check(profile: &Profile, fault: &Fault) -> Result<(), (String, String)> {
    let name = fault.name();
    let at = |key: &str| format!("{name}.{key}");
    if let Some(gpu) = fault
        .gpu()
        .filter(|&gpu| gpu as usize >= profile.gpus.len())
    {
        let last = profile.gpus.len() - 1;
        let reason = format!("no GPU {gpu}; {} has GPUs 0 to {last}", profile.name);
        return Err((at("gpu"), reason));
    }
    match fault {
        Fault::LinkDown { gpu, link, .. } | Fault::Errors { gpu, link, .. }
            if *link >= links_of(profile, *gpu) =>
        {
            let reason = match links_of(profile, *gpu) {
                0 => format!("no link {link}; {} has no NVLink", profile.name),
                links => format!("no link {link}; GPU {gpu} has links 0 to {}", links - 1),
            };
            Err((at("link"), reason))
        }
        Fault::LinkDown {
            one_sided: true, ..
        } if !matches!(profile.wiring, Wiring::Direct(_)) => {
            let reason = format!("{} has no link from GPU to GPU", profile.name);
            Err((at("oneSided"), reason))
        }
        Fault::Errors { kind, .. } if !errors::kinds(profile).contains(kind) => {
            let known: Vec<_> = errors::kinds(profile)
                .iter()
                .map(|one| one.as_str())
                .collect();
            let (kind, name) = (kind.as_str(), profile.name);
            let reason = format!(
                "{name} does not count {kind}; it counts {}",
                known.join(", ")
            );
            Err((at("kind"), reason))
        }
        Fault::Errors { per_hour, .. } if *per_hour > MOST_ERRORS => {
            Err((at("perHour"), format!("more than {MOST_ERRORS}")))
        }
        Fault::Traffic { percent, .. } if *percent > 100 => {
            Err((at("percent"), "more than 100".to_owned()))
        }
        Fault::NicDown { nic } => check_nic(profile, nic).map_err(|reason| (at("nic"), reason)),
        Fault::RecoveryAction { .. } | Fault::RowRemap { .. } => check_verdict(profile, fault),
        _ => check_fabric(profile, fault),
    }
}

fn check_nic(profile: &Profile, nic: &str) -> Result<(), String> {
    let names: Vec<_> = profile.nics.iter().map(|one| one.name).collect();
    match &names[..] {
        names if names.contains(&nic) => Ok(()),
        [] => Err(format!("no NIC {nic:?}; {} has none", profile.name)),
        _ => Err(format!(
            "no NIC {nic:?}; {} has {}",
            profile.name,
            names.join(", ")
        )),
    }
}

fn check_verdict(profile: &Profile, fault: &Fault) -> Result<(), (String, String)> {
    let name = fault.name();
    match fault {
        Fault::RecoveryAction {
            action: RecoveryAction::None,
            ..
        } => Err((format!("{name}.action"), "none is not a fault".to_owned())),
        _ if !health::has_verdict(profile) => {
            let board = profile.name;
            let reason = format!("the driver does not report it of the GPUs of {board}");
            Err((name.to_owned(), reason))
        }
        _ => Ok(()),
    }
}

fn check_fabric(profile: &Profile, fault: &Fault) -> Result<(), (String, String)> {
    let name = fault.name();
    match fault {
        Fault::FabricDown {
            state: FabricState::Completed,
        } => {
            let reason = "completed is not a fault; use not_started, in_progress or failed";
            Err((format!("{name}.state"), reason.to_owned()))
        }
        Fault::FabricDown { .. } if !profile.is_switched() => {
            Err((name.to_owned(), format!("{} has no switches", profile.name)))
        }
        Fault::FabricCondition { .. } if !profile.knows_fabric() => {
            let reason = format!("the GPUs of {} do not report on their fabric", profile.name);
            Err((name.to_owned(), reason))
        }
        _ => Ok(()),
    }
}

fn links_of(profile: &Profile, gpu: u32) -> u32 {
    match profile.wiring {
        Wiring::Direct(pairs) => pairs
            .iter()
            .filter(|(a, b, _)| *a == gpu || *b == gpu)
            .map(|(_, _, links)| links)
            .sum(),
        Wiring::None => 0,
        _ => profile.links,
    }
}

impl Fault {
    /// Returns the name, as in JSON.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.into()
    }

    /// Returns the GPU that has the fault.
    fn gpu(&self) -> Option<u32> {
        match *self {
            Self::LinkDown { gpu, .. }
            | Self::Errors { gpu, .. }
            | Self::GpuLost { gpu }
            | Self::GpuAbsent { gpu }
            | Self::FabricCondition { gpu, .. }
            | Self::RecoveryAction { gpu, .. }
            | Self::RowRemap { gpu, .. }
            | Self::Xid { gpu, .. }
            | Self::GpuReset { gpu }
            | Self::RatesOnly { gpu }
            | Self::Traffic { gpu, .. } => Some(gpu),
            Self::Hang | Self::FabricDown { .. } | Self::NicDown { .. } => None,
        }
    }
}
