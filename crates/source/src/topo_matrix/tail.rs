//! The cells after the relations: CPU affinity, NUMA affinity, GPU NUMA id.

use super::line::Title;

/// The maximum number of CPUs of Linux (`NR_CPUS` of x86-64). A larger number is two
/// joined cells.
const MAX_CPUS: u32 = 8192;
/// A single number from this on is assumed to be a CPU, not a NUMA node.
const MANY_NODES: u32 = 64;

/// The cells of a row after the relations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tail {
    pub(super) cpu: String,
    pub(super) numa: String,
    /// The number of words, and of tabs before the last word.
    words: usize,
    tabs: usize,
}

impl Tail {
    /// Returns a size by which rows are compared.
    pub(super) fn size(&self) -> (usize, usize) {
        (self.words, self.tabs)
    }

    /// Reports whether it has as many cells as `other`: the same number of words or
    /// of tabs. A cell between tabs may be empty.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.words == other.words || (self.tabs > 0 && self.tabs == other.tabs)
    }
}

/// Parses the tail of a GPU's row. `text` is the part after the relations.
pub(super) fn parse(text: &str, titles: &[Title]) -> Result<Tail, String> {
    let words: Vec<_> = text.split_whitespace().collect();
    if words.len() > titles.len() {
        let extra = words[titles.len()];
        return Err(format!("{extra:?} is after the last column"));
    }
    let tabs = text.matches('\t').count();
    let cells = match (words.len() == titles.len(), tabs) {
        (true, _) | (_, 0) => by_words(&words, titles)?,
        _ if tabs >= titles.len() || words.is_empty() => by_tabs(text, titles),
        _ => {
            let (have, want) = (words.len(), titles.len());
            return Err(format!(
                "{have} of {want} cells after the relations; the line is truncated"
            ));
        }
    };
    // Editors may add or remove white space at the end of a line.
    let kept_tabs = text.trim_end().matches('\t').count();
    let tail = Tail {
        cpu: cells.0,
        numa: cells.1,
        words: words.len(),
        tabs: kept_tabs,
    };
    let number_of_cpus = check_list("CPU affinity", &tail.cpu)?;
    if number_of_cpus >= MAX_CPUS {
        return Err(format!(
            "the CPU affinity {:?} has a number beyond the last possible CPU",
            tail.cpu
        ));
    }
    if check_list("NUMA affinity", &tail.numa)? >= MAX_CPUS {
        return Err(format!(
            "the NUMA affinity {:?} has a number beyond the last possible node",
            tail.numa
        ));
    }
    let has = |title| titles.contains(&title);
    if has(Title::Cpu) && has(Title::Numa) && !tail.cpu.is_empty() && tail.numa.is_empty() {
        let reason =
            "has no NUMA affinity after it: are two cells joined, or is the line truncated?";
        return Err(format!("the CPU affinity {:?} {reason}", tail.cpu));
    }
    Ok(tail)
}

/// Splits the cells at tabs, which preserve empty cells. `nvidia-smi` writes two tabs
/// before the last column.
fn by_tabs(text: &str, titles: &[Title]) -> (String, String) {
    let mut cells = text.split('\t').map(str::trim);
    // The text before the first tab is the rest of the last relation.
    cells.next();
    let mut cell = |title| match titles.contains(&title) {
        true => cells.next().unwrap_or_default().to_owned(),
        false => String::new(),
    };
    (cell(Title::Cpu), cell(Title::Numa))
}

/// Splits the cells at blanks, which do not preserve empty cells. A row with fewer
/// words than titles is accepted only if it is clear which cell is empty.
fn by_words(words: &[&str], titles: &[Title]) -> Result<(String, String), String> {
    let cell = |title| {
        let at = titles.iter().position(|&one| one == title);
        at.and_then(|at| words.get(at))
            .copied()
            .unwrap_or_default()
            .to_owned()
    };
    if words.len() == titles.len() || words.is_empty() || !titles.contains(&Title::Numa) {
        return Ok((cell(Title::Cpu), cell(Title::Numa)));
    }
    // The CPU affinity is empty, and the words begin with the NUMA affinity. A list
    // could also be the CPUs of a truncated line, so only a single node is accepted.
    let first = words[0];
    let node = first == "N/A" || first.parse().is_ok_and(|node: u32| node < MANY_NODES);
    let rest = words[1..].iter().all(|&word| word == "N/A");
    let one_less = words.len() + 1 == titles.len();
    if !node || !rest || !one_less || titles.first() != Some(&Title::Cpu) {
        let reason = "is ambiguous: are two cells joined, or is the line truncated?";
        return Err(format!("the affinity {first:?} {reason}"));
    }
    Ok((String::new(), first.to_owned()))
}

/// Returns the largest number of a list such as `0,3-9,11-17`; 0 if the cell is empty or `N/A`.
fn check_list(what: &str, list: &str) -> Result<u32, String> {
    if list.is_empty() || list == "N/A" {
        return Ok(0);
    }
    let mut last = 0;
    for part in list.split(',') {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        match (low.parse::<u32>(), high.parse::<u32>()) {
            (Ok(low), Ok(high)) if low <= high => last = last.max(high),
            _ => return Err(format!("the {what} {list:?} is not a list of numbers")),
        }
    }
    Ok(last)
}

/// Returns the lowest number of a list; `None` for `N/A` and for an empty cell.
pub(super) fn lowest(list: &str) -> Option<u32> {
    let numbers = list
        .split(',')
        .filter_map(|part| part.split('-').next()?.parse().ok());
    numbers.min()
}
