//! For any node: it is dropped only if the search finds no placement on its free GPUs.

use nvlink_topology::{BrokenGpus, Graph, Pattern, Request, Scope, place, sparing};
use nvlink_webhook::extender::{
    Extender,
    wire::{Args, FilterResult},
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::boards::{bind, board, extender, pod, set};

fn filter(extender: &Extender, pod: &Value, may_search: bool) -> FilterResult {
    let args = json!({"Pod": pod, "NodeNames": ["n"]}).to_string();
    let args = Args::parse(args.as_bytes()).unwrap();
    extender.filter(args, || may_search).unwrap()
}

/// Returns the pairs of GPUs whose bit is set.
fn edges(gpus: u32, bits: u32) -> Vec<(u32, u32)> {
    let pairs = (0..gpus).flat_map(|b| (0..b).map(move |a| (a, b)));
    let chosen = pairs.enumerate().filter(|(at, _)| bits >> at & 1 == 1);
    chosen.map(|(_, pair)| pair).collect()
}

fn members(gpus: u32, bits: u8) -> Vec<u32> {
    (0..gpus).filter(|gpu| bits >> gpu & 1 == 1).collect()
}

proptest! {
    #[test]
    fn a_node_is_dropped_only_if_no_placement_exists(
        gpus in 1..=7_u32, wired: u32, held: u8, broken: u8, asked in 1..=4_usize,
        class in prop::sample::select(&["any", "node", "avoiding"][..]),
        switch: bool,
    ) {
        let via = if switch { "switch" } else { "direct" };
        let spec = board(gpus, &edges(gpus, wired), via);
        let (held, broken) = (members(gpus, held), members(gpus, broken));
        let extender = extender();
        set(&extender, "n", &spec, Some(&held), &broken);
        extender.mirror.remove_pod(&("ci".to_owned(), "on-n".to_owned()));
        let graph = Graph::new(&spec).unwrap();
        let free: Vec<u32> = (0..gpus).filter(|gpu| !held.contains(gpu)).collect();
        let request = Request {
            gpus: asked,
            free: graph.set(&free).unwrap(),
            required: Default::default(),
            pattern: Pattern::default(),
            scope: if class == "node" { Scope::Node } else { Scope::NvlinkDomain },
        };
        let how = if class == "avoiding" { BrokenGpus::Avoid } else { BrokenGpus::Last };
        let broken = graph.set(&broken).unwrap();
        let placed = sparing(&graph, &request, broken, how).and_then(|one| place(&graph, &one));

        let pod = pod(class, asked);
        let answer = filter(&extender, &pod, true);
        let dropped = !answer.failed_and_unresolvable_nodes.is_empty();
        prop_assert!(!(dropped && placed.is_ok()), "{answer:?}");
        if class != "node" && asked >= 2 {
            prop_assert_eq!(dropped, placed.is_err(), "{:?}", placed);
        }
        prop_assert_eq!(dropped, answer.node_names == Some(Vec::new()));
        prop_assert_eq!(&answer, &filter(&extender, &pod, false), "it is known now");
        for reason in answer.failed_and_unresolvable_nodes.values() {
            prop_assert!(!reason.contains(','), "{reason}");
        }
    }

    #[test]
    fn counting_alone_drops_no_more_than_searching(
        gpus in 1..=7_u32, wired: u32, held: u8, asked in 1..=4_usize, bound in 0..=3_u32,
    ) {
        let spec = board(gpus, &edges(gpus, wired), "direct");
        let dropped = |may_search| {
            let extender = extender();
            set(&extender, "n", &spec, Some(&members(gpus, held)), &[]);
            bind(&extender, "bound", "n", bound);
            let answer = filter(&extender, &pod("any", asked), may_search);
            !answer.failed_and_unresolvable_nodes.is_empty()
        };
        prop_assert!(!dropped(false) || dropped(true));
    }
}
