//! Edits of a raw JSON document, recorded as JSON Patch operations.
//!
//! Each edit changes the document in place and records an operation, so that later edits see
//! earlier ones. If a parent is absent or null, the same operation creates it. An existing parent
//! is never replaced, so unknown fields are kept. Each operation is immediately written as the text
//! that the API server gets, because its value moves into the document.

use serde::Serialize;
use serde_json::{Map, Value};

/// One step down into a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// A key of an object.
    Key(&'a str),
    /// An index of an array.
    Index(usize),
}

impl<'a> From<&'a str> for Step<'a> {
    fn from(key: &'a str) -> Self {
        Self::Key(key)
    }
}

impl From<usize> for Step<'_> {
    fn from(index: usize) -> Self {
        Self::Index(index)
    }
}

/// The error that a part of the document has the wrong type for an edit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path} is not {expected}")]
pub struct WrongType {
    path: String,
    expected: &'static str,
}

/// The position of a new value in its parent.
#[derive(Clone, Copy)]
enum Slot<'a> {
    Key(&'a str),
    End,
}

impl Slot<'_> {
    fn expected(self) -> &'static str {
        match self {
            Self::Key(_) => "an object",
            Self::End => "an array",
        }
    }

    fn alone(self, value: Value) -> Value {
        match self {
            Self::Key(key) => object(key, value),
            Self::End => Value::Array(vec![value]),
        }
    }
}

/// JSON Patch operations as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patch {
    /// The operations, separated by commas.
    operations: Vec<u8>,
    count: usize,
}

/// The size of most patches as text, in bytes.
const USUAL: usize = 2 << 10;

#[derive(Serialize)]
struct Operation<'a> {
    op: &'static str,
    path: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a Value>,
}

impl Patch {
    /// Reports whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the number of operations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Returns the patch as a JSON document.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        [b"[", &self.operations[..], b"]"].concat()
    }

    /// Records that `value` is added at `last` in `parent`, or removed if it is `None`.
    fn record(&mut self, parent: &[Step<'_>], last: &str, value: Option<&Value>) {
        match self.is_empty() {
            true => self.operations.reserve(USUAL),
            false => self.operations.push(b','),
        }
        let op = if value.is_some() { "add" } else { "remove" };
        let path = &pointer(parent.iter().copied().chain([last.into()]));
        // This never fails: all keys are strings, and the target is memory.
        let _ = serde_json::to_writer(&mut self.operations, &Operation { op, path, value });
        self.count += 1;
    }
}

/// A document under edit.
#[derive(Clone, Debug)]
pub struct Editor {
    document: Value,
    patch: Patch,
}

impl Editor {
    #[must_use]
    pub fn new(document: Value) -> Self {
        Self {
            document,
            patch: Patch::default(),
        }
    }

    /// Returns the document as edited so far.
    #[must_use]
    pub fn document(&self) -> &Value {
        &self.document
    }

