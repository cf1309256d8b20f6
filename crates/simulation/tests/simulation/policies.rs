//! What each policy does, on examples that can be worked out by hand.

use nvlink_simulation::{ClusterSpec, Policy, run};

use crate::{cluster, options, outcome, read, simulate, waits};

/// GPUs 0 and 1 are a pair, 2 and 3 are another. `packed` gives the second job GPUs 1 and 2
/// and the last one, when they are free again, the same; `aligned` gives both 2 and 3.
#[test]
fn packed_takes_the_lowest_gpus_and_aligned_the_best() {
    let trace = "time,gpus,duration\n0,1,100\n0,2,50\n10,1,10\n20,2,10\n";
    let report = simulate(trace, "rtx-a6000-pairs=1");
    let [packed, aligned] = [Policy::Packed, Policy::Aligned].map(|policy| {
        assert_eq!(waits(&report, policy), [0.0, 0.0, 0.0, 30.0], "{policy:?}");
        let summaries = report.summaries();
        let found = summaries
            .into_iter()
            .find(|one| one.name == policy.into_str());
        found.unwrap()
    });
    let wait = packed.wait_seconds.unwrap();
    assert_eq!(
        (wait.mean, wait.p50, wait.p95, wait.p99),
        (7.5, 0.0, 30.0, 30.0)
    );
    assert_eq!(packed.makespan_seconds, Some(100.0));
    assert_eq!(packed.utilization, Some(230.0 / 400.0));
    assert_eq!(
        (packed.cross_domain_jobs, aligned.cross_domain_jobs),
        (2, 0)
    );
    // Two GPUs send each byte once, over 4 links of 12 GB/s.
    let best = 1_073_741_824.0 / 48e9;
    let time = aligned.communication_seconds.unwrap();
    assert!(
        (time.mean - best).abs() < 1e-9 && (time.p95 - best).abs() < 1e-9,
        "{time:?}"
    );
    assert_eq!(aligned.quality.unwrap().mean, 1.0);
    let (quality, time) = (
        packed.quality.unwrap(),
        packed.communication_seconds.unwrap(),
    );
    assert!(
        (quality.mean * time.mean - best).abs() < 1e-9,
        "{quality:?} {time:?}"
    );
    assert!(quality.mean < 0.5 && quality.p5 == quality.mean);
}

/// Two small jobs, then one that needs a whole node.
#[test]
fn spread_uses_empty_nodes_and_packed_full_ones() {
    let trace = "time,gpus,duration\n0,1,100\n0,1,100\n0,4,10\n";
    let report = simulate(trace, "rtx-a6000-pairs=2");
    assert_eq!(waits(&report, Policy::Spread), [0.0, 0.0, 100.0]);
    assert_eq!(waits(&report, Policy::Packed), [0.0, 0.0, 0.0]);
    assert_eq!(waits(&report, Policy::Aligned), [0.0, 0.0, 0.0]);
}

/// With as many GPUs free as asked for on each of them, all nodes have one score.
#[test]
fn the_scores_are_shares_of_the_node() {
    // Two of 4 GPUs are as full as four of 8: `packed` takes the first node.
    let trace = "time,gpus,duration\n0,4,10\n0,2,10\n0,2,10\n0,4,10\n";
    let report = simulate(trace, "l40s=1,rtx-a6000-pairs=1");
    assert_eq!(waits(&report, Policy::Packed), [0.0; 4]);
}

#[test]
fn a_job_that_does_not_fit_blocks_nobody_and_starves() {
    let trace = "time,gpus,duration\n0,3,100\n1,4,10\n2,1,200\n";
    let report = simulate(trace, "rtx-a6000-pairs=1");
    for policy in [Policy::Spread, Policy::Packed, Policy::Aligned] {
        assert_eq!(waits(&report, policy), [0.0, 201.0, 0.0], "{policy:?}");
    }
}

