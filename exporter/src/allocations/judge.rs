//! Judges the quality of a job's GPUs. The search may take long on a large node, so
//! each question is answered only once.

use std::collections::HashMap;

use nvlink_topology::{Allocation, GpuSet, Graph, NodeTopologySpec, Pattern, search};

use crate::placement::{Judged, PatternFrom};

/// Judges placements on one node, and remembers the verdicts.
#[derive(Debug, Default)]
pub struct Judge {
    spec: Option<NodeTopologySpec>,
    graph: Option<Graph>,
    /// The GPUs that are marked as broken.
    broken: Vec<u32>,
    known: HashMap<Question, Verdict>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Question {
    gpus: Vec<u32>,
    free: Option<Vec<u32>>,
    pattern: Pattern,
}

#[derive(Clone, Debug, Default)]
struct Verdict {
    /// The pattern fits the number of GPUs.
    fits: bool,
    bottleneck_bytes_per_second: Option<u64>,
    quality_node: Option<f64>,
    quality_free: Option<f64>,
}

impl Judge {
    /// Judges `allocations` in their order, each with the pattern that the webhook
    /// chose for it. Without a pattern, or with one for another number of GPUs (the
    /// shape of a whole gang), all-reduce is assumed.
    pub fn judge(
        &mut self,
        spec: &NodeTopologySpec,
        allocations: Vec<(Allocation, Option<Pattern>)>,
    ) -> Vec<Judged> {
        if self.spec.as_ref() != Some(spec) {
            self.known.clear();
            // Without known NVLinks a job would look worse than it is.
            let graph = spec.knows_nvlink().then(|| Graph::new(spec).ok());
            self.graph = graph.flatten();
            self.broken = spec.broken_gpus().collect();
            self.spec = Some(spec.clone());
        }
        let mut before = std::mem::take(&mut self.known);
        let mut judged = Vec::with_capacity(allocations.len());
        for (allocation, decided) in allocations {
            let mut ask = |pattern| self.ask(&mut before, &allocation, pattern);
            let fitting = decided.and_then(|pattern| Some((pattern, ask(pattern)?)));
            let (pattern, pattern_from, verdict) = match fitting {
                Some((pattern, verdict)) => (pattern, PatternFrom::Decision, verdict),
                None => {
                    let pattern = Pattern::default();
                    let verdict = ask(pattern).unwrap_or_default();
                    (pattern, PatternFrom::Default, verdict)
                }
            };
            judged.push(Judged {
                domains: (spec.knows_nvlink() && !allocation.gpus.is_empty())
                    .then(|| domains(spec, &allocation.gpus)),
                lost: Vec::new(),
                model: spec.model_of(&allocation.gpus).map(str::to_owned),
                path: spec.slowest_path(&allocation.gpus),
                class: None,
                project: None,
                gang: None,
                bottleneck_bytes_per_second: verdict.bottleneck_bytes_per_second,
                quality_node: verdict.quality_node,
                quality_free: verdict.quality_free,
                allocation,
                pattern,
                pattern_from,
            });
        }
        judged
    }

    /// Returns the verdict, from memory if possible; `None` if the pattern does not fit.
    fn ask(
        &mut self,
        before: &mut HashMap<Question, Verdict>,
        allocation: &Allocation,
        pattern: Pattern,
    ) -> Option<Verdict> {
        // A job that did not get a broken GPU is placed no worse for it.
        let counts = |gpu: &u32| allocation.gpus.contains(gpu) || !self.broken.contains(gpu);
        let free = allocation.free_when_placed.as_ref();
        let question = Question {
            gpus: allocation.gpus.clone(),
            free: free.map(|free| free.iter().copied().filter(counts).collect()),
            pattern,
        };
        let graph = self.graph.as_ref();
        let verdict = self.known.entry(question).or_insert_with_key(|question| {
            before.remove(question).unwrap_or_else(|| {
                let verdict = graph.map(|graph| verdict(graph, question));
                verdict.unwrap_or_else(Verdict::unjudged)
            })
        });
        Some(verdict.clone()).filter(|verdict| verdict.fits)
    }
}

impl Verdict {
    /// Returns the verdict for a node whose graph is unknown: the chosen pattern is
    /// kept, without a quality.
    fn unjudged() -> Self {
        Self {
            fits: true,
            ..Self::default()
        }
    }
}

fn verdict(graph: &Graph, question: &Question) -> Verdict {
    let Ok(held) = graph.set(&question.gpus) else {
        // A recording may have allocations of GPUs that it does not have.
        return Verdict::default();
    };
    // Free GPUs that no longer exist do not count.
    let free = question.free.as_ref().map(|free| {
        let there = free.iter().filter_map(|&gpu| graph.set(&[gpu]).ok());
        there
            .flat_map(|gpu| gpu.iter().collect::<Vec<_>>())
            .chain(held.iter())
            .collect::<GpuSet>()
    });
    let all = graph.all();
    match search::rate(graph, held, free.unwrap_or(all), question.pattern) {
        Ok(placement) => Verdict {
            fits: true,
            bottleneck_bytes_per_second: placement.bottleneck_bytes_per_second,
            quality_node: Some(placement.quality.node),
            quality_free: free.map(|_| placement.quality.free),
        },
        Err(_) => Verdict::default(),
    }
}

/// Returns the number of NVLink domains of the GPUs; a GPU outside any domain counts as
/// one.
fn domains(spec: &NodeTopologySpec, gpus: &[u32]) -> usize {
    let domains = spec.domains.iter();
    let touched = domains.filter(|one| gpus.iter().any(|gpu| one.gpus.contains(gpu)));
    let alone = gpus.iter().filter(|&&gpu| spec.domain_of(gpu).is_none());
    touched.count() + alone.count()
}

#[cfg(test)]
mod tests {
    use nvlink_source::SourceSpec;
    use nvlink_topology::{Fault, PathClass};

