//! The architecture of a product, from its name, and what its NVML answers.

use nvml_wrapper_sys::bindings::{
    NVML_DEVICE_ARCH_ADA as ADA, NVML_DEVICE_ARCH_AMPERE as AMPERE,
    NVML_DEVICE_ARCH_BLACKWELL as BLACKWELL, NVML_DEVICE_ARCH_HOPPER as HOPPER,
    NVML_DEVICE_ARCH_PASCAL as PASCAL, NVML_DEVICE_ARCH_TURING as TURING, NVML_DEVICE_ARCH_UNKNOWN,
    NVML_DEVICE_ARCH_VOLTA as VOLTA,
};

use crate::config::Counter;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Generation {
    pub(crate) architecture: u32,
    pub(crate) compute_capability: (i32, i32),
    pub(crate) pcie_generation: u32,
    /// NVML's enum value, which is not the number of the generation.
    pub(crate) nvlink_version: u32,
}

/// Words of product names, in the order in which they are searched.
const MODELS: [(&str, u32, (i32, i32)); 24] = [
    ("P100", PASCAL, (6, 0)),
    ("V100", VOLTA, (7, 0)),
    ("RTX 6000 ADA", ADA, (8, 9)),
    ("RTX 5000 ADA", ADA, (8, 9)),
    ("RTX 5000", TURING, (7, 5)),
    ("RTX 6000", TURING, (7, 5)),
    ("RTX 8000", TURING, (7, 5)),
    ("T4", TURING, (7, 5)),
    ("A100", AMPERE, (8, 0)),
    ("A800", AMPERE, (8, 0)),
    ("A30", AMPERE, (8, 0)),
    ("A6000", AMPERE, (8, 6)),
    ("A5000", AMPERE, (8, 6)),
    ("A40", AMPERE, (8, 6)),
    ("3090", AMPERE, (8, 6)),
    ("L40", ADA, (8, 9)),
    ("L4", ADA, (8, 9)),
    ("H100", HOPPER, (9, 0)),
    ("H200", HOPPER, (9, 0)),
    ("H800", HOPPER, (9, 0)),
    ("H20", HOPPER, (9, 0)),
    ("B300", BLACKWELL, (10, 3)),
    ("B200", BLACKWELL, (10, 0)),
    ("B100", BLACKWELL, (10, 0)),
];

impl Generation {
    pub(crate) fn of(model: &str) -> Self {
        let model = model.to_ascii_uppercase();
        let known = MODELS.iter().find(|(word, ..)| model.contains(word));
        let (architecture, compute_capability) =
            known.map_or((NVML_DEVICE_ARCH_UNKNOWN, (0, 0)), |one| (one.1, one.2));
        Self {
            architecture,
            compute_capability,
            pcie_generation: match architecture {
                PASCAL | VOLTA | TURING => 3,
                AMPERE | ADA => 4,
                _ => 5,
            },
            nvlink_version: match architecture {
                PASCAL => 1,
                VOLTA => 2,
                TURING => 3,
                AMPERE | ADA => 5,
                HOPPER => 6,
                _ => 7,
            },
        }
    }

    fn at_least(self, architecture: u32) -> bool {
        self.architecture != NVML_DEVICE_ARCH_UNKNOWN && self.architecture >= architecture
    }

    pub(crate) fn is_ampere_or_later(self) -> bool {
        self.at_least(AMPERE)
    }

    pub(crate) fn is_hopper_or_later(self) -> bool {
        self.at_least(HOPPER)
    }

    pub(crate) fn is_blackwell_or_later(self) -> bool {
        self.at_least(BLACKWELL)
    }

    /// Reports whether the error counters up to Hopper answer.
    pub(crate) fn counts_old_errors(self) -> bool {
        !self.is_blackwell_or_later()
    }

    /// Reports whether corrected errors of a link's memory are counted.
    pub(crate) fn counts_ecc(self) -> bool {
        matches!(self.architecture, AMPERE | ADA | HOPPER)
    }

    pub(crate) fn knows_mig(self) -> bool {
        let (major, minor) = self.compute_capability;
        major >= 9 || (major, minor) == (8, 0)
    }

    pub(crate) fn knows_switch_count(self) -> bool {
        self.at_least(VOLTA)
    }

    pub(crate) fn counters(self) -> &'static [Counter] {
        match self.architecture {
            PASCAL => &[],
            HOPPER => &[Counter::ThroughputData, Counter::Gpm],
            BLACKWELL => &[Counter::ThroughputData, Counter::Nvlink5Bytes, Counter::Gpm],
            _ => &[Counter::ThroughputData],
        }
    }

    /// Returns PCI device and vendor of the GPU, as in `pciDeviceId`. They are approximate,
    /// since nothing reads them.
    pub(crate) fn pci_device_id(self) -> u32 {
        let device = match self.architecture {
            PASCAL => 0x15f9,
            VOLTA => 0x1db5,
            TURING => 0x1eb8,
            AMPERE => 0x20b2,
            ADA => 0x26b9,
            HOPPER => 0x2330,
            _ => 0x2901,
        };
        device << 16 | 0x10de
    }

    /// Returns PCI device and vendor of the NVSwitch of the same generation.
    pub(crate) fn switch_device_id(self) -> u32 {
        let device = match self.architecture {
            VOLTA => 0x1ac2,
            AMPERE => 0x1af1,
            _ => 0x22a3,
        };
        device << 16 | 0x10de
    }
}
