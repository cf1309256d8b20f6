//! The sizes of a job's parallel dimensions, from flags and names, and the pattern of a pod's GPUs
//! that follows from them.

use nvlink_topology::Pattern;

use super::launch::Launch;

/// The most ranks in one dimension; larger numbers are treated as mistakes.
const MOST: u32 = 4096;

/// A dimension in which a job is parallel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dimension {
    Tensor,
    /// Parts of a sequence.
    Context,
    Pipeline,
    Data,
    /// Data parallel ranks on a node.
    Local,
    Expert,
    /// Experts are spread over all GPUs.
    Experts,
    /// Processes on a node.
    Processes,
    /// Nodes, that is pods.
    Nodes,
    /// Not a dimension: a file, which may set any size.
    File,
}

/// Flags without leading dashes, in lower case, and with `-` instead of `_`.
const FLAGS: &[(&str, Dimension)] = &[
    ("tensor-parallel-size", Dimension::Tensor),
    ("tensor-model-parallel-size", Dimension::Tensor),
    ("tensor-parallel-degree", Dimension::Tensor),
    ("model-parallel-size", Dimension::Tensor),
    ("tp-size", Dimension::Tensor),
    ("num-shard", Dimension::Tensor),
    ("tp", Dimension::Tensor),
    // vLLM's `--decode-context-parallel-size` needs no flag here: it splits tensor parallel ranks.
    ("context-parallel-size", Dimension::Context),
    ("prefill-context-parallel-size", Dimension::Context),
    ("context-parallel-degree", Dimension::Context),
    ("cp-size", Dimension::Context),
    ("pcp", Dimension::Context),
    ("pipeline-parallel-size", Dimension::Pipeline),
    ("pipeline-model-parallel-size", Dimension::Pipeline),
    ("pipeline-parallel-degree", Dimension::Pipeline),
    ("pipe-parallel-size", Dimension::Pipeline),
    ("pp-size", Dimension::Pipeline),
    ("pp", Dimension::Pipeline),
    ("data-parallel-size", Dimension::Data),
    ("dp-size", Dimension::Data),
    ("dp", Dimension::Data),
    ("data-parallel-size-local", Dimension::Local),
    ("dpl", Dimension::Local),
    ("expert-parallel-size", Dimension::Expert),
    ("expert-model-parallel-size", Dimension::Expert),
    ("expert-parallel-degree", Dimension::Expert),
    ("moe-expert-parallel-size", Dimension::Expert),
    ("ep-size", Dimension::Expert),
    ("ep", Dimension::Expert),
    ("enable-expert-parallel", Dimension::Experts),
    ("enable-ep-moe", Dimension::Experts),
    ("enable-deepep-moe", Dimension::Experts),
    ("moe-a2a-backend", Dimension::Experts),
    ("nproc-per-node", Dimension::Processes),
    ("n-gpus-per-node", Dimension::Processes),
    ("devices", Dimension::Processes),
    ("nnodes", Dimension::Nodes),
    ("num-machines", Dimension::Nodes),
    ("num-nodes", Dimension::Nodes),
    // MaxText: `ici` within a node, `dcn` between nodes.
    ("ici-tensor-parallelism", Dimension::Tensor),
    ("ici-context-parallelism", Dimension::Context),
    ("ici-pipeline-parallelism", Dimension::Pipeline),
    ("ici-data-parallelism", Dimension::Data),
    ("ici-fsdp-parallelism", Dimension::Data),
    ("ici-expert-parallelism", Dimension::Expert),
    ("dcn-data-parallelism", Dimension::Nodes),
    ("dcn-fsdp-parallelism", Dimension::Nodes),
    ("dcn-pipeline-parallelism", Dimension::Nodes),
    // Servers that read their options from a file.
    ("config", Dimension::File),
    ("extra-engine-args", Dimension::File),
    ("extra-llm-api-options", Dimension::File),
];