    use super::*;

    fn spec(source: &str) -> NodeTopologySpec {
        let source: SourceSpec = source.parse().unwrap();
        let reading = source.open(Some("n")).unwrap().read(Default::default());
        reading.unwrap().topology.spec
    }

    fn held(gpus: &[u32], free: Option<&[u32]>) -> Allocation {
        Allocation {
            gpus: gpus.to_vec(),
            free_when_placed: free.map(<[u32]>::to_vec),
            ..Allocation::default()
        }
    }

    fn one(judge: &mut Judge, spec: &NodeTopologySpec, held: Allocation, pattern: &str) -> Judged {
        let pattern = pattern.parse().ok();
        judge.judge(spec, vec![(held, pattern)]).remove(0)
    }

    /// On a DGX-1 GPUs 0 and 3 have two links, 0 and 1 one, 0 and 5 none.
    #[test]
    fn quality_is_relative_to_the_node_and_to_the_free_gpus() {
        let spec = spec("sim:dgx1-v100");
        let mut judge = Judge::default();
        let mut quality = |gpus: &[u32], free: Option<&[u32]>| {
            let judged = one(&mut judge, &spec, held(gpus, free), "");
            assert_eq!(judged.pattern_from, PatternFrom::Default);
            (judged.quality_node.unwrap(), judged.quality_free)
        };
        assert_eq!(quality(&[0, 3], None), (1.0, None));
        assert_eq!(quality(&[0, 1], Some(&[0, 1])), (0.5, Some(1.0)));
        assert_eq!(quality(&[0, 1], Some(&[0, 1, 2, 3])), (0.5, Some(0.5)));
        let (node, free) = quality(&[0, 5], Some(&[0, 2, 5]));
        let free = free.unwrap();
        assert!(node < 0.4 && node < free && free < 1.0, "{node} {free}");
        assert_eq!(
            quality(&[6], Some(&[6, 99])),
            (1.0, Some(1.0)),
            "GPU 99 is gone"
        );
    }

    #[test]
    fn broken_gpus_that_were_free_count_only_for_their_holder() {
        let mut spec = spec("sim:dgx1-v100");
        let free = [0, 1, 3];
        let mut judge = Judge::default();
        let mut quality = |spec: &NodeTopologySpec, gpus: &[u32]| {
            one(&mut judge, spec, held(gpus, Some(&free)), "").quality_free
        };
        assert_eq!(quality(&spec, &[0, 1]), Some(0.5), "0 and 3 have two links");
        spec.gpus[3].faults = vec![Fault::Xid(74)];
        assert_eq!(quality(&spec, &[0, 1]), Some(1.0));
        assert_eq!(quality(&spec, &[1, 3]), Some(0.5), "0 and 3 were free");
    }

    #[test]
    fn a_verdict_has_a_bottleneck_and_domains() {
        let pairs = spec("sim:a100-pcie-pairs");
        let mut judge = Judge::default();
        let judged = one(&mut judge, &pairs, held(&[0, 1, 2], None), "");
        assert_eq!(judged.domains, Some(2));
        let single = one(&mut judge, &pairs, held(&[1], None), "");
        assert_eq!(
            (single.domains, single.bottleneck_bytes_per_second),
            (Some(1), None)
        );
        let l40s = spec("sim:l40s");
        let apart = one(&mut judge, &l40s, held(&[0, 1], None), "");
        assert_eq!(apart.domains, Some(2));
        let gone = one(&mut judge, &l40s, held(&[77], None), "");
        assert_eq!(
            (gone.quality_node, gone.bottleneck_bytes_per_second),
            (None, None)
        );
    }

