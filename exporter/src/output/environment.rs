//! `place --output env`: the lines that a runner outside Kubernetes evaluates before it starts a
//! job.

use nvlink_topology::Placement;

/// Returns `export` lines for a job on the GPUs of `placement`, in rank order.
///
/// None of them changes NCCL's choice of paths: inside one node its defaults
/// are right for a domain, for bridges and for PCIe (and settings such as
/// `NCCL_P2P_LEVEL` are known to switch NVLink off by mistake). UCX, if the job
/// uses it, needs `cuda` in the same list as its other transports.
#[must_use]
pub fn render(placement: &Placement) -> String {
    let gpus: Vec<_> = placement.gpus.iter().map(ToString::to_string).collect();
    let mut lines = vec![
        "export CUDA_DEVICE_ORDER=PCI_BUS_ID".to_owned(),
        format!("export CUDA_VISIBLE_DEVICES={}", gpus.join(",")),
    ];
    if gpus.len() > 1 {
        lines.push("export UCX_TLS=cuda,sm,self,tcp".to_owned());
    }
    lines.join("\n") + "\n"
}
