//! The XIDs after which a GPU is broken, for drivers that give no verdict of their own.

/// Reports whether a GPU is broken after `xid`, until it is reset.
///
/// Source: NVIDIA's Xid catalog, <https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html>.
/// These are the XIDs whose immediate action is to reset the GPU or to restart the machine:
///
/// - 46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 150, 156 and 158: `RESET_GPU`. Each
///   sub-code of 150 has it.
/// - 48, double bit ECC error: reset, by its workflow.
/// - 74, NVLink error up to Hopper: "A GPU reset or node reboot is needed to clear this error."
/// - 79, fell off the bus: `RESTART_BM`.
///
/// Not among them:
///
/// - 144 to 149, NVLink errors since Blackwell. Most sub-codes of 144 to 148 are not fatal and
///   many of 149 are ignored, and NVML's event has no sub-code. What is wrong mostly shows
///   otherwise: 48 follows a fatal error of 144 to 146, and a link that went down is missing.
///   A fatal 149 may show only so.
/// - 155, an NVLink error that software defines: `RESET_GPU`, but also links that were taken
///   down on purpose cause it. If they should be up, they are missing.
/// - 154, which says that the recovery action changed: the action is the verdict.
#[must_use]
pub fn breaks(xid: u64) -> bool {
    matches!(
        xid,
        46 | 48
            | 62
            | 64
            | 74
            | 79
            | 95
            | 109
            | 110
            | 119
            | 120
            | 136
            | 140
            | 143
            | 150
            | 156
            | 158
    )
}