/// Settings that the last part of a key with dots may name.
const SETTINGS: &[&str] = &["nnodes", "num-nodes", "n-gpus-per-node"];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) tensor: Option<u32>,
    pub(super) context: Option<u32>,
    pub(super) pipeline: Option<u32>,
    pub(super) data: Option<u32>,
    pub(super) local: Option<u32>,
    pub(super) expert: Option<u32>,
    pub(super) processes: Option<u32>,
    pub(super) nodes: Option<u32>,
    /// Some sizes are in a file or in an unknown variable.
    pub(super) hidden: bool,
}

impl Sizes {
    /// Reads the flags of a command. The last flag of a dimension wins.
    pub(super) fn of(words: &[String], launch: &Launch<'_>) -> Self {
        let mut sizes = Self::default();
        for (at, word) in words.iter().enumerate() {
            let (key, value) = match word.split_once('=') {
                Some((key, value)) => (key, Some(value)),
                None => (word.as_str(), None),
            };
            let Some(dimension) = dimension(key, value.is_some()) else {
                continue;
            };
            let value = value.or_else(|| words.get(at + 1).map(String::as_str));
            let known = value.and_then(|value| launch.resolve(value));
            match (dimension, known.and_then(number)) {
                // `-ep` is a switch in vLLM.
                (Dimension::Experts, _) | (Dimension::Expert, None) => {
                    let off = ["false", "False", "none", "0", "-1"];
                    if !value.is_some_and(|value| off.contains(&value)) {
                        sizes.expert = sizes.expert.max(Some(2));
                    }
                }
                (Dimension::File, _) => sizes.hidden = true,
                // Hydra's overrides may set sizes of several models: the largest size is used.
                (dimension, Some(number)) if !key.starts_with('-') => {
                    let number = number.max(sizes.get(dimension).unwrap_or(0));
                    sizes.set(dimension, number);
                }
                (dimension, Some(number)) => sizes.set(dimension, number),
                (_, None) => sizes.hidden |= value.is_some() && known.is_none(),
            }
        }
        sizes
    }

    /// Reads words such as `tp4` in a name.
    pub(super) fn in_name(name: &str) -> Self {
        let mut sizes = Self::default();
        for word in name.split(|c: char| !c.is_ascii_alphanumeric()) {
            let letters = word.trim_end_matches(|c: char| c.is_ascii_digit());
            let dimension = match letters {
                "tp" => Dimension::Tensor,
                "pp" => Dimension::Pipeline,
                "dp" => Dimension::Data,
                "ep" => Dimension::Expert,
                _ => continue,
            };
            if let Some(number) = number(&word[letters.len()..]) {
                sizes.set(dimension, number);
            }
        }
        sizes
    }

    pub(super) fn set(&mut self, dimension: Dimension, number: u32) {
        if let Some(slot) = self.slot(dimension) {
            *slot = Some(number);
        }
    }

    pub(super) fn get(&mut self, dimension: Dimension) -> Option<u32> {
        self.slot(dimension).and_then(|slot| *slot)
    }

    fn slot(&mut self, dimension: Dimension) -> Option<&mut Option<u32>> {
        Some(match dimension {
            Dimension::Tensor => &mut self.tensor,
            Dimension::Context => &mut self.context,
            Dimension::Pipeline => &mut self.pipeline,
            Dimension::Data => &mut self.data,
            Dimension::Local => &mut self.local,
            Dimension::Expert | Dimension::Experts => &mut self.expert,
            Dimension::Processes => &mut self.processes,
            Dimension::Nodes => &mut self.nodes,
            Dimension::File => return None,
        })
    }

    /// Reports whether the job has more ranks than a pod with `gpus` GPUs, or several nodes by its
    /// own flags. `replicas`: the data parallel ranks are ranks of one server.
    pub(super) fn outgrow(&self, gpus: u32, replicas: bool) -> bool {
        let size = |size: Option<u32>| size.unwrap_or(1);
        let data = if replicas { size(self.data) } else { 1 };
        let ranks = [self.inner(), size(self.pipeline), data];
        let ranks = ranks.into_iter().fold(1, u32::saturating_mul);
        size(self.nodes) > 1
            || replicas && self.local.is_some_and(|local| local < data)
            || gpus > 0 && ranks > gpus
    }

