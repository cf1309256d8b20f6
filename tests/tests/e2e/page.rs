//! The exporter's page in a real browser.

mod unread;

use std::{fs, path::PathBuf, time::Duration};

use nvlink_tests::{
    Browser, Exporter, Kubelet, http,
    kubelet::{Container, Mood},
    programs, wait_until, workdir,
};
use serde_json::{Value, json};

/// The time of a few refreshes of the page, which are 3 s apart.
const SOON: Duration = Duration::from_secs(20);
const TAB: char = '\u{e004}';
const ENTER: char = '\u{e007}';

const CHECKS: &str = include_str!("page_checks.js");

fn simulated(profile: &str) -> Exporter {
    let source = format!("sim:{profile}");
    let arguments = [
        "--source",
        &source,
        "--node-name",
        "node-a",
        "--collection-interval",
        "250ms",
    ];
    let exporter = Exporter::start(&arguments).unwrap();
    wait_for_load(&exporter);
    exporter
}

/// Waits until the second collection reports the load of links.
fn wait_for_load(exporter: &Exporter) {
    wait_until("the load of links", SOON, || {
        let page = http::text(&exporter.url("/"))?;
        // The legend names the hatching of links whose load is not known.
        let known = page.matches("<i class=\"nk\">").count() <= 1;
        Ok((known && !page.contains("measuring…")).then_some(()))
    })
    .unwrap();
}

/// Starts an exporter that reads a file with this document.
fn recorded(name: &str, document: &Value) -> Exporter {
    let path = workdir::fresh("page").unwrap().join(name);
    fs::write(&path, document.to_string()).unwrap();
    Exporter::start(&["--source", &format!("file:{}", path.display())]).unwrap()
}

fn document(profile: &str) -> Value {
    let source = format!("sim:{profile}");
    let arguments = [
        "topology",
        "--source",
        &source,
        "--node-name",
        "node-a",
        "--output",
        "json",
    ];
    serde_json::from_str(&programs::run(programs::EXPORTER, &arguments, "").unwrap()).unwrap()
}

fn set_faults(exporter: &Exporter, faults: &str) {
    let answer = http::send("PUT", &exporter.url("/sim/faults"), faults).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
}

pub(crate) fn wait_for_text(browser: &Browser, text: &str) {
    let what = format!("the page to show {text:?}");
    let seen = wait_until(&what, SOON, || {
        Ok(browser.text()?.contains(text).then_some(()))
    });
    seen.unwrap_or_else(|error| panic!("{error:#}\n{}", browser.text().unwrap()));
}

/// Loads the page in all widths and themes and checks it for problems.
fn inspect(browser: &Browser, exporter: &Exporter, name: &str) {
    inspect_at(browser, &exporter.url("/"), name);
}

/// Does the same with the page at an address. `PICTURES=DIRECTORY` saves screenshots.
pub(crate) fn inspect_at(browser: &Browser, url: &str, name: &str) {
    for theme in ["light", "dark"] {
        for width in [1280, 420, 390] {
            browser.emulate(width, theme).unwrap();
            browser.open(url).unwrap();
            let found = browser.run(CHECKS).unwrap();
            assert_eq!(found, json!([]), "{name} {theme} {width}");
            if let Some(directory) = std::env::var_os("PICTURES") {
                let path = PathBuf::from(directory).join(format!("{name}-{width}-{theme}.png"));
                browser.picture(&path).unwrap();
            }
        }
    }
    let elsewhere = "return performance.getEntriesByType('resource').map((one) => one.name)
        .filter((one) => !one.startsWith(location.origin) && !one.startsWith('data:'))";
    assert_eq!(browser.run(elsewhere).unwrap(), json!([]), "{name}");
    let console = browser.console().unwrap();
    assert!(console.is_empty(), "{name}: {console:?}");
}

#[test]
fn every_board_is_drawn() {
    let browser = Browser::start().unwrap();
    for profile in [
        "dgx-h100",
        "dgx1-v100",
        "dgx2-v100",
        "gb200-nvl72",
        "h200-degraded",
        "l40s",
        "a100-pcie-pairs",
    ] {
        let exporter = simulated(profile);
        inspect(&browser, &exporter, profile);
        let spec = &document(profile)["spec"];
        let gpus = spec["gpus"].as_array().unwrap();
        let links: usize = gpus
            .iter()
            .map(|gpu| gpu["links"].as_array().unwrap().len())
            .sum();
        let down = |link: &&Value| link["up"] == false;
        let all = gpus.iter().flat_map(|gpu| gpu["links"].as_array().unwrap());
        let drawn = "const n = (what) => document.querySelectorAll(what).length;
            return [n('details.gpu'), n('.lanes i'), n('.lanes .down'), n('section.domain:not(.outside)')];";
        let expected = json!([
            gpus.len(),
            links,
            all.filter(down).count(),
            spec["domains"].as_array().unwrap().len()
        ]);
        assert_eq!(browser.run(drawn).unwrap(), expected, "{profile}");
        // The page must not refresh after its exporter has ended.
        browser.open("about:blank").unwrap();
    }
}

