//! The tables of values in the chart's README, generated from `values.yaml`.

use serde_json::Value;

use crate::{chart, documents, golden, read};

const START: &str = "<!-- Generated from values.yaml: make generate -->\n";

/// A value with a description, and the title of its table.
struct Described {
    title: String,
    path: Vec<String>,
    text: String,
}

/// Returns the values before which a comment begins with `# --`, with the rest of the comment.
fn described(text: &str) -> Vec<Described> {
    let (mut all, mut path) = (Vec::new(), Vec::<(usize, String)>::new());
    let (mut title, mut comment) = (String::new(), None);
    for line in text.lines() {
        let (indent, line) = (line.len() - line.trim_start().len(), line.trim());
        if let Some(words) = line.strip_prefix("# ==") {
            words.trim_matches([' ', '=']).clone_into(&mut title);
            continue;
        }
        if let Some(words) = line.strip_prefix("# --") {
            comment = Some(words.trim().to_owned());
            continue;
        }
        let key = line.split_once(':').map(|(key, _)| key);
        let Some(key) = key.filter(|key| !key.is_empty() && !key.starts_with(['#', '-', '{']))
        else {
            continue;
        };
        path.retain(|(depth, _)| *depth < indent);
        path.push((indent, key.to_owned()));
        if let Some(text) = comment.take() {
            let path = path.iter().map(|(_, key)| key.clone()).collect();
            let title = title.clone();
            all.push(Described { title, path, text });
        }
    }
    all
}

fn tables(text: &str) -> String {
    let values = documents(text).remove(0);
    let (mut tables, mut last) = (String::new(), String::new());
    for Described { title, path, text } in described(text) {
        if title != last {
            tables += &format!("\n### {title}\n\n| value | default | meaning |\n|---|---|---|\n");
            last = title;
        }
        let default = path.iter().fold(&values, |inside, key| &inside[key]);
        assert_ne!(*default, Value::Null, "{path:?} has no default");
        let default = default.to_string();
        let shown = match default.len() {
            0..=60 => format!("`{default}`"),
            _ => "see [values.yaml](values.yaml)".to_owned(),
        };
        tables += &format!("| `{}` | {shown} | {text} |\n", path.join("."));
    }
    tables
}

/// Counts the leaves of the values that neither have a description nor are in a value that has one.
fn undescribed(values: &Value, path: &mut Vec<String>, all: &[Described], found: &mut Vec<String>) {
    if all.iter().any(|one| one.path == *path) {
        return;
    }
    match values.as_object().filter(|fields| !fields.is_empty()) {
        None => found.push(path.join(".")),
        Some(fields) => {
            for (name, value) in fields {
                path.push(name.clone());
                undescribed(value, path, all, found);
                path.pop();
            }
        }
    }
}

#[test]
fn the_tables_of_values_are_up_to_date() {
    let readme = read(&chart("README.md"));
    let (before, rest) = readme.split_once(START).expect("the mark of the table");
    let after = rest.split_once("\n## ").map_or("", |(_, after)| after);
    let tables = tables(&read(&chart("values.yaml")));
    let wanted = format!("{before}{START}{tables}\n## {after}");
    golden("README.md", &wanted);
}

#[test]
fn each_value_has_a_description() {
    let text = read(&chart("values.yaml"));
    let mut found = Vec::new();
    let values = documents(&text).remove(0);
    undescribed(&values, &mut Vec::new(), &described(&text), &mut found);
    assert_eq!(found, Vec::<String>::new());
}
