//! The simulated boards. Models, link counts and speeds, switches, PCI addresses
//! and NICs are those of the machines that the profiles are named after.

use super::{NicSlot, Profile, Slot, Wiring, nic, slot};

pub(super) static PROFILES: &[Profile] = &[
    A100_PCIE_PAIRS,
    DGX_A100,
    DGX_H100,
    DGX1_V100,
    DGX2_V100,
    GB200_NVL72,
    H200_DEGRADED,
    HGX_A100_4,
    HGX_B200,
    L40S,
    RTX_A6000_PAIRS,
];

/// The default values of a profile: an empty board.
const BASE: Profile = Profile {
    name: "",
    about: "",
    model: "",
    pcie_generation: 4,
    gpus: &[],
    links: 0,
    link_rate: 0,
    wiring: Wiring::None,
    fabric: None,
    nics: &[],
    dead_links: &[],
};

/// Eight GPUs with a PCIe switch each: DGX H100 and its successors.
const EIGHT_SWITCHES: &[Slot] = &[
    slot("00000000:1B:00.0", 0, 0, 0, 0),
    slot("00000000:43:00.0", 0, 1, 0, 0),
    slot("00000000:52:00.0", 0, 2, 0, 0),
    slot("00000000:61:00.0", 0, 3, 0, 0),
    slot("00000000:9D:00.0", 1, 4, 0, 0),
    slot("00000000:C3:00.0", 1, 5, 0, 0),
    slot("00000000:D1:00.0", 1, 6, 0, 0),
    slot("00000000:DF:00.0", 1, 7, 0, 0),
];

/// A compute NIC behind each of these switches, and two dual-port storage NICs.
const EIGHT_SWITCHES_NICS: &[NicSlot] = &[
    nic("mlx5_0", 400, slot("00000000:18:00.0", 0, 0, 0, 1)),
    nic("mlx5_1", 200, slot("00000000:29:00.0", 0, 8, 0, 0)),
    nic("mlx5_2", 200, slot("00000000:29:00.1", 0, 8, 0, 0)),
    nic("mlx5_3", 400, slot("00000000:40:00.0", 0, 1, 0, 1)),
    nic("mlx5_4", 400, slot("00000000:4F:00.0", 0, 2, 0, 1)),
    nic("mlx5_5", 400, slot("00000000:5E:00.0", 0, 3, 0, 1)),
    nic("mlx5_6", 400, slot("00000000:9A:00.0", 1, 4, 0, 1)),
    nic("mlx5_7", 200, slot("00000000:AA:00.0", 1, 9, 0, 0)),
    nic("mlx5_8", 200, slot("00000000:AA:00.1", 1, 9, 0, 0)),
    nic("mlx5_9", 400, slot("00000000:C0:00.0", 1, 5, 0, 1)),
    nic("mlx5_10", 400, slot("00000000:CE:00.0", 1, 6, 0, 1)),
    nic("mlx5_11", 400, slot("00000000:DC:00.0", 1, 7, 0, 1)),
];

/// The four NVSwitches of a Hopper board.
const HOPPER_SWITCHES: Wiring = Wiring::Switches(&[&[
    ("00000000:05:00.0", 4),
    ("00000000:06:00.0", 4),
    ("00000000:07:00.0", 5),
    ("00000000:08:00.0", 5),
]]);

const DGX_H100: Profile = Profile {
    name: "dgx-h100",
    about: "8 GPUs, 18 links each to 4 NVSwitches",
    model: "NVIDIA H100 80GB HBM3",
    pcie_generation: 5,
    gpus: EIGHT_SWITCHES,
    links: 18,
    link_rate: 26_562_000_000,
    wiring: HOPPER_SWITCHES,
    nics: EIGHT_SWITCHES_NICS,
    ..BASE
};

const H200_DEGRADED: Profile = Profile {
    name: "h200-degraded",
    about: "8 GPUs on NVSwitches; 3 links are down, 2 have errors",
    model: "NVIDIA H200",
    dead_links: &[(3, 7), (3, 12), (5, 0)],
    ..DGX_H100
};