#[test]
fn a_mesh_is_drawn_by_numa_node_and_pairs_side_by_side() {
    let browser = Browser::start().unwrap();
    let mesh = simulated("dgx1-v100");
    browser.emulate(1280, "light").unwrap();
    browser.open(&mesh.url("/")).unwrap();
    wait_for_text(
        &browser,
        "No NVLink, only PCIe: 0 to 5-7 · 1 to 4,6,7 · 2 to 4,5,7 · 3 to 4-6",
    );
    // The GPUs of a NUMA node are below its title, and links between the nodes are level.
    let drawn = "const x = (one) => Number(one.getAttribute('x'));
        const [left, right] = [...document.querySelectorAll('.ring .title')].map(x);
        const side = (gpu) => {
            const at = x(document.querySelector(`.ring a[href='#gpu-${gpu}'] text`));
            return Math.abs(at - left) < Math.abs(at - right) ? 0 : 1;
        };
        const level = [...document.querySelectorAll('.ring line')]
            .filter((line) => line.getAttribute('y1') === line.getAttribute('y2'));
        return [[0, 1, 2, 3, 4, 5, 6, 7].map(side), level.length];";
    let expected = json!([[0, 0, 0, 0, 1, 1, 1, 1], 4]);
    assert_eq!(browser.run(drawn).unwrap(), expected);
    set_faults(&mesh, r#"[{"gpu-lost": {"gpu": 0}}]"#);
    wait_for_text(&browser, "7 of 8 × Tesla V100");
    inspect(&browser, &mesh, "lost");

    let pairs = simulated("a100-pcie-pairs");
    browser.emulate(1280, "light").unwrap();
    browser.open(&pairs.url("/")).unwrap();
    let tops = "return [...document.querySelectorAll('section.domain')].map((one) => Math.round(one.getBoundingClientRect().top))";
    let tops = browser.run(tops).unwrap();
    assert!(
        tops[0] == tops[1] && tops[2] == tops[3] && tops[1] != tops[2],
        "{tops}"
    );
}

#[test]
fn the_first_reading_is_shown_as_measuring() {
    let rarely = ["--source", "sim:dgx-h100", "--collection-interval", "12s"];
    let exporter = Exporter::start(&rarely).unwrap();
    let browser = Browser::start().unwrap();
    browser.open(&exporter.url("/")).unwrap();
    wait_for_text(&browser, "measuring…");
    let drawn = "return ['i.wait', 'i.nk'].map((one) => document.querySelectorAll(one).length)";
    assert_eq!(browser.run(drawn).unwrap(), json!([8 * 18 + 1, 0]));
    wait_for_text(&browser, "load not known");
    assert_eq!(browser.run(drawn).unwrap(), json!([0, 1]), "the legend");
}

#[test]
fn seventy_two_gpus_and_hostile_names_stay_readable() {
    let mut node = document("gb200-nvl72");
    let tray = node["spec"]["gpus"].take();
    let gpus: Vec<Value> = (0..72)
        .map(|n| {
            let mut gpu = tray[n % 4].clone();
            gpu["index"] = n.into();
            gpu["uuid"] = format!("GPU-{n}").into();
            gpu["pciBusId"] = format!("{n:08X}:01:00.0").into();
            gpu["model"] = "NVIDIA GB200 <script>boom()</script>".into();
            gpu
        })
        .collect();
    let spec = &mut node["spec"];
    spec["gpus"] = gpus.into();
    spec["domains"][0]["gpus"] = (0..72).collect();
    for derived in ["edges", "paths", "nics"] {
        spec[derived] = json!([]);
    }
    let pod = format!("\"><img src=x onerror=boom()>{}", "very-long-".repeat(20));
    node["status"] = json!({"allocations": [
        {"namespace": "ci\u{202e}&amp;", "pod": pod, "container": "'\"", "gpus": [0, 1, 40]},
    ]});
    let exporter = recorded("fabric.json", &node);
    let browser = Browser::start().unwrap();
    inspect(&browser, &exporter, "fabric-of-72");
    let drawn = "return [document.querySelectorAll('details.gpu').length, document.querySelectorAll('svg, line, img, main script').length]";
    assert_eq!(browser.run(drawn).unwrap(), json!([72, 0]));
    // GPUs 0, 1, 4, 5, … are in one NUMA node, and are drawn together.
    let together = "return [...document.querySelectorAll('.numa')].map((numa) =>
        [numa.querySelector('h4').textContent, numa.querySelectorAll('.gpu').length])";
    let nodes = json!([["NUMA 0", 36], ["NUMA 1", 36]]);
    assert_eq!(browser.run(together).unwrap(), nodes);
    let text = browser.text().unwrap();
    assert!(
        text.contains("<script>boom()</script>") && text.contains("<img src=x"),
        "{text}"
    );
    let size = http::text(&exporter.url("/")).unwrap().len();
    assert!(size < 300_000, "{size} bytes");
}

