//! The driver's own verdict on a GPU: what must be done with it, and the state of its memory.
//!
//! The driver also has an event for a new recovery action (`nvmlEventTypeGpuRecoveryAction`).
//! It is not watched: each reading asks for the action itself, and older drivers refuse to
//! watch a GPU for events of which one is unknown to them, XIDs included.

use nvlink_topology::RecoveryAction;
use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings::field_id::{
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, NVML_FI_DEV_REMAPPED_FAILURE, NVML_FI_DEV_REMAPPED_PENDING,
};

use super::{
    error::Trouble,
    failures::{Failures, detail},
    fields::FIELDS,
    raw,
};
use crate::RowRemap;

/// What the driver says of a GPU. What it does not say is absent.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    pub(super) recovery: Option<RecoveryAction>,
    pub(super) row_remap: Vec<(RowRemap, bool)>,
}

/// Asks the driver.
///
/// # Errors
/// When the GPU or the library is lost.
pub(super) fn read(device: &Device<'_>, failures: &mut Failures) -> Result<Verdict, Trouble> {
    const WANTED: [u32; 3] = [
        NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
        NVML_FI_DEV_REMAPPED_PENDING,
        NVML_FI_DEV_REMAPPED_FAILURE,
    ];
    let mut verdict = Verdict::default();
    let answers = raw::field_values(device, &WANTED.map(|id| (id, 0)));
    let answers = failures.ask(detail(FIELDS), answers)?.given();
    for (answer, id) in answers.into_iter().flatten().zip(WANTED) {
        let value = failures.ask(detail(FIELDS).of_field(id), answer)?.given();
        let Some(value) = value else { continue };
        match id {
            NVML_FI_DEV_REMAPPED_PENDING => {
                verdict.row_remap.push((RowRemap::Pending, value != 0));
            }
            NVML_FI_DEV_REMAPPED_FAILURE => verdict.row_remap.push((RowRemap::Failed, value != 0)),
            _ => verdict.recovery = Some(RecoveryAction::of_nvml(value)),
        }
    }
    Ok(verdict)
}
