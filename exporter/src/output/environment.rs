//! `place --output env`: what a runner on a plain machine evaluates before it starts a job.

use nvlink_topology::Placement;

/// `export` lines for a job on the GPUs of `placement`, in rank order.
///
/// Nothing here changes NCCL's choice of paths: inside one node its own
/// defaults are right, be it a domain, bridges or PCIe (and `NCCL_P2P_LEVEL`
/// and the like are known to switch NVLink off by mistake). UCX, where it is
/// used at all, must be told of CUDA in the same list as its other transports.
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