#[test]
fn a_fault_is_shown_without_a_reload_and_the_focus_stays() {
    let exporter = simulated("dgx-h100");
    let browser = Browser::start().unwrap();
    browser.emulate(390, "light").unwrap();
    browser.open(&exporter.url("/")).unwrap();
    wait_for_text(&browser, "Nothing needs attention");
    let reader = "window.here = true; const gpu = document.getElementById('gpu-5');
        gpu.open = true; gpu.querySelector('summary').focus(); window.gpu = gpu; window.at = scrollY; return scrollY;";
    assert!(browser.run(reader).unwrap().as_f64().unwrap() > 0.0);
    set_faults(
        &exporter,
        r#"[{"link-down": {"gpu": 3, "link": 7}}, {"gpu-lost": {"gpu": 1}},
            {"xid": {"gpu": 2, "xid": 74}},
            {"errors": {"gpu": 5, "link": 2, "kind": "crc_flit", "perHour": 36000}}]"#,
    );
    wait_for_text(&browser, "GPU 3: 1 link missing: 7");
    wait_for_text(&browser, "GPU 1: lost: it no longer answers");
    wait_for_text(&browser, "7 of 8 × NVIDIA H100");
    wait_for_text(&browser, "GPU 2: XID 74, 1 time since the start");
    wait_for_text(&browser, "GPU 5: new errors on link 2");
    let badges = "return [...document.querySelectorAll('#gpu-2 summary > .warning')].map((one) => one.textContent);";
    assert_eq!(browser.run(badges).unwrap(), json!(["▲ XID 74"]));
    let undisturbed = "const gpu = document.getElementById('gpu-5');
        return [window.here, gpu === window.gpu, gpu.open, document.activeElement === gpu.querySelector('summary'),
            document.querySelectorAll('#gpu-5 .rise').length, document.title.startsWith('▲')];";
    assert_eq!(
        browser.run(undisturbed).unwrap(),
        json!([true, true, true, true, 1, true])
    );
    set_faults(&exporter, r#"[{"fabric-down": {}}]"#);
    wait_for_text(&browser, "GPUs 0-7: NVLink fabric is not started");
    wait_for_text(&browser, "their links are up, but lead to no other GPU");
    // The focused element still exists, is open, and is in another place of the page.
    assert_eq!(
        browser.run(undisturbed).unwrap(),
        json!([true, true, true, true, 1, true])
    );
    http::send("DELETE", &exporter.url("/sim/faults"), "").unwrap();
    wait_for_text(&browser, "NVLink domain node-a.0");
    assert_eq!(
        browser
            .run("return [window.here, document.querySelectorAll('.down').length]")
            .unwrap(),
        json!([true, 1]),
        "the one in the legend"
    );
    assert!(browser.console().unwrap().is_empty());
}

#[test]
fn the_faults_of_the_documentation_are_accepted() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/exporter.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, section) = page.split_once("## Simulated faults").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let (_, list) = section.split_once("-d '").unwrap();
    let (list, rest) = list.split_once('\'').unwrap();
    let exporter = simulated("dgx-h100");
    set_faults(&exporter, list);
    let (_, others) = rest.split_once("Others are").unwrap();
    let others: Vec<&str> = others.split('`').skip(1).step_by(2).collect();
    assert_eq!(others.len(), 10, "{others:?}");
    set_faults(&exporter, &format!("[{}]", others.join(",")));
}

