//! The source `sysfs`: GPUs, NUMA nodes, PCIe paths and NICs, as the kernel
//! shows them without the driver's library.
//!
//! The kernel's tree does not show NVLink, so links are *unknown* here, which
//! is not the same as none. The tree may be below any directory, such as that of
//! the host in a container (`/host`) or a copy.

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

/// Why the kernel's PCI tree cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SysfsError {
    /// An existing file or directory cannot be read.
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
    /// A symbolic link points out of the tree.
    #[error("{} points to {}, outside of {}: this is not a trustworthy copy of /sys",
        path.display(), target.display(), root.display())]
    Escapes {
        path: PathBuf,
        target: PathBuf,
        root: PathBuf,
    },
    /// A directory with more entries than any machine has devices.
    #[error("{} has more entries than a machine has devices", .0.display())]
    Endless(PathBuf),
    /// There is no PCI bus.
    #[error("{} does not exist: there is no PCI bus, or a sandbox hides it", .0.display())]
    NoBus(PathBuf),
    /// More GPUs than a document may have.
    #[error("{gpus} NVIDIA GPUs in {}; a node may have at most {MAX_GPUS}", path.display())]
    Crowded { path: PathBuf, gpus: usize },
    /// There is a PCI bus without a GPU.
    #[error(
        "no NVIDIA GPU among the {devices} devices of {} (searched for vendor {NVIDIA}, class \
         0x0302 or 0x0300{})", path.display(), if *.left_out > 0 { "; GPUs that the driver does not use are skipped" } else { "" }
    )]
    NoGpu {
        path: PathBuf,
        /// Number of devices that were examined.
        devices: usize,
        /// Number of GPUs that were skipped.
        left_out: usize,
    },
}

impl SysfsError {
    fn io(path: &Path, error: io::Error) -> Self {
        let path = path.to_owned();
        Self::Io { path, error }
    }
}

/// The kernel's PCI tree below a root directory.
pub(crate) struct SysfsSource {
    root: PathBuf,
    node: Option<String>,
}

impl SysfsSource {
    /// Creates a source of the tree below `root` (by default `/`) for the node
    /// `node` (by default the host's name).
    #[must_use]
    pub(crate) fn new(root: Option<&str>, node: Option<String>) -> Self {
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

/// Returns the NICs below `root` (`/` on the machine itself), by PCI address,
/// and warnings about them. Each NIC has the indices of the nearest of `gpus`.
///
/// Also works for sources that know the GPUs from elsewhere: a GPU is found by
/// its `pci_bus_id`. A GPU without an address in the tree is near no NIC.
///
/// # Errors
/// A tree that cannot be read. A tree without a PCI bus or without NICs is not
/// an error and has no NICs.
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

/// Reads the node `node` from the kernel's tree below `root`.
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
    let source = ReadFrom {
        kind: SourceKind::Sysfs,
        from: from.clone(),
    };
    let mut spec = NodeTopologySpec {
        paths: tree.paths(&places),
        nics: nics.nics,
        ..NodeTopologySpec::of(source, gpus)
    };
    let odd = spec
        .complete(node)
        .map_err(|error| SourceError::Invalid { name: from, error })?;
    warnings.extend(odd);
    let matrix = tree.matrix(&spec, &places, &nics.places);
    Ok(Reading {
        matrix: Some(matrix),
        warnings,
        ..Reading::of(NodeTopology::new(node, spec))
    })
}

/// Reports whether the machine has one NUMA node, so that -1 can only mean that one.
fn tree(root: &Root) -> Result<Tree, SysfsError> {
    let system = root.path("sys/devices/system");
    let directory = |name: &str| root.resolve(&system.join(name));
    let one_numa_node = match directory("node")? {
        Some(nodes) => attribute(&nodes, "online").is_some_and(|online| online == "0"),
        // A kernel without NUMA. In a tree without CPUs it stays unknown.
        None => directory("cpu")?.is_some(),
    };
    Ok(Tree::Ports { one_numa_node })
}

type Gpus = (Vec<Gpu>, Vec<(u32, Place)>);

/// Returns the GPUs by ascending address, which is the driver's order.
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
            warnings.push(format!("GPU at {} {reason}: skipped", device.address));
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

/// Returns why a GPU is skipped. GPUs that the driver's library does not number
/// are skipped, so that the indices agree with it.
fn why_left_out(device: &Device, information: &information::Information) -> Option<&'static str> {
    let driver = std::fs::read_link(device.directory.join("driver")).ok();
    let driver = driver.as_deref().and_then(Path::file_name);
    if driver.is_some_and(|name| name == "vfio-pci") {
        return Some("is assigned to virtual machines (vfio-pci)");
    }
    information.excluded.then_some("is excluded by the driver")
}
