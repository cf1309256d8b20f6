//! The `NodeTopology` CRD: the document of the topology library as an API object.

use std::borrow::Cow;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::core::schema;
use nvlink_topology::{GROUP, KIND, NodeTopologySpec, NodeTopologyStatus, PLURAL, VERSION};
use schemars::{JsonSchema, generate::SchemaSettings, json_schema, transform};
use serde_json::json;

/// The object without its metadata, whose schema the API server adds.
struct Root;

impl JsonSchema for Root {
    fn schema_name() -> Cow<'static, str> {
        KIND.into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let spec = generator.subschema_for::<NodeTopologySpec>();
        let status = generator.subschema_for::<NodeTopologyStatus>();
        json_schema!({
            "type": "object",
            "description": "The NVLink graph of a node, and the pods that use its GPUs.",
            "required": ["spec"],
            "properties": {"spec": spec, "status": status}
        })
    }
}

/// CEL rules: the path that each applies to, the rule and its message.
const RULES: &[(&[&str], &str, &str)] = &[
    (
        &["spec", "edges"],
        "self.all(edge, edge.a < edge.b)",
        "in an edge, a must be the lower GPU index and b the higher one",
    ),
    (
        &["spec", "domains"],
        "self.all(domain, domain.gpus.size() >= 2 || has(domain.fabric))",
        "a domain has two or more GPUs, unless it spans nodes",
    ),
];

/// Returns the CRD.
///
/// # Errors
/// When the derived schema does not fit the API's type, which a test rules out.
pub fn crd() -> Result<CustomResourceDefinition, serde_json::Error> {
    let generator = SchemaSettings::openapi3()
        .with(|settings| {
            settings.inline_subschemas = true;
            settings.meta_schema = None;
        })
        .with_transform(transform::AddNullable::default())
        .with_transform(schema::StructuralSchemaRewriter)
        .with_transform(schema::OptionalEnum)
        .into_generator();
    let mut root = serde_json::to_value(generator.into_root_schema_for::<Root>())?;
    for (path, rule, message) in RULES {
        let place = path
            .iter()
            .fold(&mut root, |schema, name| &mut schema["properties"][name]);
        place["x-kubernetes-validations"] = json!([{"rule": rule, "message": message}]);
    }
    if let Some(root) = root.as_object_mut() {
        root.remove("title");
    }
    let column =
        |name: &str, kind: &str, path: &str| json!({"name": name, "type": kind, "jsonPath": path});
    serde_json::from_value(json!({
        "metadata": {"name": format!("{PLURAL}.{GROUP}")},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": KIND, "plural": PLURAL, "singular": "nodetopology",
                "shortNames": ["nvtopo"], "categories": ["nvlink"],
            },
            "scope": "Cluster",
            "versions": [{
                "name": VERSION, "served": true, "storage": true,
                "schema": {"openAPIV3Schema": root},
                "subresources": {"status": {}},
                "additionalPrinterColumns": [
                    column("Source", "string", ".spec.source.kind"),
                    column("Model", "string", ".spec.gpus[0].model"),
                    // A column shows one value: of a list of domains it would show only the first.
                    column("From", "string", ".spec.source.from"),
                    column("Tray", "integer", ".spec.tray.index"),
                    column("Age", "date", ".metadata.creationTimestamp"),
                ],
            }],
        },
    }))
}
