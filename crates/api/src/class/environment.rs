//! Checks a class's environment as the CRD's rules do, because a class may also
//! come from a file.

use std::net::IpAddr;

use crate::{
    class::syntax,
    crd::environment::{Environment, Fabric, MNNVL, Mnnvl, RoCE},
};

use super::{InvalidClass, word};

/// An environment that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidEnvironment {
    /// An RDMA fabric without RDMA devices.
    #[error("spec.environment: fabric {0:?} needs rdmaDevices or devices.nics")]
    NoRdma(Fabric),
    /// NICs with a fabric that does not use them, or besides RDMA devices of the class.
    #[error(
        "spec.devices.nics needs environment.fabric Infiniband or RoCE, without rdmaDevices: each pod uses the NICs of its claim"
    )]
    Nics,
    /// RDMA devices with a fabric that does not use them.
    #[error("spec.environment.rdmaDevices belongs to the fabrics Infiniband, RoCE and MNNVL")]
    Rdma,
    /// A field that needs another.
    #[error("spec.environment.{field} {needs}")]
    Misplaced {
        field: &'static str,
        needs: &'static str,
    },
    /// A number that is too large.
    #[error("spec.environment.roce.{field} is {value}; the maximum is {most}")]
    Number {
        field: &'static str,
        value: u32,
        /// The maximum.
        most: u32,
    },
    /// A variable with too long a value.
    #[error("spec.environment.extra: the value of {0:?} has more than {max} characters", max = syntax::LONGEST_VARIABLE)]
    Variable(String),
    /// A variable that selects the visible GPUs.
    #[error("spec.environment.extra must not set {0}: it follows from the devices mapping")]
    Reserved(String),
    /// A list of transports that leaves out GPU memory.
    #[error(
        "spec.environment.extra sets UCX_TLS to {0:?}: without cuda, UCX crashes on GPU memory"
    )]
    Transports(String),
}

const RESERVED: [&str; 3] = [
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
];

/// Checks an environment; `nics`: the pods of the class get NICs by their claims.
pub(super) fn check(environment: &Environment, nics: bool) -> Result<(), InvalidClass> {
    let listed = !environment.rdma_devices.is_empty();
    let sockets = matches!(
        environment.fabric,
        Fabric::None | Fabric::TCP | Fabric::PCIe
    );
    match environment.fabric {
        // GPUs of such racks and their NICs have no PCIe root in common.
        Fabric::MNNVL if nics => return Err(InvalidEnvironment::Nics.into()),
        _ if nics && (listed || sockets) => return Err(InvalidEnvironment::Nics.into()),
        Fabric::Infiniband | Fabric::RoCE if !listed && !nics => {
            return Err(InvalidEnvironment::NoRdma(environment.fabric).into());
        }
        _ if sockets && listed => return Err(InvalidEnvironment::Rdma.into()),
        _ => {}
    }
    let misplaced = |field, needs| Err(InvalidEnvironment::Misplaced { field, needs }.into());
    if environment.gpu_direct.is_some() && !listed && !nics {
        return misplaced(
            "gpuDirect",
            "is a distance to RDMA devices: set rdmaDevices or devices.nics",
        );
    }
    let used = |mnnvl| mnnvl != Mnnvl::Disabled;
    if environment.mnnvl.is_some_and(used) && environment.fabric != Fabric::MNNVL {
        return misplaced(
            "mnnvl",
            "belongs to the fabric MNNVL, unless it is Disabled",
        );
    }
    if environment.mnnvl == Some(Mnnvl::Managed) && environment.extra.contains_key(MNNVL) {
        return misplaced(
            "extra",
            "must not set NCCL_MNNVL_ENABLE: with mnnvl Managed, the queue sets it for each job",
        );
    }
    match &environment.roce {
        Some(_) if environment.fabric != Fabric::RoCE => {
            return misplaced("roce", "belongs to the fabric RoCE");
        }
        Some(roce) => check_roce(roce)?,
        None => {}
    }
    if let Some(name) = &environment.network_interface {
        let field = "spec.environment.networkInterface";
        word(field, name, "interface name", syntax::is_interface)?;
    }
    for name in &environment.rdma_devices {
        let field = "spec.environment.rdmaDevices";
        word(field, name, "RDMA device name", syntax::is_device)?;
    }
    check_extra(environment)
}

