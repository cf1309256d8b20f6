//! Notices when something else keeps writing what this program publishes.

use nvlink_topology::NodeTopologySpec;

/// So many rewrites of an unchanged document are no accident; said again after as many.
const MANY: u32 = 3;
/// So many looks without a rewrite end the matter.
const CALM: u32 = 10;

/// What happened to the document that was published last.
#[derive(Default)]
pub(super) struct Rivals {
    spec: Option<NodeTopologySpec>,
    rewrites: u32,
    calm: u32,
}

impl Rivals {
    /// After a look at the cluster that found `spec` there, or had to write it:
    /// the number of rewrites, where it is time to speak of them.
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
    use super::*;
    use crate::source::SourceSpec;

    fn spec(source: &str) -> NodeTopologySpec {
        let source: SourceSpec = source.parse().unwrap();
        let reading = source.open(Some("n")).unwrap().read(Default::default());
        reading.unwrap().topology.spec
    }

    #[test]
    fn many_rewrites_are_told_once_in_a_while() {
        let (mut rivals, spec) = (Rivals::default(), spec("sim:l40s"));
        let told: Vec<_> = (0..8).map(|_| rivals.look(&spec, true)).collect();
        let (three, six) = (Some(3), Some(6));
        assert_eq!(told, [None, None, None, three, None, None, six, None]);
    }

    #[test]
    fn a_rival_that_writes_less_often_is_told_too() {
        let (mut rivals, spec) = (Rivals::default(), spec("sim:l40s"));
        let mut looks = (0..20).map(|n| rivals.look(&spec, n % 3 == 0));
        assert!(looks.any(|told| told.is_some()));
    }

    #[test]
    fn a_change_of_one_s_own_and_a_calm_while_are_no_fight() {
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
