//! Detects another program that keeps changing what this program publishes.

use nvlink_topology::NodeTopologySpec;

/// This many rewrites of an unchanged document are no coincidence; each further
/// multiple is reported again.
const MANY: u32 = 3;
/// This many checks without a rewrite reset the count.
const CALM: u32 = 10;

/// The history of the last published document.
#[derive(Default)]
pub(super) struct Rivals {
    spec: Option<NodeTopologySpec>,
    rewrites: u32,
    calm: u32,
}

impl Rivals {
    /// Counts a check of the cluster that found `spec`, or had to write it. Returns
    /// the number of rewrites if it should be reported.
    pub(super) fn look(&mut self, spec: &NodeTopologySpec, wrote: bool) -> Option<u32> {
        if self.spec.as_ref() != Some(spec) {
            *self = Self {
                spec: Some(spec.clone()),
                ..Self::default()
            };
            return None;
        }
        if !wrote {
            self.calm += 1;
            if self.calm >= CALM {
                (self.rewrites, self.calm) = (0, 0);
            }
            return None;
        }
        self.calm = 0;
        self.rewrites = self.rewrites.saturating_add(1);
        self.rewrites.is_multiple_of(MANY).then_some(self.rewrites)
    }
}

#[cfg(test)]
mod tests {
    use nvlink_source::SourceSpec;

    use super::*;

    fn spec(source: &str) -> NodeTopologySpec {
        let source: SourceSpec = source.parse().unwrap();
        let reading = source.open(Some("n")).unwrap().read(Default::default());
        reading.unwrap().topology.spec
    }

    #[test]
    fn every_third_rewrite_is_reported() {
        let (mut rivals, spec) = (Rivals::default(), spec("sim:l40s"));
        let told: Vec<_> = (0..8).map(|_| rivals.look(&spec, true)).collect();
        let (three, six) = (Some(3), Some(6));
        assert_eq!(told, [None, None, None, three, None, None, six, None]);
    }

    #[test]
    fn a_rival_that_writes_less_often_is_reported_too() {
        let (mut rivals, spec) = (Rivals::default(), spec("sim:l40s"));
        let mut looks = (0..20).map(|n| rivals.look(&spec, n % 3 == 0));
        assert!(looks.any(|told| told.is_some()));
    }

    #[test]
    fn own_changes_and_rare_rewrites_are_not_reported() {
        let mut rivals = Rivals::default();
        for source in ["sim:l40s", "sim:dgx-h100"].iter().cycle().take(20) {
            assert_eq!(rivals.look(&spec(source), true), None);
        }
        let spec = spec("sim:l40s");
        for n in 0..200 {
            assert_eq!(rivals.look(&spec, n % 20 == 0), None);
        }
    }
}
