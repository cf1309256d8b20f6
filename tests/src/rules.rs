//! The project's alerting rules, in their own time or faster.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../alerts/rules");

/// The files of `alerts/rules`, by name.
#[derive(Clone, Debug)]
pub struct Rules(Vec<(String, Value)>);

impl Rules {
    /// Reads all rules.
    ///
    /// # Errors
    /// When a file cannot be read or is not YAML.
    pub fn read() -> Result<Self> {
        let mut files = Vec::new();
        for entry in fs::read_dir(DIRECTORY).context(DIRECTORY)? {
            let path = entry?.path();
            let text = fs::read_to_string(&path)?;
            let rules =
                serde_saphyr::from_str(&text).with_context(|| path.display().to_string())?;
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            files.push((name.into_owned(), rules));
        }
        files.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(Self(files))
    }

    /// Returns the names of the alerts. One name may have a rule for each severity.
    #[must_use]
    pub fn alerts(&self) -> BTreeSet<String> {
        let names = self.all().filter_map(|rule| rule["alert"].as_str());
        names.map(str::to_owned).collect()
    }

    /// Leaves out the file `name`.
    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        self.0.retain(|(file, _)| file != name);
        self
    }

    /// Divides each duration (ranges, offsets, how long an alert must hold) by `factor`, so that
    /// minutes pass in seconds. Numbers that are compared stay as they are.
    #[must_use]
    pub fn faster(self, factor: u32) -> Self {
        self.faster_where(factor, |_| true)
    }

    /// Does the same to the alerts called `name` only.
    #[must_use]
    pub fn alert_faster(self, name: &str, factor: u32) -> Self {
        self.faster_where(factor, |rule| rule["alert"] == name)
    }

    /// Replaces `from` by `to` in the expressions of the alerts called `name`.
    ///
    /// # Errors
    /// When none of them has it.
    pub fn replaced(mut self, name: &str, from: &str, to: &str) -> Result<Self> {
        let mut found = false;
        for rule in self.all_mut().filter(|rule| rule["alert"] == name) {
            if let Some(expr) = rule["expr"].as_str().filter(|expr| expr.contains(from)) {
                rule["expr"] = expr.replace(from, to).into();
                found = true;
            }
        }
        ensure!(found, "{name} has no {from}");
        Ok(self)
    }

    fn faster_where(mut self, factor: u32, is_meant: impl Fn(&Value) -> bool) -> Self {
        for rule in self.all_mut().filter(|rule| is_meant(rule)) {
            for key in ["for", "keep_firing_for"] {
                if let Some(text) = rule[key].as_str().and_then(|text| scaled(text, factor)) {
                    rule[key] = text.into();
                }
            }
            if let Some(expr) = rule["expr"].as_str() {
                rule["expr"] = shorten(expr, factor).into();
            }
        }
        self
    }

    /// Returns all groups, in the order of the files: the name and the rules of each.
    pub fn groups(&self) -> impl Iterator<Item = (&str, &[Value])> {
        let groups = self
            .0
            .iter()
            .filter_map(|(_, file)| file["groups"].as_array());
        groups.flatten().map(|group| {
            let rules = group["rules"].as_array().map_or(&[][..], Vec::as_slice);
            (group["name"].as_str().unwrap_or_default(), rules)
        })
    }

    /// Returns all rules, in the order of the files.
    pub fn all(&self) -> impl Iterator<Item = &Value> {
        let groups = self
            .0
            .iter()
            .filter_map(|(_, file)| file["groups"].as_array());
        let rules = groups
            .flatten()
            .filter_map(|group| group["rules"].as_array());
        rules.flatten()
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        let files = self.0.iter_mut();
        let groups = files.filter_map(|(_, file)| file["groups"].as_array_mut());
        let rules = groups
            .flatten()
            .filter_map(|group| group["rules"].as_array_mut());
        rules.flatten()
    }

    /// Writes the files to `directory` and returns their paths.
    pub(crate) fn write(&self, directory: &Path) -> Result<Vec<PathBuf>> {
        let write = |(name, rules): &(String, Value)| {
            let path = directory.join(name);
            // YAML is a superset of JSON.
            fs::write(&path, rules.to_string())?;
            Ok(path)
        };
        self.0.iter().map(write).collect()
    }
}

/// Divides the durations of a PromQL expression: those in brackets and those of offsets.
fn shorten(expr: &str, factor: u32) -> String {
    let mut out = String::with_capacity(expr.len());
    let mut rest = expr;
    while !rest.is_empty() {
        let word = rest.find(|c: char| !c.is_ascii_alphanumeric());
        let (word, after) = rest.split_at(word.unwrap_or(rest.len()));
        let quoted = out.matches('"').count() % 2 == 1;
        let follows = out.ends_with(['[', ':']) || out.trim_end().ends_with("offset");
        match scaled(word, factor).filter(|_| follows && !quoted) {
            Some(shorter) => out += &shorter,
            None => out += word,
        }
        let others = after.find(|c: char| c.is_ascii_alphanumeric());
        let (others, after) = after.split_at(others.unwrap_or(after.len()));
        out += others;
        rest = after;
    }
    out
}

/// Divides a duration such as `1h30m`, if it is one.
pub(crate) fn scaled(text: &str, factor: u32) -> Option<String> {
    let mut rest = text;
    let mut milliseconds = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        let end = rest[digits..].find(|c: char| c.is_ascii_digit());
        let unit = &rest[digits..end.map_or(rest.len(), |end| digits + end)];
        milliseconds += number
            * match unit {
                "ms" => 1,
                "s" => 1000,
                "m" => 60_000,
                "h" => 3_600_000,
                "d" => 86_400_000,
                "w" => 7 * 86_400_000,
                _ => return None,
            };
        rest = &rest[digits + unit.len()..];
    }
    (!text.is_empty()).then(|| format!("{}ms", milliseconds / u64::from(factor)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_durations_become_shorter() {
        for (expr, faster) in [
            ("rate(a_5m[5m]) > 60", "rate(a_5m[5000ms]) > 60"),
            (
                r#"max_over_time(x{a=~"[5m]"}[1d:1m] offset 1h)"#,
                r#"max_over_time(x{a=~"[5m]"}[1440000ms:1000ms] offset 60000ms)"#,
            ),
            ("job:x:rate5m / 5", "job:x:rate5m / 5"),
            (
                "increase(x[1h30m]) offset  1w",
                "increase(x[90000ms]) offset  10080000ms",
            ),
        ] {
            assert_eq!(shorten(expr, 60), faster);
        }
    }
}
