//! A link breaks, another makes errors, and both heal: on the page, and in the metrics.

use std::time::Duration;

use anyhow::{Result, ensure};
use nvlink_tests::{Exporter, http, wait_until};

use crate::terminal::Terminal;

const SOON: Duration = Duration::from_secs(20);

const FAULTS: &str = r#"[{"link-down": {"gpu": 3, "link": 7}},
 {"errors": {"gpu": 6, "link": 4, "kind": "replay", "perHour": 36000}}]"#;

/// Beginnings of the metric lines to look at, up to the label UUID and behind it.
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
    terminal.step("A link breaks, and what shows it")?;
    terminal.say(&format!(
        "The simulated node can be broken while it runs. The page shows it within seconds: {}",
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
        // Errors are counted after a while.
        let shown = lines[0].ends_with(" 1") && !lines[3].ends_with(" 0");
        Ok(shown.then_some(lines))
    })?;
    terminal.output(&broken.join("\n"))?;
    terminal.say(
        "One link less to each peer of GPU 3. What an alert would ask: `nvlink_missing_links > 0`\n\
         and `increase(nvlink_errors_total[5m]) > 0`. Now it heals:",
    )?;
    terminal.command("curl -X DELETE ADDRESS/sim/faults")?;
    http::send("DELETE", &url, "")?;
    let healed = wait_until("the fault to be gone", SOON, || {
        let lines = lines(exporter)?;
        Ok(lines[0].ends_with(" 0").then_some(lines))
    })?;
    terminal.output(&healed.join("\n"))?;
    terminal.say("The errors stay counted, and their rate is 0 again.")
}

/// The metric lines, without UUIDs.
fn lines(exporter: &Exporter) -> Result<Vec<String>> {
    let text = exporter.metrics()?;
    let line = |(first, last): &(&str, &str)| {
        let matches = |line: &&str| line.starts_with(first) && line.contains(last);
        text.lines().find(matches).map(without_uuids)
    };
    let found: Vec<String> = LINES.iter().filter_map(line).collect();
    ensure!(found.len() == LINES.len(), "not all there yet: {found:?}");
    Ok(found)
}

fn without_uuids(line: &str) -> String {
    let (name, rest) = line.split_once('{').unwrap_or((line, ""));
    let (labels, value) = rest.rsplit_once('}').unwrap_or((rest, ""));
    let kept = labels.split(',').filter(|label| !label.contains("UUID="));
    format!("{name}{{{}}}{value}", kept.collect::<Vec<_>>().join(","))
}
