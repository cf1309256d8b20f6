//! Which GPUs the device plugin prefers for a container.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::messages::Wish;

/// How the device plugin chooses among the free GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The GPUs with the most NVLinks between them, then on the fewest NUMA nodes, as NVIDIA's
    /// plugin does.
    #[default]
    Aligned,
    /// The first by UUID: any GPUs, but the same in each run.
    Scattered,
}

/// The GPUs of a node, by UUID, and what connects them.
#[derive(Clone, Debug)]
pub(super) struct Board {
    gpus: BTreeMap<String, Gpu>,
    links: BTreeMap<(u64, u64), u64>,
}

#[derive(Clone, Copy, Debug)]
struct Gpu {
    index: u64,
    numa: Option<i64>,
}

impl Board {
    /// Reads the board from a recording (a NodeTopology). GPUs without UUID are left out.
    pub(super) fn new(recording: &Value) -> Self {
        let list = |key: &str| recording["spec"][key].as_array().into_iter().flatten();
        let gpu = |gpu: &Value| {
            let index = gpu["index"].as_u64()?;
            let numa = gpu["numaNode"].as_i64();
            Some((gpu["uuid"].as_str()?.to_owned(), Gpu { index, numa }))
        };
        let edge = |edge: &Value| {
            let ends = (edge["a"].as_u64()?, edge["b"].as_u64()?);
            Some((ends, edge["links"].as_u64()?))
        };
        Self {
            gpus: list("gpus").filter_map(gpu).collect(),
            links: list("edges").filter_map(edge).collect(),
        }
    }

    /// Returns each GPU's UUID and NUMA node, sorted by UUID.
    pub(super) fn devices(&self) -> impl Iterator<Item = (&String, Option<i64>)> {
        self.gpus.iter().map(|(uuid, gpu)| (uuid, gpu.numa))
    }

    /// Returns the preferred GPUs, none if the wish cannot be met.
    pub(super) fn prefer(&self, wish: &Wish, choice: Choice) -> Vec<String> {
        let required: BTreeSet<&str> = wish.required.iter().map(String::as_str).collect();
        let free = wish.available.iter().map(String::as_str);
        let free: BTreeSet<&str> = free.filter(|id| !required.contains(id)).collect();
        let free: Vec<&str> = free.into_iter().collect();
        let required: Vec<&str> = required.into_iter().collect();
        let size = usize::try_from(wish.size).unwrap_or_default();
        let Some(more) = size.checked_sub(required.len()) else {
            return Vec::new();
        };
        let best = match choice {
            Choice::Scattered => free.get(..more).map(|set| [&required[..], set].concat()),
            // The first among equals, as the last of the reversed order.
            Choice::Aligned => {
                let sets = subsets(&free, more).into_iter().rev();
                sets.map(|set| [&required[..], &set[..]].concat())
                    .max_by_key(|set| self.score(set))
            }
        };
        best.into_iter().flatten().map(str::to_owned).collect()
    }

    /// Links count more than NUMA nodes.
    fn score(&self, set: &[&str]) -> (u64, usize) {
        let gpus: Vec<&Gpu> = set.iter().filter_map(|&id| self.gpus.get(id)).collect();
        let mut links = 0;
        let mut near = 0;
        for (n, one) in gpus.iter().enumerate() {
            for other in &gpus[n + 1..] {
                let ends = (one.index.min(other.index), one.index.max(other.index));
                links += self.links.get(&ends).copied().unwrap_or_default();
                near += usize::from(one.numa.is_some() && one.numa == other.numa);
            }
        }
        (links, near)
    }
}

/// Returns all subsets of `size` elements, in the order of the elements.
fn subsets<'a>(elements: &[&'a str], size: usize) -> Vec<Vec<&'a str>> {
    if size == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (n, &first) in elements.iter().enumerate() {
        for mut rest in subsets(&elements[n + 1..], size - 1) {
            rest.insert(0, first);
            all.push(rest);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Four GPUs in two pairs: `a` and `d`, `b` and `c`. The second has more links.
    fn board() -> Board {
        let gpu = |index: u32, uuid: &str| json!({"index": index, "uuid": uuid, "numaNode": 0});
        Board::new(&json!({"spec": {
            "gpus": [gpu(0, "a"), gpu(1, "d"), gpu(2, "b"), gpu(3, "c")],
            "edges": [{"a": 0, "b": 1, "links": 1}, {"a": 2, "b": 3, "links": 2}],
        }}))
    }

    fn preferred(available: &[&str], required: &[&str], size: i32, choice: Choice) -> Vec<String> {
        let owned = |ids: &[&str]| ids.iter().map(|&id| id.to_owned()).collect();
        let wish = Wish {
            available: owned(available),
            required: owned(required),
            size,
        };
        board().prefer(&wish, choice)
    }

    #[test]
    fn aligned_gpus_have_the_most_links() {
        let all = ["d", "c", "b", "a"];
        assert_eq!(preferred(&all, &[], 2, Choice::Aligned), ["b", "c"]);
        assert_eq!(preferred(&all, &["a"], 2, Choice::Aligned), ["a", "d"]);
        assert_eq!(preferred(&["a", "b"], &[], 1, Choice::Aligned), ["a"]);
    }

    #[test]
    fn scattered_gpus_are_the_first_by_uuid() {
        let all = ["d", "c", "b", "a"];
        assert_eq!(preferred(&all, &[], 2, Choice::Scattered), ["a", "b"]);
    }

    #[test]
    fn a_wish_that_cannot_be_met_has_no_answer() {
        assert!(preferred(&["a"], &[], 2, Choice::Aligned).is_empty());
        assert!(preferred(&["a", "b"], &["a", "b"], 1, Choice::Aligned).is_empty());
    }
}
