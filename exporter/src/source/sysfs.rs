//! The source `sysfs`: what the kernel knows without the driver's library.
//!
//! GPUs, NUMA nodes, PCIe paths and NICs. NVLink is not in the kernel's tree,
//! so links are *unknown* here, never none. The tree may be below any
//! directory: that of the host in a container (`/host`), or a copy.

mod device;
mod information;
mod nic;
mod root;

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use nvlink_topology::{
    Gpu, MAX_GPUS, Nic, NodeTopology, NodeTopologySpec, Source as ReadFrom, SourceKind,
};

use self::{
    device::Device,
    root::{Root, attribute},
};
use super::{
    Reading, Source, SourceError, host_name,
    pci::{Address, Place, Tree},
};

const NVIDIA: &str = "0x10de";
/// 3D controllers and VGA controllers.
const GPU_CLASSES: [&str; 2] = ["0x0302", "0x0300"];
const DEVICES: &str = "sys/bus/pci/devices";

/// Why the kernel's tree gives nothing.
#[derive(Debug, thiserror::Error)]
pub enum SysfsError {
    /// A file or directory that is there cannot be read.
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
    /// A link points to what is not part of the tree.
    #[error("{} leads to {}, out of {}: this is no copy of /sys that can be trusted",
        path.display(), target.display(), root.display())]
    Escapes {
        path: PathBuf,
        target: PathBuf,
        root: PathBuf,
    },
    /// A directory with more entries than any machine has devices.
    #[error("{} has more entries than a machine has devices", .0.display())]
    Endless(PathBuf),
    /// There is no PCI bus to look at.
    #[error("{} does not exist: no PCI bus, or a sandbox hides it", .0.display())]
    NoBus(PathBuf),
    /// More GPUs than a document holds.
    #[error("{gpus} NVIDIA GPUs in {}; one node has at most {MAX_GPUS}", path.display())]
    Crowded { path: PathBuf, gpus: usize },
    /// There is a PCI bus, and no GPU on it.
    #[error(
        "no NVIDIA GPU among the {devices} devices of {} (looked for vendor {NVIDIA}, class 0x0302 \
         or 0x0300{})", path.display(), if *.left_out > 0 { "; GPUs that the driver does not hold are left out" } else { "" }
    )]
    NoGpu {
        path: PathBuf,
        /// How many devices were looked at.
        devices: usize,
        /// GPUs that were passed over.
        left_out: usize,
    },
}

impl SysfsError {
    fn io(path: &Path, error: io::Error) -> Self {
        let path = path.to_owned();
        Self::Io { path, error }
    }
}

/// Reads the kernel's tree below a root.
pub struct SysfsSource {
    root: PathBuf,
    node: Option<String>,
}

impl SysfsSource {
    /// Of the tree below `root` (by default `/`), for the node `node` (by default the host).
    #[must_use]
    pub fn new(root: Option<&str>, node: Option<String>) -> Self {
        let root = root.unwrap_or("/").into();
        Self { root, node }
    }
}

impl Source for SysfsSource {
    fn read(&mut self, _now: Duration) -> Result<Reading, SourceError> {
        let node = self.node.clone().unwrap_or_else(host_name);
        read(&self.root, &node)
    }
}

/// The NICs below `root` (`/` on the machine itself), by PCI address, each
/// with the nearest of `gpus` by index, and what is odd about them. Also for
/// sources that know the GPUs from elsewhere: they are found by their
/// `pci_bus_id`; one without, or whose address is not in the tree, is near nothing.
///
/// # Errors
/// A tree that cannot be read. One without a PCI bus or without NICs is no
/// error, and gives none.
pub fn nics(root: &Path, gpus: &[Gpu]) -> Result<(Vec<Nic>, Vec<String>), SysfsError> {
    let root = Root::open(root)?;
    let devices = root.path(DEVICES);
    let mut places = Vec::new();
    for gpu in gpus {
        let address = gpu.pci_bus_id.as_deref();
        let address = address.and_then(|text| text.parse::<Address>().ok());
        let Some(address) = address else { continue };
        let device = Device::open(&root, &devices.join(address.kernel_name()))?;
        places.extend(device.map(|device| (gpu.index, device.place)));
    }
    let found = nic::read(&root, tree(&root)?, &places)?;
    Ok((found.nics, found.warnings))
}

