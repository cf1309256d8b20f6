//! Derives the properties of a GPU's NVLinks from its product name.

/// The NVLink properties of one GPU architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation {
    /// CUDA compute capability, major and minor as one number: 90 for Hopper.
    pub compute_capability: u32,
    /// Usable bandwidth of one link, bytes per second in one direction.
    ///
    /// These are NCCL's constants (`SM60_NVLINK_BW` and others in `src/graph/topo.h`):
    /// the bandwidth that its collectives reach, below the line rate.
    pub bytes_per_second_per_link: u64,
    /// Nominal bandwidth of one link, bytes per second in one direction: the figure of
    /// NVIDIA's data sheets, which users know (450 GB/s for the 18 links of an H100). The
    /// line rate that the driver reports is slightly higher, because it includes the
    /// encoding.
    pub nominal_bytes_per_second_per_link: u64,
    /// Bus bandwidth of an all-reduce of eight GPUs that NVSwitches add up (NVLS, NVLink SHARP),
    /// for each link of a GPU, bytes per second; `None` before Hopper, whose switches cannot.
    ///
    /// These are measurements of large messages: about 480 GB/s on eight H100 (`stas00/ml-engineering`,
    /// nccl#1161), 838 on eight B200, and 835 to 847 on a GB200 NVL72 (CoreWeave's nccl-tests), each
    /// over 18 links.
    pub in_switch_bytes_per_second_per_link: Option<u64>,
}

/// Returns a generation whose switches add up nothing; rates are in MB/s.
const fn generation(compute_capability: u32, usable: u64, nominal: u64) -> Generation {
    Generation {
        compute_capability,
        bytes_per_second_per_link: usable * 1_000_000,
        nominal_bytes_per_second_per_link: nominal * 1_000_000,
        in_switch_bytes_per_second_per_link: None,
    }
}

/// Returns `generation` with switches that add up; the rate is in MB/s.
const fn with_reduction(generation: Generation, in_switch: u64) -> Generation {
    Generation {
        in_switch_bytes_per_second_per_link: Some(in_switch * 1_000_000),
        ..generation
    }
}

const PASCAL: Generation = generation(60, 18_000, 20_000);
const VOLTA: Generation = generation(70, 20_000, 25_000);
/// NCCL has no constant for Turing and uses the one of the previous generation.
const TURING: Generation = generation(75, 20_000, 25_000);
const AMPERE: Generation = generation(80, 20_000, 25_000);
/// GA10x: bridges of four narrow links.
const AMPERE_WORKSTATION: Generation = generation(86, 12_000, 14_062);
const HOPPER: Generation = with_reduction(generation(90, 20_600, 25_000), 26_600);
const BLACKWELL: Generation = with_reduction(generation(100, 40_100, 50_000), 46_500);

/// Words of product names, in the order of the search.
const MODELS: [(&str, Generation); 21] = [
    ("P100", PASCAL),
    ("V100", VOLTA),
    ("RTX 5000 ADA", AMPERE_WORKSTATION),
    ("RTX 5000", TURING),
    ("RTX 6000 ADA", AMPERE_WORKSTATION),
    ("RTX 6000", TURING),
    ("RTX 8000", TURING),
    ("A100", AMPERE),
    ("A800", AMPERE),
    ("A30", AMPERE),
    ("A6000", AMPERE_WORKSTATION),
    ("A5000", AMPERE_WORKSTATION),
    ("A40", AMPERE_WORKSTATION),
    ("RTX 3090", AMPERE_WORKSTATION),
    ("H100", HOPPER),
    ("H200", HOPPER),
    ("H800", HOPPER),
    ("H20", HOPPER),
    ("B100", BLACKWELL),
    ("B200", BLACKWELL),
    ("B300", BLACKWELL),
];

impl Generation {
    /// Returns the generation of the product `model`, for example
    /// `NVIDIA H100 80GB HBM3`; `None` for a product without NVLink or an unknown one.
    ///
    /// `GH200`, `GB200` and `GB300` match by the name of their GPU.
    #[must_use]
    pub fn of_model(model: &str) -> Option<Self> {
        let model = model.to_ascii_uppercase();
        MODELS
            .iter()
            .find(|(word, _)| model.contains(word))
            .map(|(_, generation)| *generation)
    }

    /// Returns the oldest generation whose links have this usable bandwidth, bytes per second.
    #[must_use]
    pub fn of_usable(bytes_per_second_per_link: u64) -> Option<Self> {
        let all = [PASCAL, AMPERE_WORKSTATION, VOLTA, HOPPER, BLACKWELL].into_iter();
        let mut all = all.filter(|one| one.bytes_per_second_per_link == bytes_per_second_per_link);
        all.next()
    }

