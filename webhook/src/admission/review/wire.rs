//! Parses an AdmissionReview's JSON in one pass.
//!
//! The values keep their types: what should be a string and is not counts as missing to the code
//! that uses it, so that every review gets an answer which says what is wrong. The types of
//! `kube::core::admission` cannot do that. They fail at the first odd value, without the uid that
//! an answer needs, and their answers have a status also if the pod is admitted, and the patch as
//! a list of numbers.
//!
//! Unused values are not kept, above all the `managedFields` of pods, which take more memory than
//! the pods.

use std::fmt;

use serde::{
    Deserializer,
    de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};

/// What is kept of a value.
#[derive(Clone, Copy)]
enum Keep {
    All,
    /// Of an object, these keys. Each occurs at most once.
    Only(&'static [(&'static str, Keep)]),
    /// Of an object, all keys, and of one only this.
    But(&'static str, &'static Keep),
    Nothing,
}

const REVIEW: Keep = Keep::Only(&[
    ("apiVersion", Keep::All),
    ("kind", Keep::All),
    ("request", REQUEST),
]);
const REQUEST: Keep = Keep::Only(&[
    ("uid", Keep::All),
    ("kind", Keep::All),
    ("operation", Keep::All),
    ("subResource", Keep::All),
    ("namespace", Keep::All),
    ("userInfo", Keep::All),
    ("object", POD),
    ("oldObject", POD),
]);
const POD: Keep = Keep::But("metadata", &Keep::But("managedFields", &Keep::Nothing));

/// Parses the review in `body`. Checks first that all of it is UTF-8: the parser
/// skips unused values without checking their strings.
pub(super) fn read(body: &[u8]) -> Result<Value, String> {
    let text = std::str::from_utf8(body).map_err(|error| error.to_string())?;
    let mut json = serde_json::Deserializer::from_str(text);
    let review = REVIEW.deserialize(&mut json);
    let review = review.and_then(|review| json.end().map(|()| review));
    review.map_err(|error| error.to_string())
}

impl Keep {
    /// Returns what is kept of the value at `key`.
    fn of(self, key: &str) -> Self {
        match self {
            Self::Only(keys) => keys
                .iter()
                .find(|(known, _)| *known == key)
                .map_or(Self::Nothing, |(_, keep)| *keep),
            Self::But(but, keep) if but == key => *keep,
            keep => match keep {
                Self::Nothing => Self::Nothing,
                _ => Self::All,
            },
        }
    }
}

impl<'de> DeserializeSeed<'de> for Keep {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Keep {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut kept = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let value = match self.of(&key) {
                Self::Nothing => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
                Self::All => map.next_value()?,
                keep => map.next_value_seed(keep)?,
            };
            if matches!(self, Self::Only(_)) && kept.contains_key(&key) {
                return Err(A::Error::custom(format_args!("duplicate field `{key}`")));
            }
            kept.insert(key, value);
        }
        Ok(Value::Object(kept))
    }
}
