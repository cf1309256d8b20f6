//! `place --output env`: the lines that a runner outside Kubernetes evaluates before it starts a
//! job.

use nvlink_topology::Placement;

/// Returns `export` lines for a job on the GPUs of `placement`, in rank order.
///
/// Only these two: inside one node, the defaults of NCCL and UCX are right for a
/// domain, for bridges and for PCIe. A setting that is meant for one node, such as
/// `NCCL_P2P_LEVEL` or `UCX_TLS`, switches NVLink or RDMA off in a job of several.
#[must_use]
pub fn render(placement: &Placement) -> String {
    let gpus: Vec<_> = placement.gpus.iter().map(ToString::to_string).collect();
    format!(
        "export CUDA_DEVICE_ORDER=PCI_BUS_ID\nexport CUDA_VISIBLE_DEVICES={}\n",
        gpus.join(",")
    )
}