/// The planner keeps the GPUs together; a job that does not fit blocks nobody.
#[test]
fn the_planner_keeps_pairs_whole_and_lets_whoever_can_start() {
    let trace = "time,gpus,duration\n0,1,100\n0,2,50\n10,1,10\n20,2,10\n";
    let report = simulate(trace, "rtx-a6000-pairs=1");
    assert_eq!(waits(&report, Policy::NvlinkDomains), [0.0, 0.0, 0.0, 30.0]);
    let ran = &outcome(&report, Policy::NvlinkDomains).ran;
    assert!(
        ran.iter()
            .all(|one| one.quality == 1.0 && !one.across_domains)
    );
    let trace = "time,gpus,duration\n0,3,100\n1,4,10\n2,1,200\n";
    let report = simulate(trace, "rtx-a6000-pairs=1");
    assert_eq!(waits(&report, Policy::NvlinkDomains), [0.0, 201.0, 0.0]);
}

/// An endless row of small jobs passes a large one: for ever without the queue, and with it until
/// a place is kept, after 20 times as long as the small ones run: 128 seconds, rounded up.
#[test]
fn the_planner_keeps_a_place_for_a_job_that_was_passed_for_too_long() {
    let small = (0..400).map(|at| format!("{},1,100\n", 25 * at));
    let trace = format!("time,gpus,duration\n40,4,10\n{}", small.collect::<String>());
    let report = simulate(&trace, "rtx-a6000-pairs=1");
    // Two small jobs were created before it.
    let large = |policy| waits(&report, policy)[2];
    assert!(large(Policy::Packed) > 9_900.0);
    let wait = large(Policy::NvlinkDomains);
    assert!((2_560.0..2_690.0).contains(&wait), "{wait}");
}

#[test]
fn a_higher_priority_comes_first_then_the_older_job() {
    let trace = "time,gpus,duration,priority\n0,4,10,0\n1,4,10,0\n2,4,10,7\n3,4,10,0\n";
    let report = simulate(trace, "rtx-a6000-pairs=1");
    for &policy in Policy::ALL {
        assert_eq!(waits(&report, policy), [0.0, 19.0, 8.0, 27.0], "{policy:?}");
    }
}

#[test]
fn a_job_larger_than_a_node_starts_whole_on_several() {
    // The pods of the second job do not fit while the first runs; the third is not blocked.
    let trace = "time,gpus,duration\n0,1,50\n1,8,10\n2,3,10\n";
    let report = simulate(trace, "rtx-a6000-pairs=2");
    for policy in [Policy::Spread, Policy::Packed, Policy::Aligned] {
        assert_eq!(waits(&report, policy), [0.0, 49.0, 0.0], "{policy:?}");
        let gang = &outcome(&report, policy).ran[1];
        // 2 × 7/8 bytes from node to node for each byte of payload, over 10 Gbit/s.
        let time = 1.75 / 1.25e9 * 1_073_741_824.0;
        assert!((gang.communication().unwrap() - time).abs() < 1e-9);
        assert_eq!((gang.quality, gang.across_domains), (1.0, false));
    }
    // 12 GPUs: twice 6 do not fit on nodes of 8 and 4, but three times 4 do.
    let report = simulate("time,gpus,duration\n0,12,10\n", "l40s=1,rtx-a6000-pairs=1");
    assert_eq!(waits(&report, Policy::Packed), [0.0]);
}

/// A rack of GB200 NVL72 is one NVLink domain of 18 nodes; the 19th node is in the next rack.
#[test]
fn an_nvlink_fabric_is_one_domain_of_several_nodes() {
    let trace = "time,gpus,duration\n0,72,10\n";
    let report = simulate(trace, "gb200-nvl72=18");
    assert!(!outcome(&report, Policy::Packed).ran[0].across_domains);
    let trace = "time,gpus,duration\n0,4,100\n1,72,10\n";
    let report = simulate(trace, "gb200-nvl72=19");
    let late = &outcome(&report, Policy::Packed).ran[1];
    assert!(late.across_domains && late.quality < 1.0, "{late:?}");
}