    /// Reports whether GPUs share a model, its experts or a sequence.
    pub(super) fn splits_model(&self) -> bool {
        let stages = self.pipeline.unwrap_or(1);
        self.inner() > 1 || stages > 1 || self.spreads_experts()
    }

    /// Reports whether each rank has some of a model's experts.
    pub(super) fn spreads_experts(&self) -> bool {
        self.expert.is_some_and(|size| size > 1)
    }

    /// Returns the number of ranks that communicate in every layer: the tensor parallel ranks of
    /// all parts of a sequence. Context parallel ranks pass on keys and values in a ring.
    pub(super) fn inner(&self) -> u32 {
        let (tensor, context) = (self.tensor.unwrap_or(1), self.context.unwrap_or(1));
        tensor.saturating_mul(context)
    }

    /// Returns the sizes above one, for messages.
    pub(super) fn said(&self) -> String {
        let sizes = [
            ("tp", self.tensor),
            ("cp", self.context),
            ("pp", self.pipeline),
            ("dp", self.data),
        ];
        let mut said: Vec<_> = sizes
            .iter()
            .filter_map(|(name, size)| Some((name, (*size)?)))
            .filter(|(_, size)| *size > 1)
            .map(|(name, size)| format!("{name}={size}"))
            .collect();
        if self.spreads_experts() {
            said.push("expert parallel".to_owned());
        }
        said.join(", ")
    }

    /// Returns the pattern of `gpus` GPUs that follows from the sizes, if they split a model. Ranks
    /// are numbered as in Megatron-LM: a pod of a larger job gets tensor parallel ranks first, then
    /// those of the same sequence.
    pub(super) fn pattern(&self, gpus: u32) -> Pattern {
        let (tensor, pipeline) = (self.inner(), self.pipeline.unwrap_or(1));
        if self.spreads_experts() {
            // Each rank sends data to the experts of all others.
            return Pattern::AllToAll;
        }
        let whole = if tensor > 1 {
            // Each rank needs the sum of what all ranks computed in a layer.
            Pattern::AllReduce
        } else {
            Pattern::Pipeline
        };
        if tensor >= gpus || !gpus.is_multiple_of(tensor) {
            return whole;
        }
        let rest = gpus / tensor;
        let (data, stages) = match (rest % pipeline, rest.cmp(&pipeline)) {
            (0, _) => (rest / pipeline, pipeline),
            (_, std::cmp::Ordering::Less) if tensor > 1 => (rest, 1),
            _ => return whole,
        };
        format!("tp={tensor},dp={data},pp={stages}")
            .parse()
            .unwrap_or(whole)
    }
}

/// Returns the ranks of `mpirun -n 2 … : -n 2 …` or `launch_triton_server.py --world_size 4`; `None`
/// if the command does not show them.
pub(super) fn ranks(words: &[String], launch: &Launch<'_>) -> Option<u32> {
    let values = words.iter().enumerate().filter_map(|(at, word)| {
        let (flag, value) = match word.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (word.as_str(), words.get(at + 1).map(String::as_str)),
        };
        let known = ["-n", "--n", "-np", "--np", "-c", "--world_size"].contains(&flag);
        number(launch.resolve(value.filter(|_| known)?)?)
    });
    values.reduce(u32::saturating_add)
}

/// Returns the dimension that `key` sets. Keys without a dash, such as the overrides of Hydra and
/// MaxText, count only if they are unambiguous.
fn dimension(key: &str, has_value: bool) -> Option<Dimension> {
    let name = key.trim_start_matches('-');
    let dashed = name.len() < key.len();
    if name.len() > 64 || !(dashed || has_value) {
        return None;
    }
    let last = name.rsplit('.').next()?;
    let last = last.to_ascii_lowercase().replace('_', "-");
    let (_, dimension) = FLAGS.iter().find(|(flag, _)| *flag == last)?;
    let setting = name.contains('.') && SETTINGS.contains(&last.as_str());
    (dashed || setting || last.contains("-parallel")).then_some(*dimension)
}

