//! Shows a calibration.

use nvlink_topology::Calibration;

use super::table::columns;

const DAY: u64 = 24 * 3600;

/// Renders a table; `now` is in seconds since 1970.
#[must_use]
pub fn table(calibration: &Calibration, now: u64) -> String {
    let titles = ["MODEL", "PATH", "MEASURED / CONSTANT", "RUNS", "LATEST RUN"];
    let mut rows = vec![titles.map(str::to_owned).to_vec()];
    for entry in &calibration.entries {
        let latest = match now.saturating_sub(entry.measured_at) / DAY {
            0 => "today".to_owned(),
            1 => "yesterday".to_owned(),
            days => format!("{days} days ago"),
        };
        rows.push(vec![
            entry.model.replace(char::is_control, " "),
            entry.path.as_str().to_owned(),
            format!("{:.2}", entry.factor),
            entry.runs.to_string(),
            latest,
        ]);
    }
    columns(&rows)
}