const HGX_B200: Profile = Profile {
    name: "hgx-b200",
    about: "8 GPUs, 18 NVLink 5 links each to switches that the node cannot see",
    model: "NVIDIA B200",
    link_rate: 53_125_000_000,
    wiring: Wiring::HiddenSwitches,
    ..DGX_H100
};

const DGX_A100: Profile = Profile {
    name: "dgx-a100",
    about: "8 GPUs, 12 links each to 6 NVSwitches; 4 NUMA nodes with GPUs",
    model: "NVIDIA A100-SXM4-40GB",
    gpus: &[
        slot("00000000:07:00.0", 3, 0, 0, 0),
        slot("00000000:0F:00.0", 3, 0, 0, 1),
        slot("00000000:47:00.0", 1, 1, 0, 0),
        slot("00000000:4E:00.0", 1, 1, 0, 1),
        slot("00000000:87:00.0", 7, 2, 0, 0),
        slot("00000000:90:00.0", 7, 2, 0, 1),
        slot("00000000:B7:00.0", 5, 3, 0, 0),
        slot("00000000:BD:00.0", 5, 3, 0, 1),
    ],
    links: 12,
    link_rate: 25_000_000_000,
    wiring: Wiring::Switches(&[&[
        ("00000000:C4:00.0", 2),
        ("00000000:C5:00.0", 2),
        ("00000000:C6:00.0", 2),
        ("00000000:C7:00.0", 2),
        ("00000000:C8:00.0", 2),
        ("00000000:C9:00.0", 2),
    ]]),
    nics: &[
        nic("mlx5_0", 200, slot("00000000:0C:00.0", 3, 0, 0, 2)),
        nic("mlx5_1", 200, slot("00000000:12:00.0", 3, 0, 0, 3)),
        nic("mlx5_2", 200, slot("00000000:4B:00.0", 1, 1, 0, 2)),
        nic("mlx5_3", 200, slot("00000000:54:00.0", 1, 1, 0, 3)),
        nic("mlx5_4", 200, slot("00000000:61:00.0", 0, 4, 0, 0)),
        nic("mlx5_5", 200, slot("00000000:61:00.1", 0, 4, 0, 0)),
        nic("mlx5_6", 200, slot("00000000:8D:00.0", 7, 2, 0, 2)),
        nic("mlx5_7", 200, slot("00000000:94:00.0", 7, 2, 0, 3)),
        nic("mlx5_8", 200, slot("00000000:BA:00.0", 5, 3, 0, 2)),
        nic("mlx5_9", 200, slot("00000000:CC:00.0", 5, 3, 0, 3)),
        nic("mlx5_10", 200, slot("00000000:E1:00.0", 4, 5, 0, 0)),
        nic("mlx5_11", 200, slot("00000000:E1:00.1", 4, 5, 0, 0)),
    ],
    ..BASE
};

const HGX_A100_4: Profile = Profile {
    name: "hgx-a100-4",
    about: "4 GPUs, 4 links between each pair, no switch",
    model: "NVIDIA A100-SXM4-80GB",
    gpus: &[
        slot("00000000:01:00.0", 3, 0, 0, 0),
        slot("00000000:41:00.0", 2, 1, 0, 0),
        slot("00000000:81:00.0", 1, 2, 0, 0),
        slot("00000000:C1:00.0", 0, 3, 0, 0),
    ],
    links: 12,
    link_rate: 25_000_000_000,
    wiring: Wiring::Direct(&[
        (0, 1, 4),
        (0, 2, 4),
        (0, 3, 4),
        (1, 2, 4),
        (1, 3, 4),
        (2, 3, 4),
    ]),
    nics: &[
        nic("mlx5_0", 200, slot("00000000:02:00.0", 3, 0, 0, 1)),
        nic("mlx5_1", 200, slot("00000000:42:00.0", 2, 1, 0, 1)),
        nic("mlx5_2", 200, slot("00000000:82:00.0", 1, 2, 0, 1)),
        nic("mlx5_3", 200, slot("00000000:C2:00.0", 0, 3, 0, 1)),
    ],
    ..BASE
};

