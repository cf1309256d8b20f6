//! Flags of serving, under the names that Prometheus exporters use.

use std::{convert::Infallible, path::PathBuf};

use clap::{
    Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, builder::UnknownArgumentValueParser,
};
use nvlink_runtime::web;

use crate::{
    lifecycle,
    metrics::{Group, Groups},
    server,
};

/// Flags of serving.
#[derive(Debug, Args)]
pub struct WebArgs {
    /// Address to listen on; :PORT means all IPv4 addresses, [::]:PORT all addresses (repeatable)
    ///
    /// A host name is resolved once, to an IPv4 address if it has one.
    #[arg(
        long = "web.listen-address",
        env = "NVLINK_EXPORTER_WEB_LISTEN_ADDRESS",
        default_value = "0.0.0.0:9836",
        value_delimiter = ',',
        value_name = "ADDRESS",
        value_parser = web::address
    )]
    pub listen_addresses: Vec<String>,

    /// Path of the metrics; / disables the page
    #[arg(
        long = "web.telemetry-path",
        env = "NVLINK_EXPORTER_WEB_TELEMETRY_PATH",
        default_value = "/metrics",
        value_name = "PATH",
        value_parser = telemetry_path
    )]
    pub telemetry_path: String,

    /// File with TLS, client certificates, passwords and headers
    ///
    /// See <https://prometheus.io/docs/prometheus/latest/configuration/https/>. Changes
    /// need no restart. Passwords and client certificates also protect /livez and /readyz.
    #[arg(
        long = "web.config.file",
        env = "NVLINK_EXPORTER_WEB_CONFIG_FILE",
        value_name = "FILE"
    )]
    pub config_file: Option<PathBuf>,

    /// Enable POST /-/release and /-/open, which release the source and open it again
    ///
    /// Needed to upgrade the driver, reset a GPU or change its MIG mode. Readers of the metrics can
    /// call both.
    #[arg(
        long = lifecycle::FLAG,
        env = "NVLINK_EXPORTER_WEB_ENABLE_LIFECYCLE",
        value_parser = clap::builder::FalseyValueParser::new()
    )]
    pub enable_lifecycle: bool,

    /// Names that other programs use for `--web.listen-address`: otherwise clap would suggest a
    /// flag that only looks similar.
    #[arg(
        long = "listen",
        aliases = ["listen-address", "address", "port"],
        hide = true,
        value_parser = UnknownArgumentValueParser::suggest_arg("--web.listen-address")
    )]
    listen: Option<Infallible>,
}

fn telemetry_path(text: &str) -> Result<String, String> {
    let good = |b: u8| b.is_ascii_alphanumeric() || b"/-_.~".contains(&b);
    if !text.starts_with('/') || !text.bytes().all(good) {
        return Err("expected a path such as /metrics".to_owned());
    }
    match server::PATHS.iter().find(|path| text.starts_with(**path)) {
        Some(path) => Err(format!("{path} is reserved for another endpoint")),
        None => Ok(text.to_owned()),
    }
}

/// The groups of metrics that are served: `--collector.NAME` and `--no-collector.NAME`,
/// as in node_exporter. Of two flags that contradict each other, the last one wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collectors(pub Groups);

const DISABLE_DEFAULTS: &str = "collector.disable-defaults";
const HEADING: &str = "Collectors";

impl Args for Collectors {
    fn augment_args(command: Command) -> Command {
        let disable = Arg::new(DISABLE_DEFAULTS)
            .long(DISABLE_DEFAULTS)
            .env("NVLINK_EXPORTER_COLLECTOR_DISABLE_DEFAULTS")
            .action(ArgAction::SetTrue)
            .help_heading(HEADING)
            .help("Serve only the groups of --collector.NAME, such as --collector.gpu");
        Group::switched().fold(command.arg(disable), |command, group| {
            let (on, off) = (on(group), off(group));
            let switch = |name: &str, other: &str| {
                Arg::new(name.to_owned())
                    .long(name.to_owned())
                    .action(ArgAction::SetTrue)
                    .overrides_with(other.to_owned())
                    .help_heading(HEADING)
            };
            let no = off.to_uppercase().replace(['-', '.'], "_");
            let off_arg = switch(&off, &on)
                .env(format!("NVLINK_EXPORTER_{no}"))
                .help(format!("Leave out the group {group} of the metrics"));
            // Without a line in the help: the default, but for the flag above.
            let on_arg = switch(&on, &off).hide(true);
            command.arg(on_arg).arg(off_arg)
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Collectors {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let set = |name: &str| matches.get_flag(name);
        let on_alone = set(DISABLE_DEFAULTS);
        let wanted = |&group: &Group| match on_alone {
            true => set(&on(group)) && !set(&off(group)),
            false => !set(&off(group)),
        };
        let wanted = Group::switched().filter(wanted);
        Ok(Self(wanted.fold(Groups::NONE, Groups::with)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn on(group: Group) -> String {
    format!("collector.{group}")
}

fn off(group: Group) -> String {
    format!("no-collector.{group}")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        web: WebArgs,
        #[command(flatten)]
        collectors: Collectors,
    }

    fn parse(args: &[&str]) -> Flags {
        Flags::try_parse_from([&["x"], args].concat()).unwrap()
    }

    #[test]
    fn collector_flags_work_as_in_node_exporter() {
        let groups = |args: &[&str]| parse(args).collectors.0;
        let all = Group::switched().fold(Groups::NONE, Groups::with);
        assert_eq!(groups(&[]), all);
        assert_eq!(groups(&["--no-collector.peer"]), all.without(Group::Peer));
        assert_eq!(groups(&["--no-collector.peer", "--collector.peer"]), all);
        assert_eq!(
            groups(&["--collector.peer", "--no-collector.peer"]),
            all.without(Group::Peer)
        );
        assert_eq!(
            groups(&["--collector.disable-defaults", "--collector.xid"]),
            Groups::NONE.with(Group::Xid)
        );
    }

    #[test]
    fn addresses() {
        let addresses = |args: &[&str]| {
            let web = parse(args).web;
            web.listen_addresses
        };
        assert_eq!(addresses(&[]), ["0.0.0.0:9836"]);
        assert_eq!(
            addresses(&[
                "--web.listen-address",
                ":1",
                "--web.listen-address",
                "[::1]:2,127.0.0.1:3"
            ]),
            ["0.0.0.0:1", "[::1]:2", "127.0.0.1:3"]
        );
    }

    #[test]
    fn paths() {
        for good in ["/", "/m", "/probe/metrics"] {
            assert_eq!(telemetry_path(good).as_deref(), Ok(good));
        }
        for bad in [
            "",
            "metrics",
            "/{x}",
            "/a b",
            "/livez",
            "/readyz",
            "/page.css",
            "/api/v1/topology",
            "/m?x",
        ] {
            assert!(telemetry_path(bad).is_err(), "{bad}");
        }
    }
}
