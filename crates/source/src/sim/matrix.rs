//! The matrix of a profile.

use nvlink_topology::{
    NodeTopologySpec,
    profile::{NicSlot, Profile},
};

use crate::topo_matrix::{self, Matrix, NicColumn, Relation};

/// Returns the matrix that `topo -m` would print.
pub(super) fn of(profile: &Profile, spec: &NodeTopologySpec) -> Matrix {
    let mut matrix = topo_matrix::of_document(spec);
    for row in &mut matrix.gpus {
        let from = &profile.gpus[row.index as usize];
        let to_nics = profile
            .nics
            .iter()
            .map(|nic| Relation::Class(from.class(&nic.slot)));
        row.to_nics = to_nics.collect();
    }
    let column = |(n, nic): (usize, &NicSlot)| NicColumn {
        title: format!("NIC{n}"),
        name: nic.name.to_owned(),
        to_nics: profile
            .nics
            .iter()
            .map(|other| match other.slot.bus == nic.slot.bus {
                true => Relation::Own,
                false => Relation::Class(nic.slot.class(&other.slot)),
            })
            .collect(),
    };
    matrix.nics = profile.nics.iter().enumerate().map(column).collect();
    matrix
}
