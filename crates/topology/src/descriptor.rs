//! Writes and parses the two annotations of a Node, and shortens values that are too long
//! for a label.

use std::{fmt, str::FromStr};

use crate::{Link, NodeTopologySpec, Via, bandwidth, generation::Generation, network};

/// The annotation `nvlink-domains.io/topology`: which GPUs form a domain.
///
/// `nvlink-domain:0:gpus=0,1;nvlink-domain:1:gpus=2,3`; empty without NVLink.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// GPU indices of each domain, ascending.
    pub domains: Vec<Vec<u32>>,
}

/// The annotation `nvlink-domains.io/capacity`: the bandwidth of the domains and the network.
///
/// `domain0=450GBps;domain1=450GBps;inter-node=50GBps`. The rates are per GPU in one
/// direction, rounded down to whole GB/s. `inter-node` is a GPU's share of the node's
/// network; it is absent if unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Nominal NVLink bandwidth of each domain's slowest GPU, bytes per second.
    pub domains: Vec<u64>,
    /// The slowest GPU's share of the RDMA devices that are up, bytes per second: of those nearest to
    /// it, or of all if some GPU has no nearest device.
    pub inter_node: Option<u64>,
}

/// The error for an annotation that does not parse.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{part:?}: expected {expected}")]
pub struct Malformed {
    part: String,
    expected: &'static str,
}

impl Malformed {
    fn new(part: &str, expected: &'static str) -> Self {
        Self {
            part: part.chars().take(80).collect(),
            expected,
        }
    }
}

const GIGA: u64 = 1_000_000_000;
const DOMAIN_FORM: &str = "nvlink-domain:N:gpus=I,J,… with N counted from 0";
const CAPACITY_FORM: &str = "domainN=XGBps with N counted from 0, or inter-node=XGBps at the end";

impl Descriptor {
    /// Returns the domains of a node.
    #[must_use]
    pub fn of(spec: &NodeTopologySpec) -> Self {
        Self {
            domains: spec
                .domains
                .iter()
                .map(|domain| domain.gpus.clone())
                .collect(),
        }
    }
}

impl fmt::Display for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = |(n, gpus): (usize, &Vec<u32>)| {
            let gpus: Vec<_> = gpus.iter().map(u32::to_string).collect();
            format!("nvlink-domain:{n}:gpus={}", gpus.join(","))
        };
        let all: Vec<_> = self.domains.iter().enumerate().map(one).collect();
        f.write_str(&all.join(";"))
    }
}

impl FromStr for Descriptor {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let one = |(n, part): (usize, &str)| {
            let gpus = part
                .strip_prefix("nvlink-domain:")
                .and_then(|rest| rest.split_once(":gpus="))
                .filter(|(number, _)| number.parse() == Ok(n))
                .and_then(|(_, gpus)| gpus.split(',').map(|gpu| gpu.parse().ok()).collect())
                .filter(|gpus: &Vec<u32>| gpus.is_sorted_by(|a, b| a < b));
            gpus.ok_or_else(|| Malformed::new(part, DOMAIN_FORM))
        };
        let domains = parts(text).enumerate().map(one).collect::<Result<_, _>>()?;
        Ok(Self { domains })
    }
}

fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split(';').filter(move |_| !text.is_empty())
}

impl Capacity {
    /// Returns the nominal bandwidths of a node, as data sheets give them.
    #[must_use]
    pub fn of(spec: &NodeTopologySpec) -> Self {
        let slowest = |gpus: &[u32]| gpus.iter().map(|&gpu| gpu_rate(spec, gpu)).min();
        Self {
            domains: spec
                .domains
                .iter()
                .map(|one| slowest(&one.gpus).unwrap_or(0))
                .collect(),
            inter_node: network::rate(spec),
        }
    }

    /// Returns the NVLink bandwidth of the node's best-connected domain, bytes per second
    /// per GPU in one direction; 0 without NVLink.
    #[must_use]
    pub fn per_gpu(&self) -> u64 {
        self.domains.iter().copied().max().unwrap_or(0)
    }
}

