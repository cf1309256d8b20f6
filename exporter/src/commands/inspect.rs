//! `topology`.

use std::io::{self, IsTerminal};

use super::{print, read_and_warn};
use crate::{args::TopologyArgs, output};

pub(super) fn topology(args: &TopologyArgs) -> anyhow::Result<()> {
    let reading = read_and_warn(&args.source)?;
    let color = io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    print(&output::topology(&reading, args.output, color)?)
}