    /// Returns the generation of a compute capability, 90 for Hopper; `None` for one
    /// without NVLink (Ada, GeForce Blackwell) or an unknown one.
    #[must_use]
    pub fn of_compute_capability(capability: u32) -> Option<Self> {
        match capability {
            60 => Some(PASCAL),
            70 => Some(VOLTA),
            75 => Some(TURING),
            80 => Some(AMPERE),
            86 => Some(AMPERE_WORKSTATION),
            90 => Some(HOPPER),
            // B200 and B300.
            100 | 103 => Some(BLACKWELL),
            _ => None,
        }
    }
}

/// Returns the number of NVLinks that an SXM board of this product wires up. All of them
/// must be active on a healthy node.
///
/// Returns `None` for PCIe cards, whose bridges are optional, and for GH200, whose links
/// are unused unless it is part of a fabric. Source: NVIDIA's data sheets, by the names
/// that `nvidia-smi` prints.
#[must_use]
pub fn board_links(model: &str) -> Option<u32> {
    let model = model.to_ascii_uppercase();
    let has = |word: &str| model.contains(word);
    if has("PCIE") || has("NVL") || has("GH200") {
        return None;
    }
    match () {
        () if has("P100-SXM") => Some(4),
        () if has("V100-SXM") => Some(6),
        () if has("A100-SXM") => Some(12),
        () if has("A800-SXM") || has("H800") => Some(8),
        () if has("H100") || has("H200") || has("H20") => Some(18),
        () if has("B200") || has("B300") || has("B100") => Some(18),
        () => None,
    }
}

/// Returns the number of GPUs on the largest board of this product: eight on HGX and DGX,
/// four in a tray of a rack. The sources are those of [`board_links`].
#[must_use]
pub fn board_gpus(model: &str) -> usize {
    let model = model.to_ascii_uppercase();
    let in_tray = ["GB200", "GB300"].iter().any(|name| model.contains(name));
    if in_tray { 4 } else { 8 }
}

/// Returns the possible numbers of GPUs of a machine whose GPUs of this product are joined by
/// NVSwitches, ascending; empty for a product without such boards.
///
/// HGX boards have eight GPUs, and two of them make a machine of sixteen up to Ampere (DGX-2).
/// Boards of four (HGX H100 4-GPU) have direct links. In a rack, a tray has a GPU for each of
/// two CPUs, or two. The sources are those of [`board_links`].
#[must_use]
pub fn switched_sizes(model: &str) -> &'static [usize] {
    if board_links(model).is_none() {
        return &[];
    }
    let model = model.to_ascii_uppercase();
    let has = |words: &[&str]| words.iter().any(|word| model.contains(word));
    match () {
        () if has(&["GB200", "GB300"]) => &[2, 4],
        () if has(&["V100", "A100", "A800"]) => &[8, 16],
        () if has(&["P100"]) => &[],
        () => &[8],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_match_by_the_names_that_the_driver_prints() {
        for (model, capability, links) in [
            ("Tesla P100-SXM2-16GB", Some(60), Some(4)),
            ("Tesla V100-SXM2-32GB", Some(70), Some(6)),
            ("NVIDIA A100-SXM4-80GB", Some(80), Some(12)),
            ("NVIDIA A100-PCIE-40GB", Some(80), None),
            ("NVIDIA A100 80GB PCIe", Some(80), None),
            ("NVIDIA A800-SXM4-80GB", Some(80), Some(8)),
            ("NVIDIA RTX A6000", Some(86), None),
            ("NVIDIA GeForce RTX 3090", Some(86), None),
            ("NVIDIA H100 80GB HBM3", Some(90), Some(18)),
            ("NVIDIA H100 NVL", Some(90), None),
            ("NVIDIA H200", Some(90), Some(18)),
            ("NVIDIA GH200 480GB", Some(90), None),
            ("NVIDIA H800", Some(90), Some(8)),
            ("NVIDIA B200", Some(100), Some(18)),
            ("NVIDIA GB200", Some(100), Some(18)),
            ("NVIDIA L40S", None, None),
            ("Tesla T4", None, None),
            ("", None, None),
        ] {
            let found = Generation::of_model(model).map(|one| one.compute_capability);
            assert_eq!((found, board_links(model)), (capability, links), "{model}");
            let back = capability.and_then(Generation::of_compute_capability);
            assert_eq!(back, Generation::of_model(model), "{model}");
        }
    }
}
