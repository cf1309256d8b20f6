//! Numbers, shares and lists of GPUs in words, for people.

/// Formats a number of things: `3 links`, `1 link`.
#[must_use]
pub fn count(number: usize, word: &str) -> String {
    match number {
        1 => format!("1 {word}"),
        _ => format!("{number} {word}s"),
    }
}

/// Formats a fraction as a whole percentage.
#[must_use]
pub fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Formats ascending indices: `0,1`, `0-3,6`.
#[must_use]
pub fn ranges(indices: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for &index in indices {
        match parts.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(index) => *last = index,
            _ => parts.push((index, index)),
        }
    }
    let part = |&(first, last): &(u32, u32)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    };
    parts.iter().map(part).collect::<Vec<_>>().join(",")
}

/// Formats a list of GPUs: `GPU 3`, `GPUs 0-7`.
#[must_use]
pub fn gpus(indices: &[u32]) -> String {
    match indices {
        [one] => format!("GPU {one}"),
        _ => format!("GPUs {}", ranges(indices)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_gpus() {
        assert_eq!(ranges(&[0, 1, 2, 3, 5, 7, 8]), "0-3,5,7,8");
        assert_eq!(ranges(&[]), "");
        assert_eq!(gpus(&[3]), "GPU 3");
        assert_eq!(gpus(&[0, 1, 4, 6, 7, 8]), "GPUs 0,1,4,6-8");
        assert_eq!(gpus(&[u32::MAX, 0]), "GPUs 4294967295,0");
    }
}
