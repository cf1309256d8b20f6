//! Positions of devices in a PCI tree, and what follows from them: the class and
//! the bandwidth of the path between two devices, and which devices are nearest.

use std::{fmt, str::FromStr};

use nvlink_topology::{NodeTopologySpec, Path, PathClass, bandwidth};

use super::topo_matrix::{self, Matrix, NicColumn, Relation};

/// A PCI address. The driver numbers GPUs in ascending order of address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Address {
    domain: u32,
    bus: u8,
    device: u8,
    function: u8,
}

/// A text that is not a PCI address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a PCI address such as 0000:1a:00.0")]
pub(crate) struct BadAddress;

impl FromStr for Address {
    type Err = BadAddress;

    /// Parses `0000:1a:00.0`, in upper or lower case, with a domain of one to eight digits.
    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let hex = |text: &str, most: usize| {
            let good =
                (1..=most).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
            let number = u32::from_str_radix(text, 16).ok();
            number.filter(|_| good).ok_or(BadAddress)
        };
        let byte = |text: &str, most: u32| {
            let number = hex(text, 2)?;
            let byte = u8::try_from(number).ok().filter(|_| number <= most);
            byte.ok_or(BadAddress)
        };
        let (domain, rest) = text.split_once(':').ok_or(BadAddress)?;
        let (bus, rest) = rest.split_once(':').ok_or(BadAddress)?;
        let (device, function) = rest.split_once('.').ok_or(BadAddress)?;
        Ok(Self {
            domain: hex(domain, 8)?,
            bus: byte(bus, 0xff)?,
            device: byte(device, 0x1f)?,
            function: byte(function, 7)?,
        })
    }
}

/// Writes the address as NVML prints it: `00000000:1A:00.0`.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            domain,
            bus,
            device,
            function,
        } = self;
        write!(f, "{domain:08X}:{bus:02X}:{device:02X}.{function}")
    }
}

impl Address {
    /// Returns the address as the kernel writes it: `0000:1a:00.0`.
    #[must_use]
    pub(crate) fn kernel_name(&self) -> String {
        let Self {
            domain,
            bus,
            device,
            function,
        } = self;
        format!("{domain:04x}:{bus:02x}:{device:02x}.{function}")
    }
}

/// The maximum speed and width of a PCIe link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkRate {
    /// PCIe generation, from 1.
    pub generation: u32,
    /// Width in lanes, from 1.
    pub lanes: u32,
}

impl LinkRate {
    /// Parses the kernel's speed, `32.0 GT/s PCIe` (older: `16 GT/s`), and width, `16`.
    /// Returns `None` where the kernel does not know them (`Unknown`, width 0 or 255).
    #[must_use]
    pub(crate) fn parse(speed: &str, width: &str) -> Option<Self> {
        let generation = match speed.split_whitespace().next()? {
            "2.5" => 1,
            "5" | "5.0" => 2,
            "8" | "8.0" => 3,
            "16" | "16.0" => 4,
            "32" | "32.0" => 5,
            "64" | "64.0" => 6,
            "128" | "128.0" => 7,
            _ => return None,
        };
        let lanes = width.trim().parse().ok();
        let lanes = lanes.filter(|lanes| (1..=32).contains(lanes))?;
        Some(Self { generation, lanes })
    }

    /// Returns the bytes per second, in one direction, of a path of `class`
    /// whose slowest link this is.
    pub(crate) fn bytes_per_second(self, class: PathClass) -> u64 {
        bandwidth::pcie(self.generation, self.lanes, class)
    }
}

/// A bridge between a host bridge and a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bridge {
    /// Its address. Two bridges are the same if address and host bridge are equal.
    pub address: Address,
    /// Its link, if known.
    pub rate: Option<LinkRate>,
}

/// The position of a device in the PCI tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// NUMA node, if known.
    pub numa: Option<u32>,
    /// Identifies the host bridge, or the CPU if the source does not distinguish host bridges.
    pub host: String,
    /// The bridges between host and device, from the top.
    pub bridges: Vec<Bridge>,
    /// The device's own link, if known.
    pub rate: Option<LinkRate>,
}

