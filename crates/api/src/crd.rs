//! The custom resources: their Rust types, and the CRDs generated from them.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::Value;

pub mod access;
pub mod class_index;
pub mod condition;
pub mod devices;
pub mod domain_class;
pub mod environment;
pub mod node_topology;
pub mod scope_labels;
mod unknown;
mod with_unit;

pub use class_index::ClassIndex;
pub use devices::{GPU, GPU_DRIVER};
pub use domain_class::{DomainClass, DomainClassSpec};
pub use unknown::unknown_fields;

/// Returns all CRDs of this project.
///
/// # Errors
/// When a derived schema does not fit the API's type, which a test rules out.
pub fn crds() -> Result<Vec<CustomResourceDefinition>, serde_json::Error> {
    Ok(vec![
        ClassIndex::crd(),
        DomainClass::crd(),
        node_topology::crd()?,
    ])
}

/// Returns all CRDs as JSON documents, ready to print or apply.
///
/// # Errors
/// When a derived schema does not fit the API's type, which a test rules out.
pub fn documents() -> Result<Vec<Value>, serde_json::Error> {
    let mut documents = crds()?
        .iter()
        .map(serde_json::to_value)
        .collect::<Result<Vec<_>, _>>()?;
    for document in &mut documents {
        tidy(document);
        if let Some(document) = document.as_object_mut() {
            document.remove("status");
        }
    }
    Ok(documents)
}

/// Cleans up a schema. The API's types have floating-point bounds, so `1.0`
/// becomes `1`. API servers warn about unknown formats such as `uint32`, so these
/// become `int64`.
fn tidy(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(tidy),
        Value::Object(map) => {
            if let Some(Value::String(format)) = map.get_mut("format")
                && format.starts_with("uint")
            {
                *format = "int64".to_owned();
            }
            map.values_mut().for_each(tidy);
        }
        Value::Number(number) => {
            if let Some(float) = number.as_f64().filter(|_| number.is_f64())
                && float.fract() == 0.0
                && float.abs() < 1e15
            {
                #[allow(clippy::cast_possible_truncation)]
                let whole = float as i64;
                *value = whole.into();
            }
        }
        _ => {}
    }
}