fn check_roce(roce: &RoCE) -> Result<(), InvalidClass> {
    for (field, value, most) in [
        ("trafficClass", roce.traffic_class, 255),
        ("serviceLevel", roce.service_level, 15),
        ("gidIndex", roce.gid_index, 255),
    ] {
        if let Some(value) = value.filter(|&value| value > most) {
            return Err(InvalidEnvironment::Number { field, value, most }.into());
        }
    }
    let misplaced = |field, needs| Err(InvalidEnvironment::Misplaced { field, needs }.into());
    if roce.gid_index.is_some() && (roce.address_family.is_some() || roce.address_range.is_some()) {
        return misplaced(
            "roce.gidIndex",
            "fixes the address: leave out addressFamily and addressRange",
        );
    }
    let Some(range) = &roce.address_range else {
        return Ok(());
    };
    if roce.address_family.is_none() {
        return misplaced("roce.addressRange", "needs addressFamily");
    }
    let field = "spec.environment.roce.addressRange";
    word(field, range, "address range, such as 10.0.0.0/8", is_range)
}

fn is_range(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else {
        return false;
    };
    let most = match address.parse() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    bits.parse::<u8>().is_ok_and(|bits| bits <= most) && !bits.starts_with('+')
}

fn check_extra(environment: &Environment) -> Result<(), InvalidClass> {
    for (name, value) in &environment.extra {
        let field = "spec.environment.extra";
        word(field, name, "variable name", syntax::is_variable)?;
        if RESERVED.contains(&name.as_str()) {
            return Err(InvalidEnvironment::Reserved(name.clone()).into());
        }
        if value.chars().count() > syntax::LONGEST_VARIABLE {
            return Err(InvalidEnvironment::Variable(name.clone()).into());
        }
        if name == "UCX_TLS" && !has_cuda(value) {
            let shown = value.chars().take(64).collect();
            return Err(InvalidEnvironment::Transports(shown).into());
        }
    }
    Ok(())
}