/// How a source represents a PCI tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tree {
    /// The kernel's tree, with every port of every switch and every host bridge.
    Ports {
        /// The machine has one NUMA node, so an unknown NUMA node must be this one.
        one_numa_node: bool,
    },
    /// NCCL's tree: a switch is one bridge, and the CPU stands for all host
    /// bridges of its NUMA node.
    Switches,
}

/// The path between two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    pub class: PathClass,
    /// Usable bandwidth in one direction.
    pub bytes_per_second: u64,
    /// The class or the bandwidth is assumed, because the source does not have it.
    pub assumed: bool,
}

impl Tree {
    /// Returns the path between `a` and `b`, classified as `nvidia-smi topo -m` does.
    #[must_use]
    pub(crate) fn way(self, a: &Place, b: &Place) -> Way {
        let shared = a.shared_bridges(b);
        let (class, certain) = self.class(a, b, shared);
        let slowest = |place: &Place| {
            let rates = place.bridges.iter().skip(shared).map(|bridge| bridge.rate);
            let rates = rates.chain([place.rate]).flatten();
            rates.map(|rate| rate.bytes_per_second(class)).min()
        };
        let (there, back) = (slowest(a), slowest(b));
        let known = there.into_iter().chain(back).min();
        Way {
            class,
            bytes_per_second: known.unwrap_or_else(|| bandwidth::assumed(class)),
            assumed: !certain || there.is_none() || back.is_none(),
        }
    }

    /// Returns the class, and whether it is certain rather than assumed.
    fn class(self, a: &Place, b: &Place, shared: usize) -> (PathClass, bool) {
        // Below a switch, its downstream port is a bridge of its own.
        let own = match self {
            Self::Ports { .. } => 1,
            Self::Switches => 0,
        };
        let near = |place: &Place| place.bridges.len() - shared <= own;
        if shared > 0 {
            let one_switch = near(a) && near(b);
            return (
                if one_switch {
                    PathClass::Pix
                } else {
                    PathClass::Pxb
                },
                true,
            );
        }
        if let (Some(a), Some(b)) = (a.numa, b.numa)
            && a != b
        {
            return (PathClass::Sys, true);
        }
        let numa_known = a.numa.is_some() && b.numa.is_some();
        match (self, a.host == b.host) {
            (Self::Ports { .. }, true) => (PathClass::Phb, true),
            (Self::Ports { one_numa_node }, false) if numa_known || one_numa_node => {
                (PathClass::Node, true)
            }
            // The host bridges may be the same or not: assume the slower class.
            (Self::Switches, same) if same || numa_known => (PathClass::Node, false),
            _ => (PathClass::Sys, false),
        }
    }

    /// Returns the paths between all pairs of `gpus`, which are in ascending order of index.
    #[must_use]
    pub(crate) fn paths(self, gpus: &[(u32, Place)]) -> Vec<Path> {
        let mut paths = Vec::new();
        for (n, (a, from)) in gpus.iter().enumerate() {
            for (b, to) in &gpus[n + 1..] {
                let way = self.way(from, to);
                paths.push(Path {
                    a: *a,
                    b: *b,
                    class: way.class,
                    bytes_per_second: way.bytes_per_second,
                    assumed: way.assumed,
                });
            }
        }
        paths
    }

    /// Returns those of `gpus` that are nearest to `nic`; none if all are in
    /// another NUMA node.
    #[must_use]
    pub(crate) fn nearest(self, nic: &Place, gpus: &[(u32, Place)]) -> Vec<u32> {
        let class = |gpu: &Place| self.way(nic, gpu).class;
        let best = gpus.iter().map(|(_, gpu)| class(gpu)).min();
        let near = |gpu: &Place| class(gpu) < PathClass::Sys && Some(class(gpu)) == best;
        let near = gpus.iter().filter(|(_, gpu)| near(gpu));
        near.map(|&(index, _)| index).collect()
    }

