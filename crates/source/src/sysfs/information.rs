//! `/proc/driver/nvidia/gpus/ADDRESS/information`: what the driver reports about
//! a GPU without its library. A container sees only the GPUs injected into it.

use super::{
    SysfsError,
    root::{Root, attribute},
};
use crate::pci::Address;

/// What the driver reports about one GPU; unknown values are absent.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Information {
    pub(super) model: Option<String>,
    pub(super) uuid: Option<String>,
    /// The driver is configured to exclude the GPU; NVML does not number it.
    pub(super) excluded: bool,
}

/// Reads the information about the GPU at `address`; empty if the driver is not loaded.
pub(super) fn read(root: &Root, address: Address) -> Result<Information, SysfsError> {
    let gpus = root.path("proc/driver/nvidia/gpus");
    let directory = root.resolve(&gpus.join(address.kernel_name()))?;
    let text = directory.and_then(|directory| attribute(&directory, "information"));
    Ok(text.as_deref().map(parse).unwrap_or_default())
}

fn parse(text: &str) -> Information {
    let value = |key: &str| {
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        let value = lines.find(|(name, _)| name.trim() == key)?.1.trim();
        Some(value.to_owned())
    };
    let printable = |text: &String| !text.is_empty() && !text.contains(char::is_control);
    Information {
        model: value("Model").filter(|model| printable(model) && model != "Unknown"),
        // `GPU-????????-…` before the GPU is first used.
        uuid: value("GPU UUID").filter(|uuid| {
            let good = |b: u8| b.is_ascii_hexdigit() || b == b'-';
            uuid.strip_prefix("GPU-")
                .is_some_and(|rest| rest.bytes().all(good))
        }),
        excluded: value("GPU Excluded").is_some_and(|value| value == "Yes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_s_padding_is_removed() {
        let text = "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 10\n\
                    GPU UUID: \t GPU-9221d5d1-b60b-a624-bf14-0a1819cfda3b\n\
                    Bus Location: \t 0000:62:00.0\nGPU Excluded:\t Yes\n";
        let expected = Information {
            model: Some("NVIDIA H100 80GB HBM3".to_owned()),
            uuid: Some("GPU-9221d5d1-b60b-a624-bf14-0a1819cfda3b".to_owned()),
            excluded: true,
        };
        assert_eq!(parse(text), expected);
    }

    #[test]
    fn what_the_driver_does_not_know_is_absent() {
        let text = "Model: \t\t Unknown\nGPU UUID: \t GPU-????????-????-????-????-????????????\n\
                    GPU Excluded:\t No\n";
        assert_eq!(parse(text), Information::default());
        assert_eq!(parse(""), Information::default());
        assert_eq!(
            parse("Model: \u{1b}[2J\nGPU UUID: GPU-\tx"),
            Information::default()
        );
    }
}