/// A job of two trays goes to the rack where two are left, not to the one that is empty.
#[test]
fn racks_stay_whole_for_jobs_that_need_a_whole_one() {
    let trace = "time,gpus,duration\n0,72,10\n1,64,1000\n20,8,1000\n21,72,10\n";
    let report = simulate(trace, "gb200-nvl72=36");
    assert_eq!(waits(&report, Policy::NvlinkDomains), [0.0; 4]);
    let whole = &outcome(&report, Policy::NvlinkDomains).ran[3];
    assert!(!whole.across_domains, "{whole:?}");
}

#[test]
fn jobs_that_no_empty_cluster_holds_are_rejected() {
    let report = simulate("time,gpus,duration\n0,9,1\n0,8,1\n", "rtx-a6000-pairs=2");
    for one in report.summaries() {
        assert_eq!((one.jobs, one.rejected), (2, 1));
        assert_eq!(one.wait_seconds.unwrap().mean, 0.0);
    }
    let report = simulate("time,gpus,duration\n0,9,1\n", "rtx-a6000-pairs=2");
    let none = &report.summaries()[0];
    assert!(none.wait_seconds.is_none() && none.utilization.is_none());
}

/// Two trays of a rack reach each other over NVLink, unless the class turns that off.
#[test]
fn what_a_class_says_of_traffic_between_pods_counts_under_every_policy() {
    let trace = read("time,gpus,duration\n0,8,10\n");
    let costs = |without_fabrics: bool| {
        let mut options = options(1);
        options.rules.class.without_fabrics = without_fabrics;
        let report = run(&trace, &cluster("gb200-nvl72=2"), &options, &mut |_| {}).unwrap();
        [Policy::NvlinkDomains, Policy::Packed].map(|policy| outcome(&report, policy).ran[0].cost)
    };
    let (over_nvlink, over_network) = (costs(false), costs(true));
    for (nvlink, network) in over_nvlink.into_iter().zip(over_network) {
        assert!(network > 2.0 * nvlink, "{network} against {nvlink}");
    }
}

/// Jobs without traffic need no domain.
#[test]
fn jobs_that_do_not_communicate_have_no_quality() {
    let trace = "time,gpus,duration,pattern\n0,3,10,none\n0,1,10,\n";
    for one in simulate(trace, "rtx-a6000-pairs=1").summaries() {
        assert!(one.quality.is_none() && one.communication_seconds.is_none());
        assert_eq!(one.cross_domain_jobs, 0);
    }
}

#[test]
fn jobs_may_take_no_time() {
    let report = simulate(
        "time,gpus,duration\n0,4,0\n0,4,0\n0,4,5\n",
        "rtx-a6000-pairs=1",
    );
    assert_eq!(waits(&report, Policy::Spread), [0.0; 3]);
}

#[test]
fn clusters_are_named_by_profiles() {
    let bad = |text: &str| text.parse::<ClusterSpec>().unwrap_err().to_string();
    assert_eq!(
        bad("dgx=4"),
        "unknown profile \"dgx\": use a100-pcie-pairs, dgx-a100, dgx-h100, dgx1-v100, \
         dgx2-v100, gb200-nvl72, h200-degraded, hgx-a100-4, hgx-b200, l40s, rtx-a6000-pairs"
    );
    for text in [
        "",
        "dgx-h100",
        "dgx-h100=",
        "dgx-h100=0",
        "dgx-h100=-1",
        "dgx-h100=4,",
    ] {
        assert!(bad(text).contains("is not PROFILE=COUNT"), "{text}");
    }
    assert_eq!(
        bad("l40s=1,l40s=2"),
        "l40s is there twice: add up the counts"
    );
    for text in ["l40s=10001", "l40s=4294967295,dgx-h100=4294967295"] {
        assert_eq!(bad(text), "more than 10000 nodes");
    }
    let all = cluster("dgx-h100=4, a100-pcie-pairs=8");
    assert_eq!((all.nodes(), all.gpus()), (12, 96));
}
