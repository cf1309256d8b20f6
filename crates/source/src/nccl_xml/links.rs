//! The NVLinks of a GPU, which NCCL groups by their far end.

use nvlink_topology::{Link, Remote, RemoteKind};
use roxmltree::Node;

use super::wrong;
use crate::{pci::Address, text::LineError};

/// The maximum number of links of a GPU in NVML.
const MAX_LINKS: u32 = 36;

/// The links of a `<gpu>` element.
pub(super) struct Links {
    /// The usable links; absent if the file has no usable information on links.
    pub(super) known: Option<Vec<Link>>,
    /// Number of links that end on the GPU itself, as some providers' files have
    /// them. This is impossible, and they are dropped.
    pub(super) own: u32,
}

/// Reads the links of the GPU at `address`.
pub(super) fn read(gpu: Node<'_, '_>, address: Address) -> Result<Links, LineError> {
    let (mut links, mut own) = (Vec::new(), 0);
    for element in gpu.children().filter(|child| child.has_tag_name("nvlink")) {
        let count = count(element)?;
        let Some(remote) = remote(element, address)? else {
            own += count;
            continue;
        };
        for _ in 0..count {
            links.push(Link {
                index: links.len() as u32,
                up: true,
                bytes_per_second: None,
                remote: Some(remote.clone()),
            });
        }
        if links.len() > MAX_LINKS as usize {
            return Err(wrong(
                element,
                format!("more than {MAX_LINKS} NVLinks of one GPU"),
            ));
        }
    }
    // In a provider's file, a <gpu> without links means that they are unknown.
    let silent = links.is_empty() && (own > 0 || !gpu.has_attribute("sm"));
    Ok(Links {
        known: (!silent).then_some(links),
        own,
    })
}

fn count(element: Node<'_, '_>) -> Result<u32, LineError> {
    let text = element.attribute("count").unwrap_or("1");
    let number = text
        .parse()
        .ok()
        .filter(|count| (1..=MAX_LINKS).contains(count));
    number.ok_or_else(|| wrong(element, format!("count must be from 1 to {MAX_LINKS}")))
}

/// Returns the far end of a link; `None` if it is the GPU itself.
fn remote(element: Node<'_, '_>, own: Address) -> Result<Option<Remote>, LineError> {
    let target = element.attribute("target").unwrap_or_default();
    let address = match is_hidden(target) {
        true => None,
        false => {
            let parsed = target.parse::<Address>();
            Some(parsed.map_err(|error| wrong(element, format!("target: {error}")))?)
        }
    };
    if address == Some(own) {
        return Ok(None);
    }
    // NCCL also writes the class of a hidden far end: it assumes a switch.
    let class = element.attribute("tclass").unwrap_or_default();
    let kind = match class {
        "0x068000" => RemoteKind::Switch,
        _ if class.starts_with("0x03") => RemoteKind::Gpu,
        "" if address.is_none() => RemoteKind::Switch,
        _ => RemoteKind::Unknown,
    };
    Ok(Some(Remote {
        kind,
        pci_bus_id: address.map(|address| address.to_string()),
    }))
}

/// Reports whether `target` is `fffffff:ff:ff.0`: the driver does not show the far end.
fn is_hidden(target: &str) -> bool {
    let (digits, function) = target.rsplit_once('.').unwrap_or((target, ""));
    let all_f = digits.bytes().all(|b| matches!(b, b'f' | b'F' | b':'));
    target.is_empty() || (all_f && digits.contains("ff:ff") && function.len() == 1)
}
