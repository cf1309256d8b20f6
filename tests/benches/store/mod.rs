//! etcd, through its JSON gateway. It copies objects byte by byte.

use std::{
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use anyhow::{Context, Result, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use nvlink_tests::http;
use serde_json::{Value, json};

const WRITERS: usize = 8;
/// The number of digits of a node's number, which is part of its name and replaces the
/// end of its objects' UIDs.
const DIGITS: usize = 5;

/// The etcd of a control plane.
pub(crate) struct Store {
    url: String,
}

/// An object to copy, and the places of its node's number in it.
pub(crate) struct Template {
    key: Vec<u8>,
    in_key: usize,
    value: Vec<u8>,
    places: Vec<usize>,
}

impl Store {
    /// Returns the store at `url`.
    pub(crate) fn new(url: &str) -> Self {
        Self { url: url.into() }
    }

    /// Reads the object at `key`, which belongs to the node `name`, as a template.
    pub(crate) fn template(&self, key: String, name: &str, uid: &str) -> Result<Template> {
        let answer = self.ask("range", &json!({"key": STANDARD.encode(&key)}))?;
        let text = answer["kvs"][0]["value"].as_str();
        let value = STANDARD.decode(text.with_context(|| format!("etcd has no key {key}"))?)?;
        let number = name.find(|letter: char| letter.is_ascii_digit());
        let in_name = number.context("the node name contains no number")?;
        let mut places = all(&value, name, in_name);
        places.extend(all(&value, uid, uid.len() - DIGITS));
        Ok(Template {
            in_key: key.len() - name.len() + in_name,
            key: key.into_bytes(),
            value,
            places,
        })
    }

    /// Writes copies for the nodes `numbers`, each of the objects of one template node.
    pub(crate) fn copy(&self, templates: &[Template], numbers: Range<usize>) -> Result<()> {
        let next = AtomicUsize::new(numbers.start);
        let work = || -> Result<()> {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= numbers.end {
                    return Ok(());
                }
                // The two objects of a node are adjacent.
                let first = number * 2 % templates.len();
                for template in &templates[first..first + 2] {
                    self.put(template, number)?;
                }
            }
        };
        thread::scope(|scope| {
            let running: Vec<_> = (0..WRITERS).map(|_| scope.spawn(work)).collect();
            let mut ended = running.into_iter().map(|one| one.join());
            ended.try_for_each(|one| one.unwrap_or_else(|_| anyhow::bail!("a writer panicked")))
        })
    }

    fn put(&self, template: &Template, number: usize) -> Result<()> {
        let digits = format!("{number:0DIGITS$}");
        let mut value = template.value.clone();
        for &place in &template.places {
            value[place..place + DIGITS].copy_from_slice(digits.as_bytes());
        }
        let mut key = template.key.clone();
        key[template.in_key..][..DIGITS].copy_from_slice(digits.as_bytes());
        let put = json!({"key": STANDARD.encode(key), "value": STANDARD.encode(value)});
        self.ask("put", &put).map(drop)
    }

    fn ask(&self, what: &str, question: &Value) -> Result<Value> {
        let url = format!("{}/v3/kv/{what}", self.url);
        let answer = http::send("POST", &url, &question.to_string())?;
        ensure!(
            answer.status == 200,
            "etcd answered {}: {}",
            answer.status,
            answer.body
        );
        Ok(serde_json::from_str(&answer.body)?)
    }
}

/// Returns the places of the number: `offset` into each occurrence of `text` in `value`.
fn all(value: &[u8], text: &str, offset: usize) -> Vec<usize> {
    let windows = value.windows(text.len()).enumerate();
    let found = windows.filter(|(_, window)| *window == text.as_bytes());
    found.map(|(at, _)| at + offset).collect()
}