#[test]
fn jobs_are_shown_with_the_quality_of_their_placement() {
    let kubelet = Kubelet::start().unwrap();
    let socket = kubelet.socket().to_str().unwrap().to_owned();
    let arguments = ["--source", "sim:dgx1-v100", "--node-name", "node-a"];
    let often = [
        "--collection-interval",
        "250ms",
        "--kubelet-socket",
        &socket,
    ];
    let exporter = Exporter::start(&[arguments, often].concat()).unwrap();
    wait_for_load(&exporter);
    let run = |pod: &str, gpus: &[&str]| {
        let main = Container::named("main").holding("nvidia.com/gpu", gpus);
        kubelet.run_pod("ci", pod, [main]);
    };
    let browser = Browser::start().unwrap();
    browser.open(&exporter.url("/")).unwrap();
    wait_for_text(&browser, "No job holds a GPU.");
    // GPUs 1 and 4 have no link between them, 0 and 3 have two.
    run("a-good", &["0", "3"]);
    run("b-bad", &["1", "4"]);
    wait_for_text(&browser, "Free: GPUs 2,5-7");
    wait_for_text(&browser, "100 % ✓ the best here");
    let traffic = "return /^NVLink ↑ [0-9.]+ ↓ [0-9.]+ GB\\/s$/.test(
        document.querySelector('#job-A .traffic').textContent)";
    assert_eq!(browser.run(traffic).unwrap(), true);
    wait_for_text(&browser, "job B (ci/b-bad) is placed at 15 % of the best");
    let marks = "return [0, 1, 2, 3, 4].map((gpu) =>
        document.querySelector(`#gpu-${gpu} .mark`)?.textContent ?? '')";
    let expected = json!(["job A", "job B", "", "job A", "job B"]);
    assert_eq!(browser.run(marks).unwrap(), expected);
    let opened = "document.getElementById('job-B').open = true";
    browser.run(opened).unwrap();
    wait_for_text(&browser, "all-reduce (default)");
    inspect(&browser, &exporter, "jobs");

    browser.open(&exporter.url("/")).unwrap();
    kubelet.set_mood(Mood::Fails);
    wait_for_text(&browser, "allocations are not known");
    wait_for_text(&browser, "GPU allocations are not known.");
    assert_eq!(
        browser
            .run("return document.querySelectorAll('.job, .gpu .mark').length")
            .unwrap(),
        0
    );
}

#[test]
fn a_hanging_node_and_a_missing_exporter_are_shown() {
    let exporter = simulated("a100-pcie-pairs");
    let browser = Browser::start().unwrap();
    browser.open(&exporter.url("/")).unwrap();
    set_faults(&exporter, r#"["hang"]"#);
    let age = "return Number(document.getElementById('age').textContent.split(' ')[0])";
    wait_until("the age to grow", SOON, || {
        Ok(browser.run(age)?.as_f64().filter(|age| *age > 3.0))
    })
    .unwrap();
    // The age continues to count between two refreshes, in steps of a second.
    let before = browser.run(age).unwrap().as_f64().unwrap();
    drop(exporter);
    wait_for_text(&browser, "The exporter has not answered for");
    wait_until("the age to keep counting", SOON, || {
        Ok(browser.run(age)?.as_f64().filter(|age| *age > before))
    })
    .unwrap();
    assert!(
        browser.text().unwrap().contains("GPU 7"),
        "the last data stay"
    );
}

#[test]
fn the_page_can_be_used_with_the_keyboard() {
    let exporter = simulated("h200-degraded");
    let browser = Browser::start().unwrap();
    browser.emulate(1280, "dark").unwrap();
    browser.open(&exporter.url("/")).unwrap();
    let active = || {
        let script = "const at = document.activeElement; const style = getComputedStyle(at);
            return [at.textContent.trim().slice(0, 20), at.closest('[id]')?.id ?? '', style.outlineStyle]";
        let [text, id, outline] =
            <[Value; 3]>::try_from(browser.run(script).unwrap().as_array().unwrap().clone())
                .unwrap();
        assert_ne!(outline, "none", "{text} {id} shows no focus");
        (
            text.as_str().unwrap().to_owned(),
            id.as_str().unwrap().to_owned(),
        )
    };
    browser.press(TAB).unwrap();
    assert_eq!(active().0, "Skip to the GPUs");
    // The list of problems comes next. Its link opens and focuses the GPU.
    browser.press(TAB).unwrap();
    assert!(
        active().0.starts_with("GPU 6: the driver"),
        "{:?}",
        active()
    );
    browser.press(ENTER).unwrap();
    wait_until("the GPU to have the focus", SOON, || {
        Ok((active().1 == "gpu-6").then_some(()))
    })
    .unwrap();
    assert_eq!(
        browser
            .run("return document.getElementById('gpu-6').open")
            .unwrap(),
        true
    );
    // Next are the table of its links and the next GPU, which Enter opens.
    browser.press(TAB).unwrap();
    assert!(active().0.starts_with("Link"), "{:?}", active());
    browser.press(TAB).unwrap();
    assert_eq!(active().1, "gpu-7");
    browser.press(ENTER).unwrap();
    assert_eq!(
        browser
            .run("return document.getElementById('gpu-7').open")
            .unwrap(),
        true
    );
}

#[test]
fn the_page_is_complete_without_scripts() {
    let exporter = simulated("dgx1-v100");
    let browser = Browser::start().unwrap();
    browser.forbid_scripts().unwrap();
    browser.open(&exporter.url("/")).unwrap();
    let text = browser.text().unwrap();
    for part in [
        "Without JavaScript",
        "GPU 7",
        "6/6 up",
        "NVLink domain node-a.0",
        "NUMA 1",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(
        browser
            .run("return document.querySelectorAll('svg.ring line').length")
            .unwrap(),
        16
    );
}
