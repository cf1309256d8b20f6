//! Pairs of GPUs: PCIe distance and peer access.

use nvlink_topology::PathClass;
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlGpuP2PCapsIndex_t, nvmlGpuP2PStatus_t, nvmlGpuTopologyLevel_t,
};

use crate::{
    board::Board,
    c::{INVALID_ARGUMENT, put},
    call::export,
};

const P2P_OK: u32 = 0;
const P2P_NOT_SUPPORTED: u32 = 5;
const INDEX_NVLINK: u32 = 2;

export! {
    fn nvmlDeviceGetTopologyCommonAncestor(
        call, one: nvmlDevice_t, other: nvmlDevice_t, level: *mut nvmlGpuTopologyLevel_t,
    ) {
        let (one, other) = (call.gpu(one)?, call.gpu(other)?);
        put(level, distance(&other.board, one.position, other.position))
    }

    fn nvmlDeviceGetP2PStatus(
        call, one: nvmlDevice_t, other: nvmlDevice_t, index: nvmlGpuP2PCapsIndex_t,
        status: *mut nvmlGpuP2PStatus_t,
    ) {
        let (one, other) = (call.gpu(one)?, call.gpu(other)?);
        if one.position == other.position || index > 4 {
            return Err(INVALID_ARGUMENT);
        }
        put(status, p2p(&other.board, (one.position, other.position), index))
    }
}

fn distance(board: &Board, one: usize, other: usize) -> u32 {
    let numa = |position: usize| board.cards[position].gpu.numa_node;
    let class = board.classes.get(&(one.min(other), one.max(other)));
    match class {
        _ if one == other => 0,
        Some(PathClass::Pix) => 10,
        Some(PathClass::Pxb) => 20,
        Some(PathClass::Phb) => 30,
        Some(PathClass::Node) => 40,
        Some(_) => 50,
        // The recording has NVLink for this pair and no PCIe path.
        None if numa(one) == numa(other) => 40,
        None => 50,
    }
}

fn p2p(board: &Board, (one, other): (usize, usize), index: u32) -> u32 {
    let fits = |rule: &&crate::config::P2p| {
        let pair = [Some((one, other)), Some((other, one)), None].contains(&rule.pair);
        pair && rule.index.is_none_or(|wanted| wanted == index)
    };
    if let Some(rule) = board.config.p2p.iter().find(fits) {
        return rule.status;
    }
    let joined = board.edges.contains(&(one.min(other), one.max(other)));
    match index == INDEX_NVLINK && !joined {
        true => P2P_NOT_SUPPORTED,
        false => P2P_OK,
    }
}