    /// Returns the value at `path`; `None` if it is absent or null.
    #[must_use]
    pub fn get(&self, path: &[Step<'_>]) -> Option<&Value> {
        path.iter()
            .try_fold(&self.document, |value, &step| child(value, step))
    }

    /// Sets `key` in the object at `object`, which is created if it is absent.
    ///
    /// # Errors
    /// When a value on the path is neither absent nor an object.
    pub fn insert(
        &mut self,
        object: &[Step<'_>],
        key: &str,
        value: Value,
    ) -> Result<(), WrongType> {
        self.add(object, Slot::Key(key), value)
    }

    /// Appends to the array at `array`, which is created if it is absent.
    ///
    /// # Errors
    /// When a value on the path has the wrong type.
    pub fn append(&mut self, array: &[Step<'_>], value: Value) -> Result<(), WrongType> {
        self.add(array, Slot::End, value)
    }

    /// Removes `key` from the object at `object`, if it exists.
    pub fn remove(&mut self, object: &[Step<'_>], key: &str) {
        let parent = object
            .iter()
            .try_fold(&mut self.document, |value, &step| child_mut(value, step));
        let map = parent.and_then(Value::as_object_mut);
        if map.and_then(|map| map.remove(key)).is_some() {
            self.patch.record(object, key, None);
        }
    }

    /// Returns the edited document, and the patch that leads to it.
    #[must_use]
    pub fn finish(self) -> (Value, Patch) {
        (self.document, self.patch)
    }

    fn add(&mut self, parents: &[Step<'_>], slot: Slot<'_>, value: Value) -> Result<(), WrongType> {
        let present = parents
            .iter()
            .scan(&self.document, |value, &step| {
                *value = child(value, step)?;
                Some(())
            })
            .count();
        let (existing, missing) = parents.split_at(present);
        let Some((&first, rest)) = missing.split_first() else {
            return self.place(existing, slot, value);
        };
        let Step::Key(key) = first else {
            return Err(wrong(existing, "an array that long"));
        };
        let nested = rest
            .iter()
            .rev()
            .fold(slot.alone(value), |inner, step| match step {
                Step::Key(key) => object(key, inner),
                Step::Index(_) => Value::Array(vec![inner]),
            });
        self.place(existing, Slot::Key(key), nested)
    }

    fn place(&mut self, path: &[Step<'_>], slot: Slot<'_>, value: Value) -> Result<(), WrongType> {
        let parent = path
            .iter()
            .try_fold(&mut self.document, |value, &step| child_mut(value, step))
            .ok_or_else(|| wrong(path, "present"))?;
        match (parent, slot) {
            (Value::Object(map), Slot::Key(key)) => {
                self.patch.record(path, key, Some(&value));
                map.insert(key.to_owned(), value);
            }
            (Value::Array(items), Slot::End) => {
                self.patch.record(path, "-", Some(&value));
                items.push(value);
            }
            _ => return Err(wrong(path, slot.expected())),
        }
        Ok(())
    }
}

fn child<'v>(value: &'v Value, step: Step<'_>) -> Option<&'v Value> {
    let child = match step {
        Step::Key(key) => value.get(key),
        Step::Index(index) => value.get(index),
    };
    child.filter(|child| !child.is_null())
}

fn child_mut<'v>(value: &'v mut Value, step: Step<'_>) -> Option<&'v mut Value> {
    match step {
        Step::Key(key) => value.get_mut(key),
        Step::Index(index) => value.get_mut(index),
    }
}

/// Returns the JSON Pointer of `path`.
fn pointer<'a>(path: impl IntoIterator<Item = Step<'a>>) -> String {
    let mut pointer = String::with_capacity(64);
    for step in path {
        pointer.push('/');
        match step {
            Step::Key(key) => key.chars().for_each(|c| match c {
                '~' => pointer.push_str("~0"),
                '/' => pointer.push_str("~1"),
                c => pointer.push(c),
            }),
            Step::Index(index) => pointer += &index.to_string(),
        }
    }
    pointer
}

fn object(key: &str, value: Value) -> Value {
    Value::Object(Map::from_iter([(key.to_owned(), value)]))
}

fn wrong(path: &[Step<'_>], expected: &'static str) -> WrongType {
    let path = pointer(path.iter().copied());
    WrongType {
        path: if path.is_empty() {
            "the document".to_owned()
        } else {
            path
        },
        expected,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Runs `edit`, checks that the recorded patch leads to the same document, and returns both.
    #[track_caller]
    fn check(
        before: Value,
        edit: impl FnOnce(&mut Editor) -> Result<(), WrongType>,
    ) -> (Value, Value) {
        let mut editor = Editor::new(before.clone());
        edit(&mut editor).unwrap();
        let (after, patch) = editor.finish();
        let patch = patch.to_json();
        let operations: json_patch::Patch = serde_json::from_slice(&patch).unwrap();
        let mut patched = before;
        json_patch::patch(&mut patched, &operations).unwrap();
        assert_eq!(patched, after);
        (after, serde_json::from_slice(&patch).unwrap())
    }

    #[test]
    fn parents_are_created_in_one_operation() {
        let (after, patch) = check(json!({"spec": {"affinity": null}}), |pod| {
            let at = ["spec", "affinity", "nodeAffinity", "terms"].map(Step::from);
            pod.append(&at, json!(1))?;
            pod.append(&at, json!(2))
        });
        assert_eq!(
            after,
            json!({"spec": {"affinity": {"nodeAffinity": {"terms": [1, 2]}}}})
        );
        assert_eq!(patch[0]["path"], "/spec/affinity");
        assert_eq!(patch[1]["path"], "/spec/affinity/nodeAffinity/terms/-");
    }

    #[test]
    fn keys_are_escaped_and_siblings_are_kept() {
        let (after, patch) = check(json!({"metadata": {"labels": {"x": "1"}}}), |pod| {
            pod.insert(&["metadata".into(), "labels".into()], "a/b~c", json!("2"))
        });
        assert_eq!(
            after,
            json!({"metadata": {"labels": {"x": "1", "a/b~c": "2"}}})
        );
        assert_eq!(patch[0]["path"], "/metadata/labels/a~1b~0c");
    }

    #[test]
    fn missing_keys_are_not_removed() {
        let (after, patch) = check(json!({"metadata": {"labels": {"a/b": "1"}}}), |pod| {
            pod.remove(&["metadata".into(), "labels".into()], "a/b");
            pod.remove(&["metadata".into(), "labels".into()], "a/b");
            pod.remove(&["spec".into()], "x");
            Ok(())
        });
        assert_eq!(after, json!({"metadata": {"labels": {}}}));
        assert_eq!(
            patch,
            json!([{"op": "remove", "path": "/metadata/labels/a~1b"}])
        );
    }

    #[test]
    fn a_wrong_type_is_named() {
        let mut editor = Editor::new(json!({"spec": {"tolerations": "all"}}));
        let error = editor
            .append(&["spec".into(), "tolerations".into()], json!(1))
            .unwrap_err();
        assert_eq!(error.to_string(), "/spec/tolerations is not an array");
        let error = editor.insert(
            &["spec".into(), "tolerations".into(), "x".into()],
            "y",
            json!(1),
        );
        assert_eq!(
            error.unwrap_err().to_string(),
            "/spec/tolerations is not an object"
        );
    }
}
