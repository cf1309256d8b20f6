//! Interprets the driver's information about a GPU's NVLink fabric. Pure functions.

use nvlink_topology::{Fabric, Tray};

use super::raw::{FabricInfo, PlatformInfo};
use crate::{FabricCondition, FabricHealth, FabricState};

/// The conditions of two bits each, with their position in the mask.
const CONDITIONS: [(FabricCondition, u32); 4] = [
    (FabricCondition::DegradedBandwidth, 0),
    (FabricCondition::RouteRecovery, 2),
    (FabricCondition::RouteUnhealthy, 4),
    (FabricCondition::AccessTimeoutRecovery, 6),
];
/// The position of the condition of four bits, which also encodes what is incorrect.
const INCORRECT_CONFIGURATION: u32 = 8;

impl FabricInfo {
    /// Returns the state of the registration; `None` if the GPU has no fabric.
    pub(super) fn progress(&self) -> Option<FabricState> {
        match (self.state, self.status) {
            (1, _) => Some(FabricState::NotStarted),
            (2, _) => Some(FabricState::InProgress),
            (3, 0) => Some(FabricState::Completed),
            (3, _) => Some(FabricState::Failed),
            _ => None,
        }
    }

    /// Returns state and conditions; `None` if the GPU has no fabric.
    pub(super) fn condition(&self) -> Option<FabricHealth> {
        Some(FabricHealth {
            state: self.progress()?,
            conditions: self.health.map(conditions).unwrap_or_default(),
        })
    }

    /// Returns the fabric that spans nodes, if the GPU is part of one.
    pub(super) fn multi_node(&self) -> Option<Fabric> {
        (self.progress() == Some(FabricState::Completed))
            .then(|| Fabric::new(&uuid(&self.cluster_uuid), self.clique))
            .flatten()
    }

    /// Reports whether both GPUs are in the same partition of the same fabric.
    pub(super) fn reaches(&self, other: &Self) -> bool {
        let place = |info: &Self| (info.progress(), info.cluster_uuid, info.clique);
        place(self) == place(other) && self.progress() == Some(FabricState::Completed)
    }
}

impl PlatformInfo {
    /// Returns the compute tray; `None` if the chassis has no serial number, as an HGX board.
    pub(super) fn tray(&self) -> Option<Tray> {
        let text = self.chassis.split(|&byte| byte == 0).next()?;
        let chassis = str::from_utf8(text).ok()?.trim();
        let known = !chassis.is_empty() && chassis.bytes().all(|byte| byte.is_ascii_graphic());
        known.then(|| Tray {
            chassis: chassis.to_owned(),
            index: self.tray,
            slot: self.slot,
        })
    }
}

fn conditions(mask: u32) -> Vec<(FabricCondition, bool)> {
    let two_bits = CONDITIONS
        .iter()
        .filter_map(|&(condition, shift)| match mask >> shift & 3 {
            1 => Some((condition, true)),
            2 => Some((condition, false)),
            _ => None,
        });
    let incorrect = match mask >> INCORRECT_CONFIGURATION & 0xf {
        0 => None,
        1 => Some((FabricCondition::IncorrectConfiguration, false)),
        _ => Some((FabricCondition::IncorrectConfiguration, true)),
    };
    two_bits.chain(incorrect).collect()
}

/// Formats a UUID as `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
fn uuid(bytes: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (n, byte) in bytes.iter().enumerate() {
        if matches!(n, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(state: u32, status: u32) -> FabricInfo {
        FabricInfo {
            cluster_uuid: [0; 16],
            clique: 0,
            state,
            status,
            health: None,
        }
    }

    #[test]
    fn a_registration_with_an_error_has_failed() {
        let states = [(0, 0), (1, 0), (2, 0), (3, 0), (3, 999), (7, 0)];
        let found = states.map(|(state, status)| info(state, status).progress());
        let wanted = [
            None,
            Some(FabricState::NotStarted),
            Some(FabricState::InProgress),
            Some(FabricState::Completed),
            Some(FabricState::Failed),
            None,
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn conditions_that_the_mask_does_not_report_are_absent() {
        use FabricCondition::*;
        assert_eq!(conditions(0), []);
        // Bandwidth not degraded, route recovery in progress, configuration correct.
        let mask = 0b10 | 0b01 << 2 | 1 << 8;
        assert_eq!(
            conditions(mask),
            [
                (DegradedBandwidth, false),
                (RouteRecovery, true),
                (IncorrectConfiguration, false)
            ]
        );
        let all = 0b01 | 0b01 << 2 | 0b01 << 4 | 0b10 << 6 | 5 << 8;
        assert_eq!(
            conditions(all),
            [
                (DegradedBandwidth, true),
                (RouteRecovery, true),
                (RouteUnhealthy, true),
                (AccessTimeoutRecovery, false),
                (IncorrectConfiguration, true)
            ]
        );
    }

    #[test]
    fn a_chassis_without_a_serial_number_is_no_rack() {
        let of = |serial: &[u8]| {
            let mut chassis = [0; 16];
            chassis[..serial.len()].copy_from_slice(serial);
            let info = PlatformInfo {
                chassis,
                slot: 9,
                tray: 4,
            };
            info.tray()
                .map(|tray| (tray.chassis, tray.slot, tray.index))
        };
        let full = "1821325191344000";
        assert_eq!(of(b"18213\0junk"), Some(("18213".to_owned(), 9, 4)));
        assert_eq!(of(full.as_bytes()), Some((full.to_owned(), 9, 4)));
        assert_eq!(of(b" 18213 "), Some(("18213".to_owned(), 9, 4)));
        assert_eq!(
            [of(b""), of(b"   "), of(b"a\x01b"), of(&[0xff, 0xfe])],
            [const { None }; 4]
        );
    }

    #[test]
    fn a_fabric_with_an_all_zero_cluster_does_not_span_nodes() {
        let mut one = info(3, 0);
        assert_eq!(one.multi_node(), None);
        assert!(one.reaches(&info(3, 0)), "an HGX board is one partition");
        one.cluster_uuid[0] = 0x4b;
        one.cluster_uuid[15] = 1;
        one.clique = 3;
        let fabric = one.multi_node().unwrap();
        assert_eq!(fabric.id(), "4b000000-0000-0000-0000-000000000001.3");
        assert!(!one.reaches(&info(3, 0)));
        one.state = 2;
        assert_eq!(one.multi_node(), None);
        assert!(!one.reaches(&one.clone()), "not before it has completed");
    }
}
