//! Adds variables to the answer of a device plugin, and leaves the rest of it as it is.

use prost::{Message, bytes::Bytes};

use super::{chooser::Order, messages::extend_each};

/// Lists the GPUs of a container by UUID, in rank order.
pub(super) const GPUS: &str = "NVLINK_DOMAINS_GPUS";

/// The variables of a container, in the form of `ContainerAllocateResponse`. A map is a repeated
/// field, so they are added to those that are there.
#[derive(Clone, PartialEq, Message)]
struct Added {
    #[prost(btree_map = "string, string", tag = "1")]
    envs: std::collections::BTreeMap<String, String>,
}

impl Order {
    fn variables(&self) -> Added {
        let relative: Vec<String> = self.relative.iter().map(ToString::to_string).collect();
        let envs = [
            ("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned()),
            ("CUDA_VISIBLE_DEVICES", relative.join(",")),
            (GPUS, self.uuids.join(",")),
        ];
        Added {
            envs: envs.map(|(name, value)| (name.to_owned(), value)).into(),
        }
    }
}

/// Returns an `AllocateResponse` with the variables of each container that has an order. What
/// cannot be parsed is returned as it is.
pub(super) fn add(answer: Bytes, orders: &[Option<Order>]) -> Bytes {
    let mut orders = orders.iter();
    let added = extend_each(&answer, |_| {
        let added = orders.next()?.as_ref().map(Order::variables);
        Some(added.map(|added| added.encode_to_vec()).unwrap_or_default())
    });
    let as_many = orders.next().is_none();
    added.filter(|_| as_many).unwrap_or(answer)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The answer as the kubelet reads it, with a field of a later version.
    #[derive(Clone, PartialEq, Message)]
    struct Answer {
        #[prost(message, repeated, tag = "1")]
        containers: Vec<Container>,
        #[prost(string, tag = "9")]
        later: String,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Container {
        #[prost(btree_map = "string, string", tag = "1")]
        envs: BTreeMap<String, String>,
        #[prost(string, repeated, tag = "77")]
        later: Vec<String>,
    }

    fn container(value: &str) -> Container {
        Container {
            envs: [("NVIDIA_VISIBLE_DEVICES".to_owned(), value.to_owned())].into(),
            later: vec!["mount".to_owned()],
        }
    }

    #[test]
    fn only_variables_are_added() {
        let answer = Answer {
            containers: vec![container("GPU-b,GPU-a"), container("MIG-1")],
            later: "x".to_owned(),
        };
        let order = Order {
            relative: vec![1, 0],
            uuids: vec!["GPU-b".to_owned(), "GPU-a".to_owned()],
        };
        let added = add(answer.encode_to_vec().into(), &[Some(order), None]);
        let mut expected = answer;
        for (name, value) in [
            ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
            ("CUDA_VISIBLE_DEVICES", "1,0"),
            (GPUS, "GPU-b,GPU-a"),
        ] {
            let envs = &mut expected.containers[0].envs;
            envs.insert(name.to_owned(), value.to_owned());
        }
        assert_eq!(Answer::decode(added).unwrap(), expected);
    }

    #[test]
    fn what_cannot_be_parsed_stays_as_it_is() {
        let answer = Answer {
            containers: vec![container("GPU-a")],
            later: String::new(),
        };
        let whole = answer.encode_to_vec();
        let order = || {
            Some(Order {
                relative: vec![0],
                uuids: vec!["GPU-a".to_owned()],
            })
        };
        for length in 0..whole.len() {
            let part = Bytes::copy_from_slice(&whole[..length]);
            assert_eq!(add(part.clone(), &[order()]), part, "{length} bytes");
        }
        // More or fewer containers than were asked for.
        let whole = Bytes::from(whole);
        assert_eq!(add(whole.clone(), &[]), whole);
        assert_eq!(add(whole.clone(), &[order(), order()]), whole);
        let garbage = Bytes::from_static(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f]);
        assert_eq!(add(garbage.clone(), &[order()]), garbage);
    }
}