/// Reports whether a list of transports contains `cuda`, or a list of excluded
/// ones (after `^`) does not. The CRD's rule checks the same with a regular expression.
fn has_cuda(list: &str) -> bool {
    let cuda = |word: &str| {
        let word = word.split_once('_').map_or(word, |(family, _)| family);
        matches!(word, "cuda" | "all")
    };
    match list.strip_prefix('^') {
        Some(left_out) => !left_out.split(',').any(cuda),
        None => list.split(',').any(cuda),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn refused(environment: Value, expected: &str) {
        let environment = serde_json::from_value(environment).unwrap();
        let error = check(&environment, false).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }

    #[track_caller]
    fn accepted(environment: Value) {
        check(&serde_json::from_value(environment).unwrap(), false).unwrap();
    }

    #[test]
    fn nics_take_the_place_of_rdma_devices() {
        let checked = |environment: Value| {
            let environment = serde_json::from_value(environment).unwrap();
            check(&environment, true).map_err(|error| error.to_string())
        };
        for fabric in ["Infiniband", "RoCE"] {
            checked(json!({"fabric": fabric, "gpuDirect": "PIX"})).unwrap();
            let twice = json!({"fabric": fabric, "rdmaDevices": ["mlx5_0"]});
            assert!(checked(twice).unwrap_err().contains("without rdmaDevices"));
        }
        for fabric in ["None", "TCP", "PCIe", "MNNVL"] {
            let error = checked(json!({"fabric": fabric})).unwrap_err();
            assert!(error.contains("nics needs environment.fabric"), "{error}");
        }
    }

    #[test]
    fn devices_fit_the_fabric() {
        refused(json!({"fabric": "RoCE"}), "fabric RoCE needs rdmaDevices");
        refused(
            json!({"fabric": "Infiniband"}),
            "fabric Infiniband needs rdmaDevices",
        );
        refused(json!({"rdmaDevices": ["mlx5_0"]}), "belongs to the fabrics");
        refused(
            json!({"fabric": "PCIe", "rdmaDevices": ["mlx5_0"]}),
            "belongs to the fabrics",
        );
        refused(
            json!({"fabric": "TCP", "gpuDirect": "PXB"}),
            "gpuDirect is a distance",
        );
        refused(
            json!({"fabric": "TCP", "mnnvl": "Required"}),
            "mnnvl belongs",
        );
        refused(
            json!({"fabric": "MNNVL", "mnnvl": "Managed", "extra": {"NCCL_MNNVL_ENABLE": "2"}}),
            "extra must not set NCCL_MNNVL_ENABLE",
        );
        accepted(json!({"fabric": "MNNVL", "mnnvl": "Managed"}));
        accepted(json!({"fabric": "MNNVL", "mnnvl": "Required"}));
        accepted(json!({"mnnvl": "Disabled"}));
        accepted(json!({"fabric": "MNNVL", "rdmaDevices": ["ibp0"], "gpuDirect": "SYS"}));
    }

    #[test]
    fn roce_settings_are_consistent() {
        let roce = |roce: Value| json!({"fabric": "RoCE", "rdmaDevices": ["mlx5_0"], "roce": roce});
        refused(json!({"fabric": "TCP", "roce": {}}), "roce belongs");
        refused(roce(json!({"trafficClass": 256})), "trafficClass is 256");
        refused(roce(json!({"serviceLevel": 16})), "serviceLevel is 16");
        refused(
            roce(json!({"gidIndex": 3, "addressFamily": "AF_INET"})),
            "fixes the address",
        );
        refused(
            roce(json!({"addressRange": "10.0.0.0/8"})),
            "needs addressFamily",
        );
        for range in [
            "10.0.0.0",
            "10.0.0.0/33",
            "10.0.0/8",
            "fd02::/129",
            "fd02::/+16",
            "x/8",
        ] {
            let range = json!({"addressFamily": "AF_INET6", "addressRange": range});
            refused(roce(range), "not a valid address range");
        }
        accepted(roce(
            json!({"trafficClass": 106, "serviceLevel": 3, "gidIndex": 3}),
        ));
        accepted(roce(
            json!({"addressFamily": "AF_INET6", "addressRange": "fd02::/16"}),
        ));
    }

    #[test]
    fn invalid_values_are_refused() {
        refused(
            json!({"networkInterface": "eth0 "}),
            "not a valid interface name",
        );
        let devices = json!({"fabric": "RoCE", "rdmaDevices": ["mlx5_0,x"]});
        refused(devices, "not a valid RDMA device name");
        refused(json!({"extra": {"A-B": "1"}}), "not a valid variable name");
        let long = "x".repeat(4097);
        refused(json!({"extra": {"A": long}}), "more than 4096 characters");
        refused(
            json!({"extra": {"CUDA_DEVICE_ORDER": "x"}}),
            "CUDA_DEVICE_ORDER",
        );
    }

    #[test]
    fn transports_keep_cuda() {
        for list in [
            "rc,sm,self",
            "",
            "^cuda",
            "^tcp,cuda_ipc",
            "^all",
            "cudax",
            "barracuda",
            "^tcp,cuda_ipc2",
            "tcp,^cuda",
            "x^cuda",
        ] {
            refused(json!({"extra": {"UCX_TLS": list}}), "without cuda");
        }
        for list in [
            "rc,cuda,sm",
            "cuda",
            "cuda_copy,tcp",
            "tcp,cuda_ipc2",
            "all",
            "^tcp,sm",
            "^tcp,^cuda",
        ] {
            accepted(json!({"extra": {"UCX_TLS": list}}));
        }
    }
}