/// Returns the NVLink bandwidth of one GPU: of its active links or, if there are none, of
/// as many links as its edges show.
fn gpu_rate(spec: &NodeTopologySpec, index: u32) -> u64 {
    let Some(gpu) = spec.gpus.iter().find(|gpu| gpu.index == index) else {
        return 0;
    };
    let active = gpu
        .links
        .as_ref()
        .map(|links| links.iter().filter(|link| link.up).collect());
    let active: Vec<&Link> = active.unwrap_or_default();
    let line_rate = active.iter().filter_map(|link| link.bytes_per_second).min();
    let line_rate = line_rate.or_else(|| rate_of_edges(spec, index));
    let links = match u32::try_from(active.len()) {
        Ok(0) | Err(_) => links_of_edges(spec, index),
        Ok(links) => links,
    };
    bandwidth::nominal_nvlink(gpu.model.as_deref(), links, line_rate)
}

/// Returns the nominal rate of a link whose generation only the usable bandwidth of its edges tells, as
/// in a topology of NCCL.
fn rate_of_edges(spec: &NodeTopologySpec, gpu: u32) -> Option<u64> {
    let mut edges = spec.edges.iter();
    let edge = edges.find(|edge| (edge.a == gpu || edge.b == gpu) && edge.links > 0)?;
    let usable = edge.bytes_per_second / u64::from(edge.links);
    Some(Generation::of_usable(usable)?.nominal_bytes_per_second_per_link)
}

fn links_of_edges(spec: &NodeTopologySpec, gpu: u32) -> u32 {
    let edges = spec
        .edges
        .iter()
        .filter(|edge| edge.a == gpu || edge.b == gpu);
    let (mut direct, mut switched) = (0u32, 0);
    for edge in edges {
        match edge.via {
            Via::Direct => direct = direct.saturating_add(edge.links),
            // The same links reach every peer, so they count once.
            Via::Switch | Via::Fabric => switched = edge.links.max(switched),
        }
    }
    direct.max(switched)
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let domains = self.domains.iter().enumerate();
        let mut parts: Vec<_> = domains
            .map(|(n, rate)| format!("domain{n}={}GBps", rate / GIGA))
            .collect();
        parts.extend(
            self.inter_node
                .map(|rate| format!("inter-node={}GBps", rate / GIGA)),
        );
        f.write_str(&parts.join(";"))
    }
}

impl FromStr for Capacity {
    type Err = Malformed;

    fn from_str(text: &str) -> Result<Self, Malformed> {
        let mut capacity = Self::default();
        for part in parts(text) {
            let malformed = || Malformed::new(part, CAPACITY_FORM);
            let (name, rate) = part.split_once('=').ok_or_else(malformed)?;
            let rate = parse_rate(rate).ok_or_else(malformed)?;
            let expected = format!("domain{}", capacity.domains.len());
            match name {
                _ if capacity.inter_node.is_some() => return Err(malformed()),
                "inter-node" => capacity.inter_node = Some(rate),
                name if name == expected => capacity.domains.push(rate),
                _ => return Err(malformed()),
            }
        }
        Ok(capacity)
    }
}

/// Parses a rate such as `400GBps` into bytes per second.
#[must_use]
pub fn parse_rate(text: &str) -> Option<u64> {
    let number = text.strip_suffix("GBps")?;
    // `parse` alone would accept a sign.
    let digits = number.bytes().all(|byte| byte.is_ascii_digit());
    number
        .parse::<u64>()
        .ok()
        .filter(|_| digits)?
        .checked_mul(GIGA)
}

/// The maximum length of a label value in Kubernetes, in characters.
pub const MAX_LABEL_VALUE: usize = 63;

