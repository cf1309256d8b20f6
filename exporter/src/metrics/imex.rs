//! IMEX channels and daemons.

use std::fmt;

use super::{
    families,
    family::{Label, Value},
    writer::Writer,
};
use crate::imex::Imex;

pub(super) fn write(out: &mut Writer<'_>, node: &str, imex: &Imex) -> fmt::Result {
    let node = Label::Text(node);
    let channels = imex.channels.iter().map(|one| {
        let [namespace, pod, container] =
            [&one.namespace, &one.pod, &one.container].map(|text| Label::Text(text));
        let labels = [node, namespace, pod, container, one.number.into()];
        (labels, Value::Whole(1))
    });
    out.write(&families::IMEX_CHANNEL, channels)?;
    let daemons = imex.daemons.iter().map(|((namespace, pod), ready)| {
        let labels = [node, Label::Text(namespace), Label::Text(pod)];
        (labels, *ready)
    });
    let pods = daemons.clone().map(|(labels, _)| (labels, Value::Whole(1)));
    out.write(&families::IMEX_DAEMON, pods)?;
    let ready = daemons.filter_map(|(labels, ready)| Some((labels, Value::Whole(ready?.into()))));
    out.write(&families::IMEX_READY, ready)
}
