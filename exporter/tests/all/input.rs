//! Truncated, changed or invented inputs: they are refused with a reason or parsed
//! correctly, and never cause a panic.

use std::{cell::Cell, time::Duration};

use crate::support::PAIRS;
use nvlink_source::Reading;
use proptest::{prelude::*, test_runner::TestRunner};

fn parse(bytes: &[u8]) -> Result<Reading, String> {
    nvlink_source::file::parse("x", bytes, Some("n")).map_err(|error| {
        let text = error.to_string();
        assert!(
            text.starts_with("x: ") && !text.trim_end().contains('\n'),
            "{text}"
        );
        text
    })
}

/// A recording with one sample of counters and health.
fn recording() -> String {
    let reading = crate::support::reading("sim:rtx-a6000-pairs");
    let mut recorder = nvlink_source::recording::Recorder::new(&reading.topology).unwrap();
    recorder.add(Duration::ZERO, &reading).unwrap();
    recorder.text()
}

/// An NCCL topology: a switch with a GPU and a NIC, and a bridged pair of GPUs.
const XML: &str = "<system version=\"1\">
  <cpu host_hash=\"0x5\" numaid=\"0\" affinity=\"0000ffff\" arch=\"x86_64\" vendor=\"AuthenticAMD\">
    <pci busid=\"0000:81:00.0\" class=\"0x060400\" vendor=\"0x1000\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\">
      <pci busid=\"0000:83:00.0\" class=\"0x030200\" vendor=\"0x10de\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\">
        <gpu dev=\"0\" sm=\"80\" rank=\"0\" gdr=\"1\">
          <nvlink target=\"0000:a3:00.0\" count=\"12\" tclass=\"0x030200\"/>
        </gpu>
      </pci>
      <pci busid=\"0000:84:00.0\" class=\"0x020700\" vendor=\"0x15b3\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\">
        <nic>
          <net name=\"mlx5_0\" dev=\"0\" speed=\"200000\" port=\"1\" guid=\"0xab\" maxconn=\"131072\" gdr=\"1\"/>
        </nic>
      </pci>
    </pci>
  </cpu>
  <cpu host_hash=\"0x5\" numaid=\"1\" affinity=\"ffff0000\" arch=\"x86_64\" vendor=\"AuthenticAMD\">
    <pci busid=\"0000:a3:00.0\" class=\"0x030200\" vendor=\"0x10de\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\">
      <gpu dev=\"1\" sm=\"80\" rank=\"1\" gdr=\"1\">
        <nvlink target=\"0000:83:00.0\" count=\"12\" tclass=\"0x030200\"/>
      </gpu>
    </pci>
  </cpu>
</system>
";

#[test]
fn a_capture_truncated_at_every_byte() {
    let whole = parse(PAIRS.as_bytes()).unwrap().topology.spec;
    for end in 0..PAIRS.len() {
        if let Ok(reading) = parse(&PAIRS.as_bytes()[..end]) {
            let spec = reading.topology.spec;
            assert_eq!(
                (&spec.gpus, &spec.edges),
                (&whole.gpus, &whole.edges),
                "cut at {end}"
            );
            assert_eq!((&spec.paths, &spec.domains), (&whole.paths, &whole.domains));
        }
    }
}

#[test]
fn a_recording_truncated_anywhere() {
    let text = recording();
    let text = text.trim_end();
    // A step that does not divide the indentation, so that all kinds of places occur.
    for end in (0..text.len()).step_by(7) {
        let error = parse(&text.as_bytes()[..end]).unwrap_err();
        assert!(
            error.contains("line") || error.contains("empty"),
            "cut at {end}: {error}"
        );
    }
}

#[test]
fn an_nccl_topology_truncated_at_every_byte() {
    check(&parse(XML.as_bytes()).unwrap());
    for end in 0..XML.trim_end().len() {
        let error = parse(&XML.as_bytes()[..end]).unwrap_err();
        assert!(
            error.contains("line ") || error.contains("empty"),
            "cut at {end}: {error}"
        );
    }
}

