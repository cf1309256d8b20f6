//! What the driver says must be done with a GPU before it works again.

use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

/// What the driver asks for, its own verdict on a GPU: the values of
/// `nvmlDeviceGpuRecoveryAction_t` (`nvml.h`), which NVML's field 230 returns since driver
/// R565.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    IntoStaticStr,
    VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum RecoveryAction {
    /// Nothing: the GPU can be used.
    None,
    /// End the processes on the GPU, and reset it.
    GpuReset,
    /// Reboot the node: the operating system may be inconsistent.
    NodeReboot,
    /// End the processes that communicate from GPU to GPU. The driver then asks for another
    /// action, or for none.
    DrainP2p,
    /// The GPU works at reduced capacity: start nothing new on it, and reset it when its
    /// processes have ended.
    DrainAndReset,
    /// Recover the IMEX domain, by which nodes of one fabric share memory (R595 and later).
    RecoverImexDomain,
    /// Reset the GPU's PCIe bus.
    BusReset,
    /// Reboot the system.
    SystemReboot,
    /// An action that this version does not know.
    Other,
}

impl RecoveryAction {
    /// All of them, in the order of NVML's numbers.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// Returns the action with this number in NVML.
    #[must_use]
    pub fn of_nvml(number: u64) -> Self {
        let known = usize::try_from(number).ok();
        let action = known.and_then(|number| Self::ALL.get(number));
        action.copied().unwrap_or(Self::Other)
    }

    /// Returns the word used in JSON and in label values.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Reports whether the GPU itself is broken until the action was taken.
    ///
    /// To recover the IMEX domain is about the processes that share memory between nodes; the
    /// GPU works. NVIDIA's DRA driver decides the same: to it, this action and none leave a
    /// GPU healthy, and all others, unknown ones included, do not
    /// (kubernetes-sigs/dra-driver-nvidia-gpu, `IsEventNonFatal`).
    #[must_use]
    pub fn breaks_gpu(self) -> bool {
        !matches!(self, Self::None | Self::RecoverImexDomain)
    }
}
