//! A strict reader of the HTML that the page uses: whatever names are in the data, the
//! elements must be the same and nest.

use std::collections::BTreeMap;

const EMPTY: [&str; 3] = ["meta", "link", "input"];

/// An element: its name, under the key `""`, and its attributes.
pub(crate) type Element = BTreeMap<String, String>;

/// Returns the elements of a text, in order.
pub(crate) fn elements(html: &str) -> Vec<Element> {
    let (elements, _) = read(html).unwrap();
    elements
}

/// Checks that elements nest, attributes are quoted, and text has no bare `<` or `&`.
pub(crate) fn check(html: &str) -> Result<(), String> {
    read(html).map(drop)
}

/// Returns the names of elements and attributes, without texts and values.
pub(crate) fn skeleton(html: &str) -> Result<Vec<String>, String> {
    read(html).map(|(_, skeleton)| skeleton)
}

fn read(html: &str) -> Result<(Vec<Element>, Vec<String>), String> {
    let mut rest = html.strip_prefix("<!DOCTYPE html>").unwrap_or(html);
    let (mut open, mut elements, mut skeleton) = (Vec::new(), Vec::new(), Vec::new());
    while let Some(start) = rest.find('<') {
        text(&rest[..start])?;
        rest = &rest[start + 1..];
        if let Some(after) = rest.strip_prefix('/') {
            let (name, after) = after.split_once('>').ok_or("an end tag without >")?;
            let opened = open.pop();
            if opened.as_deref() != Some(name) {
                return Err(format!("</{name}> closes {opened:?}"));
            }
            skeleton.push(format!("/{name}"));
            rest = after;
            continue;
        }
        let (element, after) = start_tag(rest)?;
        let name = element[""].clone();
        skeleton.push(element.keys().cloned().collect::<Vec<_>>().join(" ") + &name);
        if !EMPTY.contains(&name.as_str()) {
            open.push(name);
        }
        elements.push(element);
        rest = after;
    }
    text(rest)?;
    match open.is_empty() {
        true => Ok((elements, skeleton)),
        false => Err(format!("never closed: {open:?}")),
    }
}

fn start_tag(text: &str) -> Result<(Element, &str), String> {
    let end = text.find([' ', '>']).ok_or("a tag without >")?;
    let name = &text[..end];
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return Err(format!("a strange tag: {}", &text[..end]));
    }
    let mut element = Element::from([(String::new(), name.to_owned())]);
    let mut rest = &text[end..];
    loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix('>') {
            return Ok((element, after));
        }
        let end = rest.find(['=', ' ', '>']).ok_or("a tag without >")?;
        let key = rest[..end].to_owned();
        if !key.bytes().all(|b| b.is_ascii_lowercase() || b == b'-') || key.is_empty() {
            return Err(format!("a strange attribute: {key:?}"));
        }
        rest = &rest[end..];
        let value = match rest.strip_prefix("=\"") {
            Some(after) => {
                let (value, after) = after.split_once('"').ok_or("an open quote")?;
                self::text(value)?;
                rest = after;
                value
            }
            None => "",
        };
        if element.insert(key.clone(), value.to_owned()).is_some() {
            return Err(format!("two attributes {key}"));
        }
    }
}

/// Checks text, or the value of an attribute.
fn text(text: &str) -> Result<(), String> {
    const ENTITIES: [&str; 5] = ["lt;", "gt;", "amp;", "quot;", "#39;"];
    if let Some(c) = text
        .chars()
        .find(|c| matches!(c, '<' | '>') || c.is_control() && *c != '\n')
    {
        return Err(format!("{c:?} in {text:?}"));
    }
    for part in text.split('&').skip(1) {
        if !ENTITIES.iter().any(|entity| part.starts_with(entity)) {
            return Err(format!("a bare & in {text:?}"));
        }
    }
    Ok(())
}

#[test]
fn the_reader_sees_what_is_wrong() {
    for bad in [
        "<p>",
        "</p>",
        "<p><b></p></b>",
        "<p class=x></p>",
        "a < b",
        "<p a=\"<\"></p>",
        "&x;",
        "<>",
        "<p a a></p>",
    ] {
        assert!(check(bad).is_err(), "{bad}");
    }
    assert_eq!(check("<p id=\"x\" hidden>a &lt; b<input></p>"), Ok(()));
}
