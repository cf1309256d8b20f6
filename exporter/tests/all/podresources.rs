//! Answers of the kubelet: nothing panics on any of them, and an invalid message is an
//! error.

use std::cell::Cell;

use crate::support::reading;
use nvlink_exporter::allocations::{Holdings, Judge};
use nvlink_kubelet::podresources::{
    CdiDevice, ClaimResource, ContainerDevices, ContainerResources, DynamicResource,
    ListPodResourcesResponse, PodResources,
};
use nvlink_topology::{Allocation, NodeTopologySpec};
use proptest::{collection::vec, prelude::*, test_runner::TestRunner};
use prost::Message;

/// A node on which every kind of name is valid.
fn node() -> NodeTopologySpec {
    let mut spec = reading("sim:dgx1-v100").topology.spec;
    spec.gpus[7].mig_enabled = true;
    spec
}

/// Names of devices: valid ones, nearly valid ones, and any text.
fn id(spec: &NodeTopologySpec) -> impl Strategy<Value = String> + use<> {
    let uuids: Vec<String> = spec
        .gpus
        .iter()
        .filter_map(|gpu| gpu.uuid.clone())
        .collect();
    let uuid = || proptest::sample::select(uuids.clone());
    prop_oneof![
        uuid(),
        (uuid(), "(::|/|:|)[0-9a-z/]{0,3}").prop_map(|(uuid, tail)| uuid + &tail),
        uuid().prop_map(|uuid| format!("MIG-{uuid}/1/0")),
        "(nvidia|gpu-|MIG-|GPU-|)[0-9]{0,3}((::|:|/gi|/vgpu|-mig-)[0-9]{0,2})?",
        any::<String>(),
    ]
}

fn container(spec: &NodeTopologySpec) -> impl Strategy<Value = ContainerResources> + use<> {
    let resource = prop_oneof![
        Just("nvidia.com/gpu".to_owned()),
        Just("nvidia.com/mig-1g.10gb".to_owned()),
        Just("nvidia.com/gpu.shared".to_owned()),
        "[a-z./]{0,12}",
    ];
    let devices =
        (resource, vec(id(spec), 0..6)).prop_map(|(resource_name, device_ids)| ContainerDevices {
            resource_name,
            device_ids,
        });
    let driver = prop_oneof![
        3 => Just("gpu.nvidia.com".to_owned()),
        1 => any::<String>(),
    ];
    let claim = (driver, id(spec), id(spec), "(k8s.gpu.nvidia.com/claim=|)");
    let claim = claim.prop_map(|(driver_name, device_name, cdi, kind)| ClaimResource {
        cdi_devices: vec![CdiDevice { name: kind + &cdi }],
        driver_name,
        pool_name: "n".to_owned(),
        device_name,
    });
    let claims = vec(claim, 0..3).prop_map(|claim_resources| DynamicResource {
        claim_resources,
        ..DynamicResource::default()
    });
    let parts = ("[a-c]?", vec(devices, 0..3), vec(claims, 0..2));
    parts.prop_map(|(name, devices, dynamic_resources)| ContainerResources {
        name,
        devices,
        dynamic_resources,
    })
}

fn answer(spec: &NodeTopologySpec) -> impl Strategy<Value = Vec<u8>> + use<> {
    let pod = ("[a-c]?", "[a-c]?", vec(container(spec), 0..4));
    let pod = pod.prop_map(|(name, namespace, containers)| PodResources {
        name,
        namespace,
        containers,
    });
    let answer = vec(pod, 0..5)
        .prop_map(|pod_resources| ListPodResourcesResponse { pod_resources }.encode_to_vec());
    let damage = vec((any::<prop::sample::Index>(), any::<u8>()), 1..4);
    let damaged = (answer, damage).prop_map(|(mut bytes, damage)| {
        for (at, byte) in damage {
            if bytes.is_empty() {
                break;
            }
            let at = at.index(bytes.len());
            match byte {
                0..64 => bytes.truncate(at.max(1)),
                _ => bytes[at] ^= byte,
            }
        }
        bytes
    });
    prop_oneof![damaged, vec(any::<u8>(), 0..200)]
}

fn whole_answer(spec: &NodeTopologySpec) -> impl Strategy<Value = Vec<u8>> + use<> {
    let containers = vec(container(spec), 0..6);
    containers.prop_map(|containers| {
        let pod = |(at, container)| PodResources {
            name: format!("pod-{at}"),
            namespace: "ci".to_owned(),
            containers: vec![container],
        };
        let pod_resources = containers.into_iter().enumerate().map(pod).collect();
        ListPodResourcesResponse { pod_resources }.encode_to_vec()
    })
}