#[test]
fn contradictions_are_refused_with_their_path() {
    let text = recording();
    let cases = [
        (
            "\"index\": 1,\n        \"uuid\"",
            "\"index\": 0,\n        \"uuid\"",
            "spec.gpus[1].index",
        ),
        (r#""b": 1,"#, r#""b": 0,"#, "spec.edges[0].a"),
        (r#""b": 1,"#, r#""b": 9,"#, "spec.edges[0].b"),
        (
            r#""bytesPerSecond": 48000000000"#,
            r#""bytesPerSecond": 0"#,
            "spec.edges[0].bytesPerSecond",
        ),
        (
            r#""bytesPerSecond": 48000000000"#,
            r#""bytesPerSecond": -1"#,
            "spec.edges[0].bytesPerSecond",
        ),
        (
            r#""via": "direct""#,
            r#""via": "magic""#,
            "spec.edges[0].via",
        ),
    ];
    for (from, to, place) in cases {
        assert!(text.contains(from), "{from} not in {text}");
        let error = parse(text.replacen(from, to, 1).as_bytes()).unwrap_err();
        assert!(error.contains(place), "{error}");
    }
}

#[test]
fn a_recorded_name_must_be_a_node_name() {
    let text = recording();
    let unnamed = |text: &str| nvlink_source::file::parse("x", text.as_bytes(), None);
    assert!(unnamed(&text).is_ok());
    for bad in ["../../etc", "", "a\\u001b[2J", "A", "-a", "a b"] {
        let text = text.replacen("\"node-a\"", &format!("\"{bad}\""), 1);
        let error = unnamed(&text).unwrap_err().to_string();
        assert!(error.starts_with("x: metadata.name: \""), "{error}");
        assert!(!error.contains(char::is_control), "{error}");
        // A given name overrides the recorded one.
        assert!(parse(text.as_bytes()).is_ok());
    }
}

#[test]
fn other_documents_are_refused_with_what_they_are() {
    let cases = [
        (
            "<system version=\"1\"><cpu/></system>",
            "line 1: no GPU among the 0 PCI devices",
        ),
        (
            "<!--\n-->\n<html></html>",
            "line 3: <html>, expected NCCL's <system>",
        ),
        ("<!DOCTYPE a []>\n<system/>", "line 1: "),
        ("[1]", "a JSON list"),
        (
            "apiVersion: nvlink-domains.io/v1alpha1\nkind: NodeTopology\n",
            "this is YAML",
        ),
        ("{\"kind\": \"Pod\"}", "kind is \"Pod\""),
        ("{}", "missing field"),
        (
            "206 NICs found in the topology, only displaying 56 in the matrix.\n",
            "no topology found",
        ),
    ];
    for (text, expected) in cases {
        let error = parse(text.as_bytes()).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn the_format_is_recognized_after_comments() {
    let plain = |text: &str| parse(text.as_bytes()).unwrap().topology.spec;
    let declaration = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
    for (comments, text) in [
        ("# node 7, by hand\n\n", recording()),
        ("# node 7\n#\n", XML.to_owned()),
        ("# node 7\n", format!("{declaration}{XML}")),
        ("<!-- node 7 -->\n", format!("{declaration}<!-- 2 -->{XML}")),
        ("# node 7\n", PAIRS.to_owned()),
    ] {
        assert_eq!(plain(&format!("{comments}{text}")), plain(&text), "{text}");
    }
    for (text, expected) in [
        ("# a\n#\n<html></html>", "line 3: <html>"),
        (
            "<!-- a\n -->\n<?xml version=\"1.0\"?>\n<html/>",
            "line 4: <html>",
        ),
        ("<!-- a", "XML"),
        ("# a", "NCCL's topology in XML"),
    ] {
        let error = parse(text.as_bytes()).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn a_capture_in_utf16_is_read() {
    let mut bytes = vec![0xff, 0xfe];
    bytes.extend(PAIRS.encode_utf16().flat_map(u16::to_le_bytes));
    let spec = parse(&bytes).unwrap().topology.spec;
    assert_eq!(spec, parse(PAIRS.as_bytes()).unwrap().topology.spec);
}

/// Number of texts for each property.
const CASES: u32 = 1000;

/// Replaces, inserts and removes pieces of a text.
fn mutated(text: String) -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just("\t".to_owned()),
        Just("\n".to_owned()),
        Just("GPU1".to_owned()),
        Just("NV4".to_owned()),
        Just("0000:83:00.0".to_owned()),
        Just("<pci busid=\"0000:01:00.0\" class=\"0x030000\">".to_owned()),
        Just("</pci>".to_owned()),
        Just("&lt;&#10;".to_owned()),
        Just("SYS".to_owned()),
        Just("\u{1b}[4m".to_owned()),
        Just("9999999999999999999999".to_owned()),
        Just("-1".to_owned()),
        Just("null".to_owned()),
        Just("[[[{".to_owned()),
        "\\PC{0,3}",
    ];
    let change = (any::<prop::sample::Index>(), 0..12_usize, piece);
    prop::collection::vec(change, 1..6).prop_map(move |changes| {
        let mut bytes = text.clone().into_bytes();
        for (at, remove, insert) in changes {
            let at = at.index(bytes.len() + 1);
            let end = (at + remove).min(bytes.len());
            bytes.splice(at..end, insert.into_bytes());
        }
        bytes
    })
}

#[test]
fn changed_recordings_are_harmless() {
    let (good, bad) = (Cell::new(0), Cell::new(0));
    let mut runner = TestRunner::new(ProptestConfig::with_cases(CASES));
    let result = runner.run(&mutated(recording()), |bytes| {
        match parse(&bytes) {
            Ok(reading) => {
                good.set(good.get() + 1);
                check(&reading);
            }
            Err(error) => {
                bad.set(bad.get() + 1);
                assert!(!error.to_string().is_empty());
            }
        }
        Ok(())
    });
    result.unwrap();
    // Each text is accepted or refused, and there are some of both.
    assert_eq!(good.get() + bad.get(), CASES);
    assert!(
        good.get() > CASES / 100 && bad.get() > CASES / 10,
        "{good:?} {bad:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_nccl_topologies_are_harmless(bytes in mutated(XML.to_owned())) {
        if let Ok(reading) = parse(&bytes) {
            check(&reading);
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_captures_are_harmless(bytes in mutated(PAIRS.to_owned())) {
        if let Ok(reading) = parse(&bytes) {
            check(&reading);
        }
    }

    #[test]
    fn noise_is_harmless(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        drop(parse(&bytes));
    }
}

/// Checks that an accepted input can be shown in every form, and that its matrix can be
/// parsed again.
fn check(reading: &Reading) {
    use nvlink_exporter::output::{TopologyFormat, topology};
    for format in [
        TopologyFormat::Table,
        TopologyFormat::Json,
        TopologyFormat::Dot,
    ] {
        topology(reading, format, true).unwrap();
    }
    let matrix = topology(reading, TopologyFormat::Matrix, false).unwrap();
    if reading.matrix.is_some() {
        let again = parse(matrix.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{matrix}"));
        assert_eq!(again.topology.spec.edges, reading.topology.spec.edges);
    }
}
