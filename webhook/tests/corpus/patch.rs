//! JSON Patch (RFC 6902), apart from the crate that the webhook writes patches with.

use serde_json::Value;

/// Applies `operations` to `document`, all that the RFC has but `move` and `copy`.
pub(crate) fn apply(document: &mut Value, operations: &Value) -> Result<(), String> {
    let operations = operations.as_array().ok_or("the patch is no list")?;
    for operation in operations {
        one(document, operation).map_err(|why| format!("{why}: {operation}"))?;
    }
    Ok(())
}

fn one(document: &mut Value, operation: &Value) -> Result<(), &'static str> {
    let path = operation["path"].as_str().ok_or("no path")?;
    let value = || operation.get("value").cloned().ok_or("no value");
    let Some((parent, key)) = path.rsplit_once('/') else {
        return Err("the path is not below the document");
    };
    let parent = parent.split('/').skip(1).try_fold(document, child)?;
    let key = unescaped(key)?;
    match (operation["op"].as_str(), parent) {
        (Some("add"), Value::Object(map)) => drop(map.insert(key, value()?)),
        (Some("add"), Value::Array(items)) => {
            let at = if key == "-" {
                items.len()
            } else {
                index(&key)?
            };
            if at > items.len() {
                return Err("the index is beyond the end");
            }
            items.insert(at, value()?);
        }
        (Some("replace"), Value::Object(map)) => {
            *map.get_mut(&key).ok_or("nothing to replace")? = value()?;
        }
        (Some("replace"), Value::Array(items)) => {
            *items.get_mut(index(&key)?).ok_or("nothing to replace")? = value()?;
        }
        (Some("remove"), Value::Object(map)) => {
            map.remove(&key).ok_or("nothing to remove")?;
        }
        (Some("test"), Value::Object(map)) if map.get(&key) == Some(&value()?) => {}
        _ => return Err("no such operation here"),
    }
    Ok(())
}

fn child<'v>(value: &'v mut Value, token: &str) -> Result<&'v mut Value, &'static str> {
    let key = unescaped(token)?;
    let child = match value {
        Value::Object(map) => map.get_mut(&key),
        Value::Array(items) => items.get_mut(index(&key)?),
        _ => None,
    };
    child.ok_or("the parent is not there")
}

fn unescaped(token: &str) -> Result<String, &'static str> {
    let rest = token.replace("~0", "").replace("~1", "");
    if rest.contains('~') {
        return Err("a ~ that escapes nothing");
    }
    Ok(token.replace("~1", "/").replace("~0", "~"))
}

fn index(key: &str) -> Result<usize, &'static str> {
    let plain =
        key.bytes().all(|byte| byte.is_ascii_digit()) && (key == "0" || !key.starts_with('0'));
    let index = key.parse().ok().filter(|_| plain);
    index.ok_or("no index")
}

/// A document, an operation, and the document after it; none where it must fail.
#[cfg(test)]
const EXAMPLES: &[(&str, &str, Option<&str>)] = &[
    (
        r#"{"foo": "bar"}"#,
        r#"{"op": "add", "path": "/baz", "value": 1}"#,
        Some(r#"{"baz": 1, "foo": "bar"}"#),
    ),
    (
        r#"{"foo": ["a", "c"]}"#,
        r#"{"op": "add", "path": "/foo/1", "value": "b"}"#,
        Some(r#"{"foo": ["a", "b", "c"]}"#),
    ),
    (
        r#"{"foo": ["a"]}"#,
        r#"{"op": "add", "path": "/foo/-", "value": ["b"]}"#,
        Some(r#"{"foo": ["a", ["b"]]}"#),
    ),
    (
        r#"{"foo": "bar"}"#,
        r#"{"op": "add", "path": "/baz/bat", "value": 1}"#,
        None,
    ),
    (
        r#"{"foo": []}"#,
        r#"{"op": "add", "path": "/foo/1", "value": 1}"#,
        None,
    ),
    (
        r#"{"a/b": {"m~n": 1}}"#,
        r#"{"op": "replace", "path": "/a~1b/m~0n", "value": 2}"#,
        Some(r#"{"a/b": {"m~n": 2}}"#),
    ),
    (
        r#"{"baz": 1}"#,
        r#"{"op": "replace", "path": "/foo", "value": 2}"#,
        None,
    ),
    (
        r#"{"baz": 1, "foo": 2}"#,
        r#"{"op": "remove", "path": "/baz"}"#,
        Some(r#"{"foo": 2}"#),
    ),
    (
        r#"{"baz": 1}"#,
        r#"{"op": "test", "path": "/baz", "value": 1}"#,
        Some(r#"{"baz": 1}"#),
    ),
    (
        r#"{"baz": 1}"#,
        r#"{"op": "test", "path": "/baz", "value": 2}"#,
        None,
    ),
];

#[test]
fn the_examples_of_the_rfc() {
    let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    for (before, operation, after) in EXAMPLES {
        let mut document = parse(before);
        let applied = apply(&mut document, &Value::from(vec![parse(operation)])).is_ok();
        let document = applied.then_some(document);
        assert_eq!(document, after.map(parse), "{before} {operation}");
    }
}
