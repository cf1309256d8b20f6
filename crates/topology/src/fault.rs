//! Why a GPU is marked as broken.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::RecoveryAction;

/// Why a GPU is marked as broken, so that placements leave it out or rank it last.
///
/// In documents and in label values it is one word, such as `missing-links` or `xid-74`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Fault {
    /// NVLinks that should be up are not ([`crate::missing_links`]).
    MissingLinks,
    /// Its registration with the NVLink fabric is not complete, or the fabric reports a
    /// problem of it.
    Fabric,
    /// The driver asks for this action, one that
    /// [breaks the GPU](RecoveryAction::breaks_gpu).
    Recovery(RecoveryAction),
    /// Rows of its memory wait to be remapped, which a reset does.
    RowRemapPending,
    /// Rows of its memory could not be remapped.
    RowRemapFailed,
    /// The driver reported this XID, after which the GPU needs a reset, and has no recovery
    /// action that would say so.
    Xid(u64),
    /// A word of another version of this project.
    Other(String),
}

const MISSING_LINKS: &str = "missing-links";
const FABRIC: &str = "fabric";
const RECOVERY: &str = "recovery-";
const ROW_REMAP_PENDING: &str = "row-remap-pending";
const ROW_REMAP_FAILED: &str = "row-remap-failed";
const XID: &str = "xid-";

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingLinks => f.write_str(MISSING_LINKS),
            Self::Fabric => f.write_str(FABRIC),
            Self::Recovery(action) => {
                write!(f, "{RECOVERY}{}", action.as_str().replace('_', "-"))
            }
            Self::RowRemapPending => f.write_str(ROW_REMAP_PENDING),
            Self::RowRemapFailed => f.write_str(ROW_REMAP_FAILED),
            Self::Xid(xid) => write!(f, "{XID}{xid}"),
            Self::Other(word) => f.write_str(word),
        }
    }
}

impl From<String> for Fault {
    fn from(word: String) -> Self {
        let xid = |number: &str| {
            let xid: u64 = number.parse().ok()?;
            // Another spelling of the same number must not become a second fault.
            (xid.to_string() == number).then_some(Self::Xid(xid))
        };
        let action = |name: &str| {
            let mut all = RecoveryAction::ALL.iter().copied().map(Self::Recovery);
            all.find(|fault| fault.to_string().strip_prefix(RECOVERY) == Some(name))
        };
        match word.as_str() {
            MISSING_LINKS => Self::MissingLinks,
            FABRIC => Self::Fabric,
            ROW_REMAP_PENDING => Self::RowRemapPending,
            ROW_REMAP_FAILED => Self::RowRemapFailed,
            other => {
                let of_driver = other.strip_prefix(RECOVERY).and_then(action);
                let of_xid = || other.strip_prefix(XID).and_then(xid);
                of_driver.or_else(of_xid).unwrap_or(Self::Other(word))
            }
        }
    }
}

impl From<Fault> for String {
    fn from(fault: Fault) -> Self {
        fault.to_string()
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Fault {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Fault".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        // Not an enum: a later version may write further words.
        schemars::json_schema!({
            "type": "string",
            "maxLength": 63,
            "pattern": "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stay_as_they_are() {
        for (word, fault) in [
            ("missing-links", Fault::MissingLinks),
            ("fabric", Fault::Fabric),
            (
                "recovery-gpu-reset",
                Fault::Recovery(RecoveryAction::GpuReset),
            ),
            (
                "recovery-drain-p2p",
                Fault::Recovery(RecoveryAction::DrainP2p),
            ),
            ("recovery-rest", Fault::Other("recovery-rest".to_owned())),
            ("row-remap-pending", Fault::RowRemapPending),
            ("row-remap-failed", Fault::RowRemapFailed),
            ("xid-74", Fault::Xid(74)),
            ("xid-074", Fault::Other("xid-074".to_owned())),
            ("xid-", Fault::Other("xid-".to_owned())),
            ("row-remap", Fault::Other("row-remap".to_owned())),
        ] {
            let read: Fault = serde_json::from_value(word.into()).unwrap();
            assert_eq!(read, fault);
            assert_eq!(serde_json::to_value(&read).unwrap(), word);
        }
    }
}
