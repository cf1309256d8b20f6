//! Parses values with a unit, such as `400GBps`. Where YAML has a number alone, the error names the
//! format: "expected a string" would not say which unit belongs to it.

use std::fmt;

use serde::{Deserializer, de};

/// Parses a bandwidth as text; [`crate::class::Class`] checks it.
pub(super) fn bandwidth<'de, D: Deserializer<'de>>(value: D) -> Result<Option<String>, D::Error> {
    value.deserialize_any(Text("whole GB/s with the unit, such as 400GBps"))
}

/// Parses a duration as text.
pub(super) fn duration<'de, D: Deserializer<'de>>(value: D) -> Result<Option<String>, D::Error> {
    value.deserialize_any(Text("a time with the unit s, m or h, such as 150s"))
}

/// An optional text; its field is what an error says is expected.
struct Text(&'static str);

impl de::Visitor<'_> for Text {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Some(text.to_owned()))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}