const DGX1_V100: Profile = Profile {
    name: "dgx1-v100",
    about: "8 GPUs in a hybrid cube mesh of 1 and 2 links",
    model: "Tesla V100-SXM2-32GB",
    pcie_generation: 3,
    gpus: &[
        slot("00000000:06:00.0", 0, 0, 0, 0),
        slot("00000000:07:00.0", 0, 0, 0, 0),
        slot("00000000:0A:00.0", 0, 0, 1, 0),
        slot("00000000:0B:00.0", 0, 0, 1, 0),
        slot("00000000:85:00.0", 1, 1, 0, 0),
        slot("00000000:86:00.0", 1, 1, 0, 0),
        slot("00000000:89:00.0", 1, 1, 1, 0),
        slot("00000000:8A:00.0", 1, 1, 1, 0),
    ],
    links: 6,
    link_rate: 25_781_000_000,
    wiring: Wiring::Direct(&[
        (0, 1, 1),
        (0, 2, 1),
        (0, 3, 2),
        (0, 4, 2),
        (1, 2, 2),
        (1, 3, 1),
        (1, 5, 2),
        (2, 3, 2),
        (2, 6, 1),
        (3, 7, 1),
        (4, 5, 1),
        (4, 6, 1),
        (4, 7, 2),
        (5, 6, 2),
        (5, 7, 1),
        (6, 7, 2),
    ]),
    nics: &[
        nic("mlx5_0", 100, slot("00000000:05:00.0", 0, 0, 0, 0)),
        nic("mlx5_1", 100, slot("00000000:0C:00.0", 0, 0, 1, 0)),
        nic("mlx5_2", 100, slot("00000000:84:00.0", 1, 1, 0, 0)),
        nic("mlx5_3", 100, slot("00000000:8B:00.0", 1, 1, 1, 0)),
    ],
    ..BASE
};

const DGX2_V100: Profile = Profile {
    name: "dgx2-v100",
    about: "16 GPUs on two baseboards, 6 links each to NVSwitches",
    model: "Tesla V100-SXM3-32GB",
    pcie_generation: 3,
    gpus: &[
        slot("00000000:34:00.0", 0, 0, 0, 0),
        slot("00000000:36:00.0", 0, 0, 0, 0),
        slot("00000000:39:00.0", 0, 0, 0, 1),
        slot("00000000:3B:00.0", 0, 0, 0, 1),
        slot("00000000:57:00.0", 0, 1, 0, 0),
        slot("00000000:59:00.0", 0, 1, 0, 0),
        slot("00000000:5C:00.0", 0, 1, 0, 1),
        slot("00000000:5E:00.0", 0, 1, 0, 1),
        slot("00000000:B7:00.0", 1, 2, 0, 0),
        slot("00000000:B9:00.0", 1, 2, 0, 0),
        slot("00000000:BC:00.0", 1, 2, 0, 1),
        slot("00000000:BE:00.0", 1, 2, 0, 1),
        slot("00000000:E0:00.0", 1, 3, 0, 0),
        slot("00000000:E2:00.0", 1, 3, 0, 0),
        slot("00000000:E5:00.0", 1, 3, 0, 1),
        slot("00000000:E7:00.0", 1, 3, 0, 1),
    ],
    links: 6,
    link_rate: 25_781_000_000,
    wiring: Wiring::Switches(&[
        &[
            ("00000000:61:00.0", 1),
            ("00000000:62:00.0", 1),
            ("00000000:63:00.0", 1),
            ("00000000:65:00.0", 1),
            ("00000000:66:00.0", 1),
            ("00000000:67:00.0", 1),
        ],
        &[
            ("00000000:C1:00.0", 1),
            ("00000000:C2:00.0", 1),
            ("00000000:C3:00.0", 1),
            ("00000000:C5:00.0", 1),
            ("00000000:C6:00.0", 1),
            ("00000000:C7:00.0", 1),
        ],
    ]),
    nics: &[
        nic("mlx5_0", 100, slot("00000000:35:00.0", 0, 0, 0, 0)),
        nic("mlx5_1", 100, slot("00000000:3A:00.0", 0, 0, 0, 1)),
        nic("mlx5_2", 100, slot("00000000:58:00.0", 0, 1, 0, 0)),
        nic("mlx5_3", 100, slot("00000000:5D:00.0", 0, 1, 0, 1)),
        nic("mlx5_4", 100, slot("00000000:B8:00.0", 1, 2, 0, 0)),
        nic("mlx5_5", 100, slot("00000000:BD:00.0", 1, 2, 0, 1)),
        nic("mlx5_6", 100, slot("00000000:E1:00.0", 1, 3, 0, 0)),
        nic("mlx5_7", 100, slot("00000000:E6:00.0", 1, 3, 0, 1)),
    ],
    ..BASE
};