    /// Returns the matrix that `topo -m` would print of `spec`, whose GPUs and
    /// NICs are at these places.
    #[must_use]
    pub(crate) fn matrix(
        self,
        spec: &NodeTopologySpec,
        gpus: &[(u32, Place)],
        nics: &[Place],
    ) -> Matrix {
        let relation = |a: &Place, b: &Place| Relation::Class(self.way(a, b).class);
        let mut matrix = topo_matrix::of_document(spec);
        for (row, (_, gpu)) in matrix.gpus.iter_mut().zip(gpus) {
            row.to_nics = nics.iter().map(|nic| relation(gpu, nic)).collect();
        }
        let to_nics = |n: usize| {
            let cell = |m: usize| match n == m {
                true => Relation::Own,
                false => relation(&nics[n], &nics[m]),
            };
            (0..nics.len()).map(cell).collect()
        };
        let column = |(n, nic): (usize, &nvlink_topology::Nic)| NicColumn {
            title: format!("NIC{n}"),
            name: nic.name.clone(),
            to_nics: to_nics(n),
        };
        let columns = spec.nics.iter().enumerate().take(nics.len());
        matrix.nics = columns.map(column).collect();
        matrix
    }
}

impl Place {
    /// Returns the number of bridges, from the top, that are above both devices.
    fn shared_bridges(&self, other: &Self) -> usize {
        let pairs = self.bridges.iter().zip(&other.bridges);
        match self.host == other.host {
            true => pairs.take_while(|(a, b)| a.address == b.address).count(),
            false => 0,
        }
    }
}

