//! Parses an AdmissionReview's JSON in one pass.
//!
//! Parsing does not fail because a value has the wrong type: a value that should
//! be a string but is not becomes an empty string, and the code that uses it
//! reports it as missing. Unused values are not kept, above all the
//! `managedFields` of pods, which take more memory than the pods.

use std::{collections::BTreeMap, fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::{Map, Value};

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Review {
    #[serde(deserialize_with = "lenient")]
    pub(super) api_version: String,
    #[serde(deserialize_with = "lenient")]
    pub(super) kind: String,
    #[serde(deserialize_with = "lenient")]
    pub(super) request: Option<Request>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Request {
    #[serde(deserialize_with = "lenient")]
    pub(super) uid: String,
    #[serde(deserialize_with = "lenient")]
    pub(super) kind: Kind,
    #[serde(deserialize_with = "lenient")]
    pub(super) operation: String,
    #[serde(deserialize_with = "lenient")]
    pub(super) sub_resource: String,
    #[serde(deserialize_with = "lenient")]
    pub(super) namespace: String,
    #[serde(deserialize_with = "lenient")]
    pub(super) user_info: UserInfo,
    #[serde(deserialize_with = "lenient")]
    pub(super) object: Object,
    #[serde(deserialize_with = "lenient")]
    pub(super) old_object: Object,
}

/// The kind of the object.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Kind {
    #[serde(deserialize_with = "lenient")]
    pub(super) group: String,
    #[serde(deserialize_with = "lenient")]
    pub(super) version: String,
    #[serde(deserialize_with = "lenient")]
    pub(super) kind: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct UserInfo {
    #[serde(deserialize_with = "lenient")]
    pub(super) username: String,
    #[serde(deserialize_with = "lenient")]
    pub(super) uid: String,
    #[serde(deserialize_with = "lenient")]
    pub(super) groups: Vec<String>,
    #[serde(deserialize_with = "lenient")]
    pub(super) extra: BTreeMap<String, Vec<String>>,
}

/// A pod, or null if there is none.
#[derive(Default)]
pub(super) struct Object(pub(super) Value);

/// Parses the review in `body`. Checks first that all of it is UTF-8: the parser
/// skips unused values without checking their strings.
pub(super) fn read(body: &[u8]) -> Result<Review, String> {
    let text = std::str::from_utf8(body).map_err(|error| error.to_string())?;
    let read = serde_json::from_str::<Read<Review>>(text);
    read.map_or_else(|error| Err(error.to_string()), |read| Ok(read.0))
}

/// A type that parses as its default if the JSON has another type.
trait Lenient: Default {
    /// Returns the value for null, a boolean or a number.
    fn scalar(_: Value) -> Self {
        Self::default()
    }

    fn text(_: &str) -> Self {
        Self::default()
    }

    fn list<'de, A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Self::default())
    }

    fn map<'de, A: MapAccess<'de>>(mut map: A) -> Result<Self, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Self::default())
    }
}

impl Lenient for String {
    fn text(text: &str) -> Self {
        text.to_owned()
    }
}

impl Lenient for Vec<String> {
    fn list<'de, A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        let mut texts = Self::new();
        while let Some(text) = list.next_element::<Read<Option<String>>>()? {
            texts.extend(text.0);
        }
        Ok(texts)
    }
}

/// An item of a list of strings: none if the item is not a string.
impl Lenient for Option<String> {
    fn text(text: &str) -> Self {
        Some(text.to_owned())
    }
}

impl Lenient for BTreeMap<String, Vec<String>> {
    fn map<'de, A: MapAccess<'de>>(mut map: A) -> Result<Self, A::Error> {
        let mut lists = Self::new();
        while let Some((key, list)) = map.next_entry::<String, Read<Vec<String>>>()? {
            lists.insert(key, list.0);
        }
        Ok(lists)
    }
}

/// A pod's metadata. If it is not an object, it is kept as it is, and the rules refuse the pod.
#[derive(Default)]
struct Metadata(Value);

impl Lenient for Metadata {
    fn scalar(value: Value) -> Self {
        Self(value)
    }

    fn text(text: &str) -> Self {
        Self(text.into())
    }

    fn list<'de, A: SeqAccess<'de>>(mut list: A) -> Result<Self, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Self(Value::Array(items)))
    }

    fn map<'de, A: MapAccess<'de>>(mut map: A) -> Result<Self, A::Error> {
        let mut metadata = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            if key == "managedFields" {
                map.next_value::<IgnoredAny>()?;
            } else {
                metadata.insert(key, map.next_value()?);
            }
        }
        Ok(Self(Value::Object(metadata)))
    }
}

impl Lenient for Object {
    fn map<'de, A: MapAccess<'de>>(mut map: A) -> Result<Self, A::Error> {
        let mut pod = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let value = match key.as_str() {
                "metadata" => map.next_value::<Read<Metadata>>()?.0.0,
                _ => map.next_value()?,
            };
            pod.insert(key, value);
        }
        Ok(Self(Value::Object(pod)))
    }
}

macro_rules! structs {
    ($($name:ty),*) => {$(
        impl Lenient for $name {
            fn map<'de, A: MapAccess<'de>>(map: A) -> Result<Self, A::Error> {
                Deserialize::deserialize(MapAccessDeserializer::new(map))
            }
        }
    )*};
}

structs!(Review, Kind, UserInfo);

impl Lenient for Option<Request> {
    fn map<'de, A: MapAccess<'de>>(map: A) -> Result<Self, A::Error> {
        Request::deserialize(MapAccessDeserializer::new(map)).map(Some)
    }
}

fn lenient<'de, T: Lenient, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    deserializer.deserialize_any(Any(PhantomData))
}

/// A value that is parsed leniently.
struct Read<T>(T);

impl<'de, T: Lenient> Deserialize<'de> for Read<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        lenient(deserializer).map(Self)
    }
}

struct Any<T>(PhantomData<T>);

impl<'de, T: Lenient> Visitor<'de> for Any<T> {
    type Value = T;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<T, E> {
        Ok(T::scalar(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<T, E> {
        Ok(T::scalar(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<T, E> {
        Ok(T::scalar(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<T, E> {
        Ok(T::scalar(value.into()))
    }

    fn visit_unit<E>(self) -> Result<T, E> {
        Ok(T::scalar(Value::Null))
    }

    fn visit_str<E>(self, text: &str) -> Result<T, E> {
        Ok(T::text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<T, A::Error> {
        T::list(list)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::map(map)
    }
}