/// Returns `value` if it is a valid label value, else a stable short name for it: `x` and
/// the 16 hexadecimal digits of its FNV-1a hash (the form that topograph uses). The name
/// never changes and is the same on every node.
///
/// A valid label value has at most [`MAX_LABEL_VALUE`] characters, all of them letters,
/// digits, `-`, `_` or `.`, with a letter or digit at each end.
#[must_use]
pub fn short_value(value: &str) -> String {
    if is_label_value(value) {
        value.to_owned()
    } else {
        format!("x{:016x}", hash(value))
    }
}

/// Reports whether Kubernetes accepts `value` as a label value.
#[must_use]
pub fn is_label_value(value: &str) -> bool {
    let ends = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii_alphanumeric);
    let bytes = value.as_bytes();
    bytes.len() <= MAX_LABEL_VALUE
        && ends(bytes.first())
        && ends(bytes.last())
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

/// Returns the 64-bit FNV-1a hash, which is the same in every build:
/// <https://datatracker.ietf.org/doc/draft-eastlake-fnv/>. The standard library's hashers
/// do not guarantee stable values; this name needs them.
#[must_use]
pub fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_published_forms_parse() {
        let text = "nvlink-domain:0:gpus=0,1;nvlink-domain:1:gpus=2,3";
        let descriptor: Descriptor = text.parse().unwrap();
        assert_eq!(descriptor.domains, [[0, 1], [2, 3]]);
        let text = "domain0=450GBps;domain1=450GBps;inter-node=50GBps";
        let capacity: Capacity = text.parse().unwrap();
        assert_eq!(capacity.per_gpu(), 450 * GIGA);
        assert_eq!(capacity.inter_node, Some(50 * GIGA));
        assert_eq!("".parse(), Ok(Descriptor::default()));
        assert_eq!("".parse(), Ok(Capacity::default()));
    }

    #[test]
    fn other_forms_are_errors_that_name_the_part() {
        for text in [
            "nvlink-domain:1:gpus=0,1",
            "nvlink-domain:0:gpus=1,0",
            ";",
            "gpus=0",
            "a;b",
        ] {
            let error = text.parse::<Descriptor>().unwrap_err();
            assert!(
                error.to_string().contains("expected nvlink-domain:N"),
                "{text}: {error}"
            );
        }
        for text in [
            "domain1=1GBps",
            "domain0=-1GBps",
            "inter-node=1GBps;domain0=1GBps",
            "x=1",
        ] {
            assert!(text.parse::<Capacity>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_long_value_becomes_a_stable_short_one() {
        assert_eq!(short_value("node-1.0"), "node-1.0");
        // Published reference values of FNV-1a 64: "" and "a".
        assert_eq!(hash(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash("a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(short_value(&"n".repeat(64)).len(), 17);
        assert!(short_value("ends.").starts_with('x'));
    }

    proptest! {
        #[test]
        fn descriptors_survive_writing_and_reading(
            sets in prop::collection::vec(prop::collection::btree_set(0u32..128, 1..9), 0..9)
        ) {
            let domains = sets.into_iter().map(|set| set.into_iter().collect()).collect();
            let descriptor = Descriptor { domains };
            prop_assert_eq!(descriptor.to_string().parse(), Ok(descriptor));
        }

        #[test]
        fn capacities_survive_writing_and_reading(
            domains in prop::collection::vec(0u64..10_000, 0..9),
            inter_node in prop::option::of(0u64..10_000),
        ) {
            let domains = domains.into_iter().map(|rate| rate * GIGA).collect();
            let capacity = Capacity { domains, inter_node: inter_node.map(|rate| rate * GIGA) };
            prop_assert_eq!(capacity.to_string().parse(), Ok(capacity));
        }

        #[test]
        fn short_values_always_fit(value in ".{0,200}") {
            prop_assert!(is_label_value(&short_value(&value)));
        }

        #[test]
        fn reading_never_panics(text in ".{0,200}") {
            let _ = text.parse::<Descriptor>();
            let _ = text.parse::<Capacity>();
        }
    }
}
