//! The page of a node that cannot be read, and of one of which not all is known.

use std::fs;

use nvlink_tests::{Browser, Exporter, http, wait_until, workdir};
use serde_json::json;

use super::{SOON, document, inspect, wait_for_text};

/// Four GPUs that are all joined, as `nvidia-smi topo -m` prints them.
const MATRIX: &str = "\tGPU0\tGPU1\tGPU2\tGPU3
GPU0\t X \tNV2\tNV2\tNV2
GPU1\tNV2\t X \tNV2\tNV2
GPU2\tNV2\tNV2\t X \tNV2
GPU3\tNV2\tNV2\tNV2\t X
";

#[test]
fn an_error_is_above_the_name_and_the_last_graph() {
    let path = workdir::fresh("page").unwrap().join("node.json");
    fs::write(&path, document("dgx1-v100").to_string()).unwrap();
    let source = format!("file:{}", path.display());
    let often = ["--source", &source, "--collection-interval", "250ms"];
    let exporter = Exporter::start(&often).unwrap();
    let browser = Browser::start().unwrap();
    browser.emulate(1280, "light").unwrap();
    browser.open(&exporter.url("/")).unwrap();
    wait_for_text(&browser, "NVLink domain node-a.0");
    fs::write(&path, "{").unwrap();
    wait_for_text(&browser, "✕ No current data since ");
    let drawn = "const [error, ring] = ['.troubles .error', '#graph.past svg.ring'].map((one) => document.querySelector(one));
        return [document.querySelector('h1').textContent, document.title, error.textContent !== '',
            Boolean(error.compareDocumentPosition(ring) & Node.DOCUMENT_POSITION_FOLLOWING),
            document.querySelectorAll('#graph details.gpu').length, document.querySelectorAll('#node').length]";
    let kept = json!(["node-a", "✕ node-a · NVLink", true, true, 8, 1]);
    assert_eq!(browser.run(drawn).unwrap(), kept);
    inspect(&browser, &exporter, "unreadable");

    // An exporter that starts again has no graph, but the page that is open has one.
    browser.open(&exporter.url("/")).unwrap();
    let again = Exporter::with_environment(&[], &["--source", &source]).unwrap();
    let empty = wait_until("the first collection to fail", SOON, || {
        let page = http::text(&again.url("/"))?;
        Ok(page
            .contains("✕ No collection has succeeded")
            .then_some(page))
    });
    let answer = |response: String| {
        let answers = format!("window.fetch = async () => new Response({response})");
        browser.run(&answers).unwrap();
    };
    answer(json!(empty.unwrap()).to_string());
    wait_for_text(&browser, "✕ No collection has succeeded since the start");
    wait_for_text(&browser, "✕ The exporter has had no data for ");
    assert_eq!(browser.run(drawn).unwrap(), kept);
    answer("'', { status: 503 }".to_owned());
    wait_for_text(&browser, "✕ The exporter has answered with status 503 for ");
    wait_for_text(&browser, " s, since ");
    assert_eq!(browser.run(drawn).unwrap(), kept);
}

#[test]
fn a_drawn_graph_is_said_to_be_known() {
    let path = workdir::fresh("page").unwrap().join("topo.txt");
    fs::write(&path, MATRIX).unwrap();
    let source = format!("file:{}", path.display());
    let exporter = Exporter::start(&["--source", &source]).unwrap();
    let browser = Browser::start().unwrap();
    browser.open(&exporter.url("/")).unwrap();
    wait_for_text(&browser, "6 links, state and load not known");
    let text = browser.text().unwrap();
    assert!(!text.contains("links not known"), "{text}");
    assert!(text.contains("—2— links of a pair"), "{text}");
    let drawn = "return document.querySelectorAll('svg.ring line').length";
    assert_eq!(browser.run(drawn).unwrap(), 6);
    inspect(&browser, &exporter, "matrix");
}
