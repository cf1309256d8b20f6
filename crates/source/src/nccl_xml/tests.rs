use nvlink_topology::{Nic, PathClass, RemoteKind, Via, bandwidth};

use super::*;

fn read(text: &str) -> Topology {
    parse(text, "x.xml", "n").unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn refused(text: &str) -> (usize, String) {
    let error = parse(text, "x.xml", "n").unwrap_err();
    assert!(!error.reason.contains(char::is_control), "{error}");
    (error.line, error.reason)
}

/// A CPU of the NUMA node `numa` that contains `inside`.
fn cpu(numa: &str, inside: &str) -> String {
    format!("<cpu host_hash=\"0x1\" numaid=\"{numa}\" arch=\"x86_64\">\n{inside}</cpu>\n")
}

fn system(inside: &str) -> String {
    format!("<system version=\"1\">\n{inside}</system>\n")
}

fn pci(busid: &str, class: &str, inside: &str) -> String {
    format!(
        "<pci busid=\"{busid}\" class=\"{class}\" link_speed=\"32.0 GT/s PCIe\" link_width=\"16\">\n{inside}</pci>\n"
    )
}

fn gpu(busid: &str, dev: u32, sm: u32, links: &str) -> String {
    let element =
        format!("<gpu dev=\"{dev}\" sm=\"{sm}\" rank=\"{dev}\" gdr=\"1\">\n{links}</gpu>\n");
    pci(busid, "0x030200", &element)
}

fn nvlink(target: &str, count: u32, class: &str) -> String {
    format!("<nvlink target=\"{target}\" count=\"{count}\" tclass=\"{class}\"/>\n")
}

fn net(name: &str, rest: &str) -> String {
    format!("<nic>\n<net name=\"{name}\" dev=\"0\" speed=\"200000\" {rest}/>\n</nic>\n")
}

fn classes(topology: &Topology) -> Vec<(u32, u32, PathClass, bool)> {
    let paths = topology.spec.paths.iter();
    paths
        .map(|path| (path.a, path.b, path.class, path.assumed))
        .collect()
}

/// Three GPUs on two visible switches.
fn switched_board() -> String {
    let one = |busid: &str, dev| {
        let links = nvlink("0000:c4:00.0", 5, "0x068000") + &nvlink("0000:c3:00.0", 13, "0x068000");
        pci(
            &format!("0000:{dev}1:00.0"),
            "0x060400",
            &gpu(busid, dev, 90, &links),
        )
    };
    let eth = net("eth0", "port=\"0\" guid=\"0x0\"");
    system(
        &(cpu("1", &(one("0000:a3:00.0", 2) + &eth))
            + &cpu("0", &(one("0000:83:00.0", 0) + &one("0000:8b:00.0", 1)))),
    )
}

#[test]
fn a_board_with_visible_switches() {
    let Topology { spec, warnings, .. } = read(&switched_board());
    assert!(
        warnings.is_empty() && spec.nics.is_empty(),
        "{warnings:?} {:?}",
        spec.nics
    );
    let numa: Vec<_> = spec
        .gpus
        .iter()
        .map(|gpu| (gpu.index, gpu.numa_node))
        .collect();
    assert_eq!(numa, [(0, Some(0)), (1, Some(0)), (2, Some(1))]);
    assert_eq!(spec.gpus[0].pci_bus_id.as_deref(), Some("00000000:83:00.0"));
    let links = spec.gpus[0].links.as_ref().unwrap();
    let remote = links[17].remote.as_ref().unwrap();
    assert_eq!(
        (links.len(), links[17].index, remote.kind),
        (18, 17, RemoteKind::Switch)
    );
    assert_eq!(remote.pci_bus_id.as_deref(), Some("00000000:C3:00.0"));
    assert!(
        links
            .iter()
            .all(|link| link.up && link.bytes_per_second.is_none())
    );
    for edge in &spec.edges {
        assert_eq!((edge.via, edge.links), (Via::Switch, 18));
        assert_eq!(
            edge.bytes_per_second,
            18 * 20_600_000_000,
            "Hopper's, by compute capability"
        );
    }
    assert_eq!((spec.edges.len(), spec.domains.len()), (3, 1));
    assert!(
        spec.paths
            .iter()
            .all(|path| path.class == PathClass::Nvlink && !path.assumed)
    );
}

#[test]
fn a_board_with_hidden_switches() {
    let hidden = nvlink("fffffff:ff:ff.0", 18, "0x068000");
    let both = gpu("0000:51:00.0", 0, 100, &hidden) + &gpu("0000:52:00.0", 1, 100, &hidden);
    let Topology { spec, .. } = read(&system(&cpu("0", &both)));
    assert_eq!(spec.edges[0].bytes_per_second, 18 * 40_100_000_000);
    let remote = spec.gpus[0].links.as_ref().unwrap()[0]
        .remote
        .clone()
        .unwrap();
    assert_eq!((remote.kind, remote.pci_bus_id), (RemoteKind::Switch, None));
}

#[test]
fn a_mesh_with_a_link_missing_at_one_end() {
    let to = |busid: &str, count| nvlink(busid, count, "0x030200");
    let text = system(
        &(cpu(
            "3",
            &(gpu("0000:03:00.0", 0, 80, &to("0000:41:00.0", 4))
                + &pci(
                    "0000:01:00.0",
                    "0x020000",
                    &net("cxi3", "port=\"1\" guid=\"0x0\""),
                )),
        ) + &cpu("2", &gpu("0000:41:00.0", 1, 80, &to("0000:03:00.0", 3)))),
    );
    let Topology { spec, warnings, .. } = read(&text);
    assert_eq!((spec.edges[0].via, spec.edges[0].links), (Via::Direct, 3));
    assert_eq!(spec.edges[0].bytes_per_second, 60_000_000_000);
    assert!(
        warnings[0].contains("4 NVLinks to GPU 1, which reports 3"),
        "{warnings:?}"
    );
    let nic = Nic {
        name: "cxi3".to_owned(),
        pci_bus_id: Some("00000000:01:00.0".to_owned()),
        guid: None,
        numa_node: Some(3),
        down: false,
        bytes_per_second: Some(25_000_000_000),
        gpus: vec![0],
    };
    assert_eq!(spec.nics, [nic]);
}

#[test]
fn links_to_itself_are_dropped_and_the_gpu_s_links_are_unknown() {
    let own = gpu(
        "0001:00:00.0",
        0,
        80,
        &nvlink("0001:00:00.0", 12, "0x030200"),
    );
    let other = gpu("0002:00:00.0", 1, 80, "");
    let Topology { spec, warnings, .. } = read(&system(&cpu("0", &(own + &other))));
    assert_eq!(spec.gpus[0].links, None);
    assert_eq!(
        spec.gpus[1].links,
        Some(vec![]),
        "NCCL lists the links that are up: none"
    );
    assert!(spec.edges.is_empty());
    assert!(
        warnings[0].starts_with("GPU 0 has 12 NVLinks to itself"),
        "{warnings:?}"
    );
}

/// Two switches, each with two GPUs and a NIC, without any NVLink.
fn provider_s_file() -> String {
    let bare = |busid: &str, class: &str| {
        format!(
            "<pci busid=\"{busid}\" class=\"{class}\" link_speed=\"16 GT/s\" link_width=\"16\"/>\n"
        )
    };
    let switch = |n: u32, gpus: [&str; 2]| {
        let inside = bare(gpus[0], "0x030200")
            + &bare(&format!("010{n}:00:00.0"), "0x020700")
            + &bare(gpus[1], "0x030200");
        pci(&format!("ffff:ff:0{n}.0"), "0x060400", &inside)
    };
    system(
        &(cpu("0", &switch(1, ["000d:00:00.0", "0003:00:00.0"]))
            + &cpu("1", &switch(2, ["0001:00:00.0", "0002:00:00.0"]))),
    )
}

#[test]
fn a_provider_s_file_has_no_links_and_numbers_follow_the_addresses() {
    let topology = read(&provider_s_file());
    let spec = &topology.spec;
    let gpus: Vec<_> = spec
        .gpus
        .iter()
        .map(|gpu| (gpu.index, gpu.numa_node, gpu.links.clone()))
        .collect();
    assert_eq!(
        gpus,
        [
            (0, Some(1), None),
            (1, Some(1), None),
            (2, Some(0), None),
            (3, Some(0), None)
        ]
    );
    let (pix, sys) = (PathClass::Pix, PathClass::Sys);
    let all: Vec<_> = classes(&topology)
        .iter()
        .map(|pair| (pair.2, pair.3))
        .collect();
    assert_eq!(
        all,
        [
            (pix, false),
            (sys, false),
            (sys, false),
            (sys, false),
            (sys, false),
            (pix, false)
        ]
    );
    assert_eq!(spec.paths[0].bytes_per_second, bandwidth::pcie(4, 16, pix));
    let nics: Vec<_> = spec
        .nics
        .iter()
        .map(|nic| (&nic.name[..], &nic.gpus[..], nic.bytes_per_second))
        .collect();
    assert_eq!(
        nics,
        [
            ("0101:00:00.0", &[2, 3][..], None),
            ("0102:00:00.0", &[0, 1][..], None)
        ]
    );
    assert!(
        topology.warnings[0].contains("has no NVLinks"),
        "{:?}",
        topology.warnings
    );
}

#[test]
fn classes_follow_the_bridges() {
    let far = pci(
        "0000:10:00.0",
        "0x060400",
        &(pci("0000:11:00.0", "0x060400", &gpu("0000:12:00.0", 0, 89, ""))
            + &gpu("0000:13:00.0", 1, 89, "")),
    );
    let topology = read(&system(&cpu(
        "-1",
        &(far + &gpu("0000:20:00.0", 2, 89, "")),
    )));
    let node = PathClass::Node;
    assert_eq!(
        classes(&topology),
        [
            (0, 1, PathClass::Pxb, false),
            (0, 2, node, true),
            (1, 2, node, true)
        ]
    );
    assert!(topology.spec.gpus.iter().all(|gpu| gpu.numa_node.is_none()));
}

#[test]
fn an_unknown_capability_has_an_assumed_bandwidth() {
    let pair = gpu(
        "0000:01:00.0",
        0,
        255,
        &nvlink("0000:02:00.0", 2, "0x030000"),
    ) + &gpu(
        "0000:02:00.0",
        1,
        255,
        &nvlink("0000:01:00.0", 2, "0x030000"),
    );
    let spec = read(&system(&cpu("0", &pair))).spec;
    assert_eq!(
        (spec.edges[0].bytes_per_second, spec.paths[0].assumed),
        (40_000_000_000, true)
    );
}

#[test]
fn ports_and_virtual_devices() {
    let two = "<nic>\n<net name=\"mlx5_0\" speed=\"400000\" port=\"1\" guid=\"0xab\"/>\n<net name=\"mlx5_0\" speed=\"400000\" port=\"2\" guid=\"0xab\"/>\n</nic>\n";
    let inside = gpu("0000:05:00.0", 0, 90, "")
        + &pci("0000:04:00.0", "0x020000", two)
        + &pci(
            "0000:03:00.0",
            "0x020000",
            &net("eno1", "port=\"0\" guid=\"0x0\""),
        )
        + &net("efa_0", "port=\"1\" guid=\"0x7\"");
    let spec = read(&system(&cpu("0", &inside))).spec;
    let nics: Vec<_> = spec
        .nics
        .iter()
        .map(|nic| (&nic.name[..], nic.pci_bus_id.is_some(), &nic.gpus[..]))
        .collect();
    assert_eq!(
        nics,
        [("mlx5_0", true, &[0][..]), ("efa_0", false, &[0][..])]
    );
}

#[test]
fn refusals_name_the_line() {
    let good = system(&cpu(
        "0",
        &gpu(
            "0000:05:00.0",
            0,
            90,
            &nvlink("0000:c3:00.0", 18, "0x068000"),
        ),
    ));
    read(&good);
    let cases = [
        ("0000:05:00.0", "05:00", 3, "busid: expected a PCI address"),
        ("busid=\"0000:05:00.0\"", "", 3, "<pci> has no busid"),
        ("numaid=\"0\"", "numaid=\"x\"", 2, "numaid is not a NUMA"),
        ("dev=\"0\"", "dev=\"-1\"", 4, "dev is not a GPU index"),
        (
            "count=\"18\"",
            "count=\"4000000000\"",
            5,
            "count must be from 1 to 36",
        ),
        (
            "0000:c3:00.0",
            "elsewhere",
            5,
            "target: expected a PCI address",
        ),
        (
            "version=\"1\"",
            "version=\"2\"",
            1,
            "a version other than 1",
        ),
        ("0x030200", "0x030200\" vendor=\"0x1002", 1, ""),
        ("</gpu>", "", 7, "not valid XML: "),
        (
            "<system",
            "<!DOCTYPE a [<!ENTITY b \"c\">]>\n<system",
            1,
            "a document type definition",
        ),
        ("</cpu>\n</system>", "", 7, "it is truncated"),
    ];
    for (from, to, line, expected) in cases {
        refused_at(&good, (from, to), line, expected);
    }
}

#[test]
fn other_documents_are_refused() {
    let reason = |text: &str| refused(text).1;
    assert!(reason("<graphs version=\"1\"/>").contains("NCCL_GRAPH_DUMP_FILE"));
    assert!(reason("<html><body/></html>").contains("<html>, expected NCCL's <system>"));
    assert!(reason(&system("")).contains("no GPU among the 0 PCI devices"));
    let bare = system("<cpu numaid=\"0\"><pci busid=\"0000:00:16.0\"/></cpu>");
    assert!(reason(&bare).contains("none of the 1 PCI devices has a class"));
    let two = cpu("0", &gpu("0000:05:00.0", 0, 90, "")).replace("0x1", "0x2")
        + &cpu("0", &gpu("0000:05:00.0", 0, 90, ""));
    assert!(reason(&system(&two)).contains("a second host"));
    let twice = gpu("0000:05:00.0", 0, 90, "") + &gpu("0000:05:00.0", 1, 90, "");
    assert!(reason(&system(&cpu("0", &twice))).contains("a second GPU at 00000000:05:00.0"));
    let same = gpu("0000:05:00.0", 3, 90, "") + &gpu("0000:06:00.0", 3, 90, "");
    assert!(reason(&system(&cpu("0", &same))).contains("a second GPU of dev 3"));
    let many: String = (0..129)
        .map(|n| pci(&format!("0000:{n:02x}:00.0"), "0x030200", ""))
        .collect();
    assert!(reason(&system(&many)).contains("more than 128 GPUs"));
}

#[test]
fn xml_bombs_are_refused() {
    let laughs = "<!DOCTYPE lolz [<!ENTITY a \"lol\"><!ENTITY b \"&a;&a;&a;&a;&a;&a;\">]>\n<system>&b;</system>";
    assert!(refused(laughs).1.contains("document type definition"));
    let deep = "<pci busid=\"0000:01:00.0\">".repeat(50_000);
    let shallow = format!(
        "<system>{deep}{}{}</system>",
        gpu("0000:05:00.0", 0, 90, ""),
        "</pci>".repeat(50_000)
    );
    assert!(
        refused(&shallow)
            .1
            .contains("nested deeper than any PCI tree"),
        "{:?}",
        refused(&shallow)
    );
    let (line, reason) = refused(&format!("<system>\n{deep}"));
    assert!(
        line == 2 && reason.contains("truncated"),
        "{line}: {reason}"
    );
    let wide = format!(
        "<system>{}</system>",
        "<pci busid=\"0000:01:00.0\"/>".repeat(200_000)
    );
    assert!(refused(&wide).1.contains("more than 100000 elements"));
}

#[test]
fn input_that_is_slow_to_parse_is_refused_before_parsing() {
    let attributes = |count: usize| {
        let each = |n: usize| format!(" a{n}='>' b{n}=\"<!--\"");
        (0..count / 2).map(each).collect::<String>()
    };
    let odd = "<?x '?><!-- it's \" <a --><![CDATA[ it's <a \" ]]>\n";
    let text = |count| system(&format!("{odd}<x{}/>", attributes(count)));
    let (line, reason) = refused(&text(200_000));
    let expected = "an element with more than 100 attributes; NCCL writes ten";
    assert_eq!((line, &*reason), (3, expected));
    // With fewer attributes, the parser reports what is wrong.
    let (_, reason) = refused(&text(100));
    assert!(!reason.contains("attributes"), "{reason}");
    let nested = "<a xmlns:x='y'>\n".repeat(50_000);
    let (line, reason) = refused(&nested);
    assert_eq!(line, 101);
    assert!(reason.contains("more than 100 namespaces"), "{reason}");
}

/// Replaces `from` by `to` in `good` and checks the refusal; an empty
/// `expected` means that the text is still valid.
fn refused_at(good: &str, (from, to): (&str, &str), line: usize, expected: &str) {
    let text = good.replacen(from, to, 1);
    assert_ne!(text, good);
    if expected.is_empty() {
        // NCCL used this device as a GPU, so its vendor does not matter.
        read(&text);
        return;
    }
    let (at, reason) = refused(&text);
    assert!(reason.contains(expected), "{reason}");
    assert_eq!(at, line, "{reason}");
}