    #[test]
    fn the_class_of_a_placement_is_that_of_its_slowest_path() {
        use PathClass::{Node, Nvlink, Sys};
        let pairs = spec("sim:a100-pcie-pairs");
        let paths = |gpus: &[u32]| one(&mut Judge::default(), &pairs, held(gpus, None), "").path;
        assert_eq!(paths(&[0, 1]), Some(Nvlink));
        assert_eq!(paths(&[0, 1, 2]).max(Some(Node)), paths(&[0, 1, 2]));
        let across = pairs.paths.iter().find(|path| path.class == Sys).unwrap();
        assert_eq!(paths(&[across.a, across.b]), Some(Sys));
        assert_eq!((paths(&[3]), paths(&[])), (None, None));
        assert_eq!(paths(&[0, 77]), None, "an unknown path");
        let mut partly = pairs.clone();
        partly.paths.retain(|path| (path.a, path.b) != (0, 2));
        let of = |spec, gpus: &[u32]| one(&mut Judge::default(), spec, held(gpus, None), "");
        assert_eq!(of(&partly, &[0, 1, 2]).path, None, "an unknown path");
        assert_eq!(of(&partly, &[0, 1]).path, Some(Nvlink));
    }

    #[test]
    fn the_model_is_that_of_all_gpus() {
        let mut pairs = spec("sim:a100-pcie-pairs");
        let model = |spec: &NodeTopologySpec, gpus: &[u32]| {
            one(&mut Judge::default(), spec, held(gpus, None), "").model
        };
        assert_eq!(model(&pairs, &[0, 3]), pairs.gpus[0].model);
        assert!(model(&pairs, &[0, 3]).unwrap().contains("A100"));
        assert_eq!(model(&pairs, &[]), None);
        pairs.gpus[3].model = Some("NVIDIA L40S".to_owned());
        assert_eq!(model(&pairs, &[0, 3]), None);
        assert_eq!(model(&pairs, &[3]).as_deref(), Some("NVIDIA L40S"));
        pairs.gpus[3].model = None;
        assert_eq!((model(&pairs, &[0, 3]), model(&pairs, &[3])), (None, None));
    }

    #[test]
    fn a_chosen_pattern_is_used_where_it_fits() {
        let spec = spec("sim:dgx1-v100");
        let mut judge = Judge::default();
        let mut pattern = |text: &str| {
            let judged = one(&mut judge, &spec, held(&[0, 1, 2, 3], None), text);
            (judged.pattern.to_string(), judged.pattern_from)
        };
        let decision = |text: &str| (text.to_owned(), PatternFrom::Decision);
        assert_eq!(pattern("all-to-all"), decision("all-to-all"));
        assert_eq!(pattern("tp=2,pp=2"), decision("tp=2,pp=2"));
        let default = ("all-reduce".to_owned(), PatternFrom::Default);
        assert_eq!(pattern("tp=8"), default, "the shape of a gang");
    }

    #[test]
    fn verdicts_are_remembered_until_the_hardware_changes() {
        let nvl72 = spec("sim:gb200-nvl72");
        let mut judge = Judge::default();
        let gpus: Vec<u32> = nvl72.gpus.iter().map(|gpu| gpu.index).collect();
        let jobs = || {
            gpus.chunks(2)
                .map(|pair| (held(pair, Some(&gpus)), None))
                .collect()
        };
        let judged = judge.judge(&nvl72, jobs());
        assert!(judged.iter().all(|one| one.quality_free == Some(1.0)));
        for verdict in judge.known.values_mut() {
            verdict.quality_free = Some(0.5);
        }
        let again = judge.judge(&nvl72, jobs());
        assert!(again.iter().all(|one| one.quality_free == Some(0.5)));
        assert_eq!(judge.known.len(), gpus.len() / 2);
        judge.judge(&nvl72, Vec::new());
        assert!(judge.known.is_empty(), "verdicts end with their pod");
        let l40s = spec("sim:l40s");
        let apart = one(&mut judge, &l40s, held(&[0, 1], None), "");
        assert_eq!(apart.domains, Some(2));
    }

    #[test]
    fn without_known_nvlinks_nothing_is_judged() {
        let mut unknown = spec("sim:l40s");
        for gpu in &mut unknown.gpus {
            gpu.links = None;
        }
        let judged = one(&mut Judge::default(), &unknown, held(&[0, 1], None), "");
        assert_eq!((judged.domains, judged.path), (None, None));
        assert_eq!(judged.bottleneck_bytes_per_second, None);
        assert_eq!((judged.quality_node, judged.quality_free), (None, None));
        assert_eq!(judged.allocation.gpus, [0, 1]);
        let decided = one(
            &mut Judge::default(),
            &unknown,
            held(&[0, 1], None),
            "pipeline",
        );
        assert_eq!(decided.pattern, Pattern::Pipeline);
        assert_eq!(decided.pattern_from, PatternFrom::Decision);
    }
}