/// Parses a size; of a range such as `1:4`, the upper end.
pub(super) fn number(text: &str) -> Option<u32> {
    let text = text.rsplit(':').next()?;
    text.parse()
        .ok()
        .filter(|number| (1..=MOST).contains(number))
}

#[cfg(test)]
mod tests {
    use nvlink_api::pod;
    use serde_json::json;

    use super::*;

    fn read(command: &str) -> Sizes {
        let pod = json!({"spec": {"containers": [{}]}});
        let words: Vec<_> = command.split(' ').map(str::to_owned).collect();
        let container = pod::containers(&pod)[0];
        Sizes::of(&words, &Launch::of(&pod, container, &|_| false))
    }

    #[test]
    fn each_spelling_is_parsed() {
        for command in [
            "x --tensor-parallel-size 4",
            "x --tensor_parallel_size=4",
            "x -tp 4",
            "x --tp 4",
            "x --tp-size 4",
            "x --tp_size 4",
            "x --num-shard 4",
            "x --tensor-model-parallel-size 4",
            "x --parallelism.tensor_parallel_degree=4",
            "x model.tensor_model_parallel_size=4",
            "x ++trainer.strategy.tensor_model_parallel_size=4",
            "x -tp 2 -tp 4",
        ] {
            assert_eq!(read(command).tensor, Some(4), "{command}");
        }
        for command in [
            "x tp=4",
            "x tensor-parallel-size 4",
            "x --tp",
            "x --tp four",
            "x --tp 0",
            "x --tp -1",
            "x --tp 99999",
        ] {
            assert_eq!(read(command).tensor, None, "{command}");
        }
        assert_eq!(
            read("x -pp 2 --dp=3 --nnodes=1:4 --nproc_per_node 8"),
            Sizes {
                pipeline: Some(2),
                data: Some(3),
                nodes: Some(4),
                processes: Some(8),
                ..Sizes::default()
            }
        );
        assert_eq!(read("x --ep-size 8").expert, Some(8));
        assert!(
            read("x -ep --port 1").splits_model()
                && read("x --enable-expert-parallel").splits_model()
        );
        assert!(!read("x --enable-expert-parallel=false").splits_model());
    }

    #[track_caller]
    fn check(command: &str, gpus: u32, expected: &str) {
        assert_eq!(
            read(command).pattern(gpus).to_string(),
            expected,
            "{command} on {gpus}"
        );
    }

    #[test]
    fn sizes_give_the_pattern_of_the_pod() {
        check("-tp 8", 8, "all-reduce");
        check("-tp 4", 8, "tp=4,dp=2");
        check("-tp 4 -pp 2", 8, "tp=4,pp=2");
        check("-tp 2 -pp 2", 8, "tp=2,dp=2,pp=2");
        check("-tp 8 -pp 2", 8, "all-reduce");
        check("-tp 16", 8, "all-reduce");
        check("-tp 2 -pp 16", 8, "tp=2,dp=4");
        check("-tp 3", 8, "all-reduce");
        check("-pp 8", 8, "pp=8");
        check("-pp 16", 8, "pipeline");
        check("-pp 3", 8, "pipeline");
        check("-tp 2 --ep 4", 8, "all-to-all");
        check("-tp 4 --dp 1", 4, "all-reduce");
        check("-tp 2 --cp-size 4", 8, "all-reduce");
        check("-tp 2 -pcp 2", 8, "tp=4,dp=2");
    }

    #[test]
    fn sizes_are_parsed_from_names() {
        let sizes = Sizes::in_name("train: llama-tp4_pp2 dp x");
        assert_eq!(
            (sizes.tensor, sizes.pipeline, sizes.data),
            (Some(4), Some(2), None)
        );
        assert_eq!(Sizes::in_name("http2 step4 tp tpu4"), Sizes::default());
    }
}