/// The node `node` as the kernel below `root` shows it.
///
/// # Errors
/// No GPU, or a tree that cannot be read.
pub fn read(root: &Path, node: &str) -> Result<Reading, SourceError> {
    let from = root.display().to_string();
    let root = Root::open(root)?;
    let tree = tree(&root)?;
    let mut warnings = Vec::new();
    let (gpus, places) = gpus(&root, &mut warnings)?;
    let nics = nic::read(&root, tree, &places)?;
    warnings.extend(nics.warnings);
    let mut spec = NodeTopologySpec {
        source: ReadFrom {
            kind: SourceKind::Sysfs,
            from: from.clone(),
        },
        gpus,
        edges: Vec::new(),
        paths: tree.paths(&places),
        domains: Vec::new(),
        nics: nics.nics,
    };
    let odd = spec
        .complete(node)
        .map_err(|error| SourceError::Invalid { name: from, error })?;
    warnings.extend(odd);
    let matrix = tree.matrix(&spec, &places, &nics.places);
    Ok(Reading {
        topology: NodeTopology::new(node, spec),
        counters: Vec::new(),
        health: Vec::new(),
        lost: Vec::new(),
        matrix: Some(matrix),
        warnings,
        unread: Vec::new(),
    })
}

/// Whether a NUMA node of -1 leaves a choice.
fn tree(root: &Root) -> Result<Tree, SysfsError> {
    let system = root.path("sys/devices/system");
    let directory = |name: &str| root.resolve(&system.join(name));
    let one_numa_node = match directory("node")? {
        Some(nodes) => attribute(&nodes, "online").is_some_and(|online| online == "0"),
        // A kernel without NUMA; but a tree without CPUs says nothing.
        None => directory("cpu")?.is_some(),
    };
    Ok(Tree::Ports { one_numa_node })
}

type Gpus = (Vec<Gpu>, Vec<(u32, Place)>);

/// The GPUs in the order of their addresses, which is the driver's.
fn gpus(root: &Root, warnings: &mut Vec<String>) -> Result<Gpus, SysfsError> {
    let path = root.path(DEVICES);
    let names = root.names(&path)?;
    let names = names.ok_or_else(|| SysfsError::NoBus(path.clone()))?;
    let mut found = Vec::new();
    for name in &names {
        let device = Device::open(root, &path.join(name))?;
        found.extend(device.filter(|device| is_gpu(&device.directory)));
    }
    if found.len() > MAX_GPUS {
        let gpus = found.len();
        return Err(SysfsError::Crowded { path, gpus });
    }
    found.sort_by_key(|device| device.address);
    found.dedup_by_key(|device| device.address);
    let (mut gpus, mut places) = (Vec::new(), Vec::new());
    let mut left_out = 0;
    for device in found {
        let information = information::read(root, device.address)?;
        if let Some(reason) = why_left_out(&device, &information) {
            warnings.push(format!("GPU at {} {reason}: left out", device.address));
            left_out += 1;
            continue;
        }
        let index = gpus.len() as u32;
        gpus.push(Gpu {
            index,
            uuid: information.uuid,
            pci_bus_id: Some(device.address.to_string()),
            model: information.model,
            numa_node: device.place.numa,
            ..Gpu::default()
        });
        places.push((index, device.place));
    }
    if gpus.is_empty() {
        let devices = names.len();
        return Err(SysfsError::NoGpu {
            path,
            devices,
            left_out,
        });
    }
    Ok((gpus, places))
}

fn is_gpu(directory: &Path) -> bool {
    let class = || attribute(directory, "class").unwrap_or_default();
    attribute(directory, "vendor").is_some_and(|vendor| vendor == NVIDIA)
        && GPU_CLASSES.iter().any(|known| class().starts_with(known))
}

/// GPUs that the driver's library does not number, so that the indices agree.
fn why_left_out(device: &Device, information: &information::Information) -> Option<&'static str> {
    let driver = std::fs::read_link(device.directory.join("driver")).ok();
    let driver = driver.as_deref().and_then(Path::file_name);
    if driver.is_some_and(|name| name == "vfio-pci") {
        return Some("is given to virtual machines (vfio-pci)");
    }
    information.excluded.then_some("is excluded in the driver")
}
