//! The syntax that Kubernetes and nodes accept: label keys and values, names of
//! variables and devices.

/// The longest value of a variable in a class, in characters.
pub(crate) const LONGEST_VARIABLE: usize = 4096;

/// Reports whether `text` can be a label key: a name, optionally after a DNS prefix and `/`.
#[must_use]
pub fn is_label_key(text: &str) -> bool {
    let name = match text.split_once('/') {
        None => text,
        Some((prefix, name)) if is_dns_name(prefix) => name,
        Some(_) => return false,
    };
    !name.is_empty() && is_label_value(name)
}

/// Reports whether `text` can be a label value, which may be empty.
#[must_use]
pub fn is_label_value(text: &str) -> bool {
    text.is_empty() || text.len() <= 63 && within(text, "-_.") && has_edges(text)
}

/// Reports whether `text` can be the name of a namespace.
#[must_use]
pub fn is_namespace(text: &str) -> bool {
    text.len() <= 63 && is_dns_name(text) && !text.contains('.')
}

/// Reports whether `text` can be the name of an environment variable.
#[must_use]
pub fn is_variable(text: &str) -> bool {
    let inside = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.chars().all(inside) && text.starts_with(|c: char| !c.is_ascii_digit())
}

/// Reports whether `text` can be the name of a network interface.
#[must_use]
pub(crate) fn is_interface(text: &str) -> bool {
    text.len() <= 15 && within(text, "-_.") && text.starts_with(|c: char| c.is_ascii_alphanumeric())
}

/// Reports whether `text` can be the name of an RDMA device.
#[must_use]
pub(crate) fn is_device(text: &str) -> bool {
    (1..=63).contains(&text.len()) && within(text, "-_")
}

fn is_dns_name(text: &str) -> bool {
    let word = |word: &str| {
        has_edges(word) && within(word, "-") && !word.contains(|c: char| c.is_ascii_uppercase())
    };
    text.len() <= 253 && text.split('.').all(word)
}

/// Reports whether `text` has only letters, digits and `others`.
fn within(text: &str, others: &str) -> bool {
    text.chars()
        .all(|c| c.is_ascii_alphanumeric() || others.contains(c))
}

/// Reports whether `text` starts and ends with a letter or digit.
fn has_edges(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_alphanumeric();
    text.starts_with(edge) && text.ends_with(edge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_keys() {
        for key in ["pool", "a.b/c_D.e", "nvidia.com/gpu.product", "a"] {
            assert!(is_label_key(key), "{key}");
        }
        let long = "x".repeat(64);
        for key in [
            "", "pool ", "/a", "a/", "a/b/c", "A.b/c", "a..b/c", "-a", "a-", &long,
        ] {
            assert!(!is_label_key(key), "{key}");
        }
    }

    #[test]
    fn other_words() {
        assert!(is_label_value("") && is_label_value("A-1.b_c") && !is_label_value("x y"));
        let long = "x".repeat(64);
        assert!(is_namespace("gpu-operator") && is_namespace("0") && !is_namespace(&long));
        assert!(!is_namespace("") && !is_namespace("A") && !is_namespace("a.b"));
        assert!(is_variable("_A1") && !is_variable("") && !is_variable("1A") && !is_variable("A-"));
        assert!(is_interface("eth0.1") && !is_interface("") && !is_interface("eth0,eth1"));
        assert!(is_device("mlx5_0") && !is_device("") && !is_device("mlx5_0:1"));
    }
}