/// Eight PCIe cards behind four switches, two sockets.
const EIGHT_CARDS: &[Slot] = &[
    slot("00000000:18:00.0", 0, 0, 0, 0),
    slot("00000000:19:00.0", 0, 0, 0, 0),
    slot("00000000:3B:00.0", 0, 1, 0, 0),
    slot("00000000:3C:00.0", 0, 1, 0, 0),
    slot("00000000:86:00.0", 1, 2, 0, 0),
    slot("00000000:87:00.0", 1, 2, 0, 0),
    slot("00000000:AF:00.0", 1, 3, 0, 0),
    slot("00000000:B0:00.0", 1, 3, 0, 0),
];

const A100_PCIE_PAIRS: Profile = Profile {
    name: "a100-pcie-pairs",
    about: "8 PCIe cards, bridged in pairs by 12 links",
    model: "NVIDIA A100 80GB PCIe",
    gpus: EIGHT_CARDS,
    links: 12,
    link_rate: 25_000_000_000,
    wiring: Wiring::Direct(&[(0, 1, 12), (2, 3, 12), (4, 5, 12), (6, 7, 12)]),
    nics: &[
        nic("mlx5_0", 200, slot("00000000:1A:00.0", 0, 0, 0, 0)),
        nic("mlx5_1", 200, slot("00000000:88:00.0", 1, 2, 0, 0)),
    ],
    ..BASE
};

const L40S: Profile = Profile {
    name: "l40s",
    about: "8 PCIe cards without NVLink",
    model: "NVIDIA L40S",
    gpus: EIGHT_CARDS,
    nics: &[
        nic("mlx5_0", 200, slot("00000000:1A:00.0", 0, 0, 0, 0)),
        nic("mlx5_1", 200, slot("00000000:88:00.0", 1, 2, 0, 0)),
    ],
    ..BASE
};

const RTX_A6000_PAIRS: Profile = Profile {
    name: "rtx-a6000-pairs",
    about: "4 workstation cards, bridged in pairs by 4 links",
    model: "NVIDIA RTX A6000",
    gpus: &[
        slot("00000000:01:00.0", 0, 0, 0, 0),
        slot("00000000:25:00.0", 0, 1, 0, 0),
        slot("00000000:41:00.0", 0, 2, 0, 0),
        slot("00000000:61:00.0", 0, 3, 0, 0),
    ],
    links: 4,
    link_rate: 14_062_000_000,
    wiring: Wiring::Direct(&[(0, 1, 4), (2, 3, 4)]),
    ..BASE
};

const GB200_NVL72: Profile = Profile {
    name: "gb200-nvl72",
    about: "one compute tray of 4 GPUs in an NVLink fabric of 72 (all nodes of this profile share it)",
    model: "NVIDIA GB200",
    pcie_generation: 6,
    gpus: &[
        slot("00000008:01:00.0", 0, 0, 0, 0),
        slot("00000009:01:00.0", 0, 1, 0, 0),
        slot("00000018:01:00.0", 1, 2, 0, 0),
        slot("00000019:01:00.0", 1, 3, 0, 0),
    ],
    links: 18,
    link_rate: 53_125_000_000,
    wiring: Wiring::HiddenSwitches,
    fabric: Some(("6f1f4e35-9c0b-4d52-8a67-2b0c7e91d3a8", 1)),
    nics: &[
        nic("mlx5_0", 400, slot("00000000:03:00.0", 0, 4, 0, 0)),
        nic("mlx5_1", 400, slot("00000002:03:00.0", 0, 5, 0, 0)),
        nic("mlx5_2", 400, slot("00000010:03:00.0", 1, 6, 0, 0)),
        nic("mlx5_3", 400, slot("00000012:03:00.0", 1, 7, 0, 0)),
    ],
    ..BASE
};