/// Checks the allocations of an answer: only existing GPUs, each once per container.
fn judged(judge: &mut Judge, spec: &NodeTopologySpec, holdings: &Holdings) {
    let allocation = |(namespace, pod, container, gpus): (&str, &str, &str, Vec<u32>)| {
        assert!(
            !gpus.is_empty() && gpus.is_sorted_by(|a, b| a < b),
            "{gpus:?}"
        );
        assert!(gpus.iter().all(|&gpu| gpu < 8), "{gpus:?}");
        let one = Allocation {
            namespace: namespace.to_owned(),
            pod: pod.to_owned(),
            container: container.to_owned(),
            gpus,
            ..Allocation::default()
        };
        (one, None)
    };
    let judged = judge.judge(spec, holdings.gpus().map(allocation).collect());
    for one in judged {
        let quality = one.quality_node.unwrap();
        assert!(quality > 0.0 && quality <= 1.0, "{one:?}");
        let all = 1..=one.allocation.gpus.len();
        assert!(one.domains.is_some_and(|domains| all.contains(&domains)));
    }
}

#[test]
fn ten_thousand_broken_answers() {
    let spec = node();
    let mut runner = TestRunner::new(ProptestConfig::with_cases(10_000));
    let (good, bad) = (Cell::new(0_u32), Cell::new(0_u32));
    let judge = std::cell::RefCell::new(Judge::default());
    let result = runner.run(&answer(&spec), |bytes| {
        match Holdings::decode(&bytes, &spec) {
            Ok(holdings) => {
                good.set(good.get() + 1);
                judged(&mut judge.borrow_mut(), &spec, &holdings);
            }
            Err(error) => {
                bad.set(bad.get() + 1);
                assert!(!error.to_string().is_empty());
            }
        }
        Ok(())
    });
    result.unwrap();
    // Each answer is accepted or refused, and there are many of both.
    assert_eq!(good.get() + bad.get(), 10_000);
    assert!(good.get() > 1000 && bad.get() > 1000, "{good:?} {bad:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// No name in an answer is lost: it is a known GPU, it is reported as unknown, or it
    /// is not the name of a GPU.
    #[test]
    fn names_are_gpus_or_unknown(bytes in whole_answer(&node())) {
        let spec = node();
        let answer = ListPodResourcesResponse::decode(&*bytes).unwrap();
        let holdings = Holdings::decode(&bytes, &spec).unwrap();
        for (at, pod) in answer.pod_resources.iter().enumerate() {
            let name = format!("pod-{at}");
            let holds = holdings.gpus().any(|(_, pod, ..)| pod == name);
            let devices = pod.containers.iter().flat_map(|one| &one.devices);
            for one in devices.filter(|one| one.resource_name == "nvidia.com/gpu") {
                for id in &one.device_ids {
                    prop_assert!(holds || holdings.unknown.contains(id), "{id:?}");
                }
            }
        }
        judged(&mut Judge::default(), &spec, &holdings);
    }
}

/// A pod that ends slowly, and the next pod of the same name.
#[test]
fn two_pods_of_the_same_name_hold_the_gpus_of_both() {
    let spec = node();
    let uuid = |gpu: usize| spec.gpus[gpu].uuid.clone().unwrap();
    let pod = |container: &str, gpus: &[usize]| PodResources {
        name: "train-0".to_owned(),
        namespace: "ci".to_owned(),
        containers: vec![ContainerResources {
            name: container.to_owned(),
            devices: vec![ContainerDevices {
                resource_name: "nvidia.com/gpu".to_owned(),
                device_ids: gpus.iter().map(|&gpu| uuid(gpu)).collect(),
            }],
            dynamic_resources: Vec::new(),
        }],
    };
    let pod_resources = vec![pod("main", &[0, 1]), pod("main", &[2]), pod("side", &[3])];
    let bytes = ListPodResourcesResponse { pod_resources }.encode_to_vec();
    let holdings = Holdings::decode(&bytes, &spec).unwrap();
    let held: Vec<_> = holdings.gpus().collect();
    let of = |container, gpus: &[u32]| ("ci", "train-0", container, gpus.to_vec());
    assert_eq!(held, [of("main", &[0, 1, 2]), of("side", &[3])]);
}

/// A busy node: 250 pods of 8 containers that share GPUs.
#[test]
fn a_busy_node_is_read_completely() {
    let spec = node();
    let container = |name: usize| ContainerResources {
        name: name.to_string(),
        devices: vec![ContainerDevices {
            resource_name: "nvidia.com/gpu.shared".to_owned(),
            device_ids: (0..8).map(|gpu| format!("{gpu}::{name}")).collect(),
        }],
        dynamic_resources: Vec::new(),
    };
    let pod = |name: usize| PodResources {
        name: name.to_string(),
        namespace: "ci".to_owned(),
        containers: (0..8).map(container).collect(),
    };
    let pod_resources = (0..250).map(pod).collect();
    let bytes = ListPodResourcesResponse { pod_resources }.encode_to_vec();
    let holdings = Holdings::decode(&bytes, &spec).unwrap();
    assert_eq!(holdings.gpus().count(), 2000);
    judged(&mut Judge::default(), &spec, &holdings);
}