/// Reports whether `text` is a device name that is safe in a table, a label or
/// an environment variable.
#[must_use]
pub(crate) fn is_name(text: &str) -> bool {
    let good = |b: u8| b.is_ascii_alphanumeric() || b"_-.:+@".contains(&b);
    (1..=64).contains(&text.len()) && text.bytes().all(good)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(numa: Option<u32>, host: &str, bridges: &[&str]) -> Place {
        let bridge = |text: &&str| Bridge {
            address: text.parse().unwrap(),
            rate: LinkRate::parse("16.0 GT/s PCIe", "16"),
        };
        Place {
            numa,
            host: host.to_owned(),
            bridges: bridges.iter().map(bridge).collect(),
            rate: LinkRate::parse("32.0 GT/s PCIe", "16"),
        }
    }

    #[test]
    fn addresses() {
        let address: Address = "000D:1a:1f.7".parse().unwrap();
        assert_eq!(address.to_string(), "0000000D:1A:1F.7");
        assert_eq!(address.kernel_name(), "000d:1a:1f.7");
        assert_eq!("0000000d:1A:1F.7".parse(), Ok(address));
        let vmd: Address = "10000:01:00.0".parse().unwrap();
        assert!(address < vmd && vmd.kernel_name() == "10000:01:00.0");
        for bad in [
            "",
            "0:0",
            "0000:1a:00",
            "0000:1a:20.0",
            "0000:1a:00.8",
            "x:1a:00.0",
            "+1:1a:00.0",
            "100000000:00:00.0",
            "fffffff:ff:ff.0",
            "0000:1aa:00.0",
            ":::.",
        ] {
            assert_eq!(bad.parse::<Address>(), Err(BadAddress), "{bad}");
        }
    }

    #[test]
    fn rates() {
        let rate = |generation, lanes| Some(LinkRate { generation, lanes });
        assert_eq!(LinkRate::parse("2.5 GT/s PCIe", "1"), rate(1, 1));
        assert_eq!(LinkRate::parse("16 GT/s", "8\n"), rate(4, 8));
        assert_eq!(LinkRate::parse("64.0 GT/s PCIe", "16"), rate(6, 16));
        for (speed, width) in [
            ("", "16"),
            ("Unknown", "16"),
            ("8.0 GT/s PCIe", "255"),
            ("8 GT/s", "0"),
        ] {
            assert_eq!(LinkRate::parse(speed, width), None, "{speed} {width}");
        }
    }

    #[test]
    fn classes_of_the_kernel_s_tree() {
        let tree = Tree::Ports {
            one_numa_node: false,
        };
        let (root, up, down) = ("0000:80:00.0", "0000:81:00.0", "0000:82:00.0");
        let gpu = place(Some(0), "80", &[root, up, down]);
        let class = |b: &Place| {
            let (there, back) = (tree.way(&gpu, b), tree.way(b, &gpu));
            assert_eq!(there, back);
            (there.class, there.assumed)
        };
        let cases = [
            (
                place(Some(0), "80", &[root, up, "0000:82:01.0"]),
                PathClass::Pix,
                false,
            ),
            // Below a second switch that is below the first.
            (
                place(
                    Some(0),
                    "80",
                    &[root, up, "0000:82:01.0", "0000:84:00.0", "0000:85:00.0"],
                ),
                PathClass::Pxb,
                false,
            ),
            (
                place(Some(0), "80", &["0000:80:01.0"]),
                PathClass::Phb,
                false,
            ),
            (place(Some(0), "80", &[]), PathClass::Phb, false),
            (
                place(Some(0), "90", &[root, up, down]),
                PathClass::Node,
                false,
            ),
            (place(Some(1), "90", &[]), PathClass::Sys, false),
            (place(None, "90", &[]), PathClass::Sys, true),
            (place(None, "80", &[]), PathClass::Phb, false),
            // Firmware that assigns different nodes to devices of one host bridge.
            (place(Some(1), "80", &[]), PathClass::Sys, false),
        ];
        for (b, expected, assumed) in cases {
            assert_eq!(class(&b), (expected, assumed), "{b:?}");
        }
        let one = Tree::Ports {
            one_numa_node: true,
        };
        let way = one.way(&gpu, &place(None, "90", &[]));
        assert_eq!((way.class, way.assumed), (PathClass::Node, false));
    }

    #[test]
    fn nccl_s_tree_has_no_host_bridges() {
        let tree = Tree::Switches;
        let switch = "0000:81:00.0";
        let gpu = place(Some(0), "cpu 0", &[switch]);
        let cases = [
            (place(Some(0), "cpu 0", &[switch]), PathClass::Pix, false),
            (
                place(Some(0), "cpu 0", &[switch, "0000:85:00.0"]),
                PathClass::Pxb,
                false,
            ),
            (
                place(Some(0), "cpu 0", &["0000:91:00.0"]),
                PathClass::Node,
                true,
            ),
            (place(Some(1), "cpu 1", &[switch]), PathClass::Sys, false),
            (place(None, "cpu 1", &[]), PathClass::Sys, true),
        ];
        for (b, expected, assumed) in cases {
            let way = tree.way(&gpu, &b);
            assert_eq!((way.class, way.assumed), (expected, assumed), "{b:?}");
        }
    }

    #[test]
    fn the_slowest_link_on_the_path_limits_it() {
        let tree = Tree::Ports {
            one_numa_node: false,
        };
        let (root, up) = ("0000:80:00.0", "0000:81:00.0");
        let mut a = place(Some(0), "80", &[root, up, "0000:82:00.0"]);
        let b = place(Some(0), "80", &[root, up, "0000:82:01.0"]);
        let rate = |a: &Place, b: &Place| tree.way(a, b).bytes_per_second;
        assert_eq!(rate(&a, &b), bandwidth::pcie(4, 16, PathClass::Pix));
        // Not on the path between them.
        a.bridges[0].rate = LinkRate::parse("2.5 GT/s PCIe", "1");
        assert_eq!(rate(&a, &b), bandwidth::pcie(4, 16, PathClass::Pix));
        a.bridges[2].rate = LinkRate::parse("8.0 GT/s PCIe", "4");
        assert_eq!(rate(&a, &b), bandwidth::pcie(3, 4, PathClass::Pix));
        // A wide, slow link and a narrow, fast one.
        a.bridges[2].rate = LinkRate::parse("5.0 GT/s PCIe", "16");
        a.rate = LinkRate::parse("32.0 GT/s PCIe", "1");
        assert_eq!(rate(&a, &b), bandwidth::pcie(5, 1, PathClass::Pix));
        for bridge in &mut a.bridges {
            bridge.rate = None;
        }
        a.rate = None;
        let way = tree.way(&a, &b);
        assert!(way.assumed && way.bytes_per_second == bandwidth::pcie(4, 16, PathClass::Pix));
    }
}
