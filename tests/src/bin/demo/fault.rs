//! A link breaks, another has errors, and both heal: on the page and in the metrics.

use std::time::Duration;

use anyhow::{Result, ensure};
use nvlink_tests::{Exporter, http, wait_until};

use crate::terminal::Terminal;

const SOON: Duration = Duration::from_secs(20);

const FAULTS: &str = r#"[{"link-down": {"gpu": 3, "link": 7}},
 {"errors": {"gpu": 6, "link": 4, "kind": "replay", "perHour": 36000}}]"#;

/// The metric lines to show: their text before the label UUID, and a part of it after.
const LINES: [(&str, &str); 4] = [
    ("nvlink_missing_links{gpu=\"3\"", "}"),
    ("nvlink_link_up{gpu=\"3\"", ",link=\"7\""),
    ("nvlink_peer_links{gpu=\"3\"", ",peer=\"0\""),
    (
        "nvlink_errors_total{gpu=\"6\"",
        ",link=\"4\",kind=\"replay\"}",
    ),
];

pub(crate) fn show(terminal: &Terminal, exporter: &Exporter) -> Result<()> {
    terminal.step("A link breaks")?;
    terminal.say(&format!(
        "A simulated node accepts faults while it runs. The page shows them within seconds: {}",
        exporter.url("/")
    ))?;
    terminal.command("curl -s ADDRESS/metrics | grep …      (the label UUID left out)")?;
    terminal.output(&lines(exporter)?.join("\n"))?;
    let url = exporter.url("/sim/faults");
    terminal.command(&format!(
        "curl -X PUT -H 'Content-Type: application/json' ADDRESS/sim/faults -d \\\n     '{}'",
        FAULTS.replace('\n', "\n     ")
    ))?;
    let answer = http::send("PUT", &url, FAULTS)?;
    ensure!(answer.status == 200, "{url}: {}", answer.body);
    let broken = wait_until("the fault to show", SOON, || {
        let lines = lines(exporter)?;
        // The error counter takes a moment to increase.
        let shown = lines[0].ends_with(" 1") && !lines[3].ends_with(" 0");
        Ok(shown.then_some(lines))
    })?;
    terminal.output(&broken.join("\n"))?;
    terminal.say(
        "GPU 3 has one link less to each peer. `make demo-observe` shows the alerts of such faults.\n\
         Now the links heal:",
    )?;
    terminal.command("curl -X DELETE ADDRESS/sim/faults")?;
    http::send("DELETE", &url, "")?;
    let healed = wait_until("the fault to be gone", SOON, || {
        let lines = lines(exporter)?;
        Ok(lines[0].ends_with(" 0").then_some(lines))
    })?;
    terminal.output(&healed.join("\n"))?;
    terminal.say("The error counter keeps its value, and its rate is 0 again.")
}

/// Returns the metric lines, without UUIDs.
fn lines(exporter: &Exporter) -> Result<Vec<String>> {
    let text = exporter.metrics()?;
    let line = |(first, last): &(&str, &str)| {
        let matches = |line: &&str| line.starts_with(first) && line.contains(last);
        text.lines().find(matches).map(without_uuids)
    };
    let found: Vec<String> = LINES.iter().filter_map(line).collect();
    ensure!(
        found.len() == LINES.len(),
        "some metrics are still missing: {found:?}"
    );
    Ok(found)
}

fn without_uuids(line: &str) -> String {
    let (name, rest) = line.split_once('{').unwrap_or((line, ""));
    let (labels, value) = rest.rsplit_once('}').unwrap_or((rest, ""));
    let kept = labels.split(',').filter(|label| !label.contains("UUID="));
    format!("{name}{{{}}}{value}", kept.collect::<Vec<_>>().join(","))
}
