//! Edits of a raw JSON document, recorded as a JSON Patch.
//!
//! Each edit changes the document in place and records an operation, so that later edits see
//! earlier ones. If a parent is absent or null, the same operation creates it. An existing parent
//! is never replaced, so unknown fields are kept. `json_patch::diff` does not know the edits: it
//! would compare the document with a copy, and write items of lists by number.

use json_patch::{
    AddOperation, Patch, PatchOperation, RemoveOperation, TestOperation,
    jsonptr::{Pointer, Token},
};
use serde_json::Value;

/// The error that a part of the document has the wrong type for an edit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path} is not {expected}")]
pub struct WrongType {
    path: String,
    expected: &'static str,
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

    /// Edits an object of a cluster. The patch fails on other objects and other versions of it.
    #[must_use]
    pub fn of_version(object: &Value) -> Self {
        let mut editor = Self::new(object.clone());
        editor.expect(Pointer::from_static("/metadata/uid"));
        editor.expect(Pointer::from_static("/metadata/resourceVersion"));
        editor
    }

    /// Returns the document as edited so far.
    #[must_use]
    pub fn document(&self) -> &Value {
        &self.document
    }

    /// Returns the value at `path`; `None` if it is absent or null.
    #[must_use]
    pub fn get(&self, path: &Pointer) -> Option<&Value> {
        let value = self.document.pointer(path.as_str());
        value.filter(|value| !value.is_null())
    }

    /// Sets `key` in the object at `object`, which is created if it is absent.
    ///
    /// # Errors
    /// When a value on the path is neither absent nor an object.
    pub fn insert(&mut self, object: &Pointer, key: &str, value: Value) -> Result<(), WrongType> {
        self.add(object, Token::new(key), value)
    }

    /// Appends to the array at `array`, which is created if it is absent.
    ///
    /// # Errors
    /// When a value on the path has the wrong type.
    pub fn append(&mut self, array: &Pointer, value: Value) -> Result<(), WrongType> {
        self.add(array, Token::new("-"), value)
    }

    /// Removes `key` from the object or array at `parent`, if it exists.
    pub fn remove(&mut self, parent: &Pointer, key: &str) {
        let path = parent.with_trailing_token(key);
        let remove = PatchOperation::Remove(RemoveOperation { path });
        if json_patch::patch(&mut self.document, std::slice::from_ref(&remove)).is_ok() {
            self.patch.0.push(remove);
        }
    }

    /// Lets the patch fail if the value at `path` is another one than here.
    pub fn expect(&mut self, path: &Pointer) {
        let value = self.document.pointer(path.as_str()).cloned();
        self.patch.0.push(PatchOperation::Test(TestOperation {
            path: path.to_buf(),
            value: value.unwrap_or_default(),
        }));
    }

    /// Returns the edited document, and the patch that leads to it.
    #[must_use]
    pub fn finish(self) -> (Value, Patch) {
        (self.document, self.patch)
    }

    /// Adds `value` at `last` of `parent`, or of the value above it that exists.
    fn add<'a>(
        &mut self,
        mut parent: &'a Pointer,
        mut last: Token<'a>,
        mut value: Value,
    ) -> Result<(), WrongType> {
        while self.get(parent).is_none()
            && let Some((above, token)) = parent.split_back()
        {
            value = match last.is_next() {
                true => Value::Array(vec![value]),
                false => Value::from_iter([(last.decoded(), value)]),
            };
            (parent, last) = (above, token);
        }
        match self.document.pointer_mut(parent.as_str()) {
            Some(Value::Object(map)) if !last.is_next() => {
                map.insert(last.decoded().into_owned(), value.clone());
            }
            Some(Value::Array(items)) if last.is_next() => items.push(value.clone()),
            _ => return Err(WrongType::of(parent, &last)),
        }
        let path = parent.with_trailing_token(last);
        let added = PatchOperation::Add(AddOperation { path, value });
        self.patch.0.push(added);
        Ok(())
    }
}

impl WrongType {
    /// Returns that the value at `path` has no place for `last`.
    fn of(path: &Pointer, last: &Token<'_>) -> Self {
        let expected = match last.is_next() {
            true => "an array",
            false => "an object",
        };
        let path = match path.is_root() {
            true => "the document".to_owned(),
            false => path.to_string(),
        };
        Self { path, expected }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LABELS: &Pointer = Pointer::from_static("/metadata/labels");

    /// Runs `edit`, checks that the recorded patch leads to the same document, and returns both.
    #[track_caller]
    fn check(
        before: Value,
        edit: impl FnOnce(&mut Editor) -> Result<(), WrongType>,
    ) -> (Value, Value) {
        let mut editor = Editor::new(before.clone());
        edit(&mut editor).unwrap();
        let (after, patch) = editor.finish();
        let mut patched = before;
        json_patch::patch(&mut patched, &patch).unwrap();
        assert_eq!(patched, after);
        (after, json!(patch))
    }

    #[test]
    fn parents_are_created_in_one_operation() {
        let (after, patch) = check(json!({"spec": {"affinity": null}}), |pod| {
            let at = Pointer::from_static("/spec/affinity/nodeAffinity/terms");
            pod.append(at, json!(1))?;
            pod.append(at, json!(2))
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
            pod.insert(LABELS, "a/b~c", json!("2"))
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
            pod.remove(LABELS, "a/b");
            pod.remove(LABELS, "a/b");
            pod.remove(Pointer::from_static("/spec"), "x");
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
        let tolerations = Pointer::from_static("/spec/tolerations");
        let error = editor.append(tolerations, json!(1)).unwrap_err();
        assert_eq!(error.to_string(), "/spec/tolerations is not an array");
        let below = Pointer::from_static("/spec/tolerations/x");
        let error = editor.insert(below, "y", json!(1)).unwrap_err();
        assert_eq!(error.to_string(), "/spec/tolerations is not an object");
    }
}
