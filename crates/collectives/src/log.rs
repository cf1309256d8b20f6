//! Facts in the lines of NCCL's log (`NCCL_DEBUG`) and in messages of launchers.

use nvlink_topology::PathClass;

use super::run::{Reason, SizeClass};

/// What a line says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fact<'a> {
    /// One rank has set up its communicator. Source: `ncclCommInitRankFunc` in `src/init.cc`.
    Setup { seconds: f64, ranks: Option<u32> },
    /// The size of a communicator that is being set up. Source: `initTransportsRank`.
    Communicator { ranks: u32, nodes: Option<u32> },
    /// The communicator, or all its rings, are ready.
    Ready { ranks: Option<u32> },
    /// Class of the slowest path of the rings inside a node. Source: `ncclTopoPrintGraph`
    /// in `src/graph/search.cc`; NCCL prints it with `NCCL_DEBUG_SUBSYS=GRAPH`.
    RingPath(PathClass),
    /// Whether NVSwitches add up the data of large all-reduces.
    Nvls(Sign, bool),
    /// A warning; many are harmless.
    Warning(&'a str),
    /// An error that ends the run.
    Error(Reason, &'a str),
    /// A launcher reports that a process has ended early.
    Aborted(&'a str),
}

/// What in a log tells whether NVSwitches add up data (NVLS), the least certain first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sign {
    /// `NVLS multicast support is available on dev 0`: the driver can (`ncclNvlsInit` in
    /// `src/transport/nvls.cc`, since NCCL 2.17).
    Support,
    /// `24 coll channels, 0 collnet channels, 16 nvls channels, …`: the communicator has channels
    /// for it (`initTransportsRank` in `src/init.cc`), or connects trees of it between nodes
    /// (`ncclNvlsTreeConnect`).
    Channels,
    /// `NCCL_NVLS_ENABLE` or `NCCL_ALGO` turns it off.
    Setting,
    /// `AllReduce: 8589934592 Bytes -> Algo NVLS proto SIMPLE …`: what NCCL chose for a large
    /// message (`src/enqueue.cc`; `NCCL_DEBUG_SUBSYS=TUNING`).
    Algorithm,
}

impl Sign {
    /// Returns the most certain sign of a log, after those `before` this one, and what it says.
    #[must_use]
    pub(crate) fn after(self, before: Option<(Self, bool)>, used: bool) -> (Self, bool) {
        match before {
            Some((known, before)) if known > self => (known, before),
            // A job has several communicators: those of few GPUs have no use for it. Of the sizes
            // of a test, which rise, the largest counts.
            Some((known, true)) if known == self && self != Self::Algorithm => (self, true),
            _ => (self, used),
        }
    }
}

/// Errors of nccl-tests, NCCL and PyTorch that end a run.
const ERRORS: [&str; 10] = [
    "Test NCCL failure",
    "Test CUDA failure",
    "Test failure",
    "unhandled system error",
    "unhandled cuda error",
    "ncclSystemError",
    "ncclUnhandledCudaError",
    "ncclInternalError",
    "ncclRemoteError",
    "ncclInvalidUsage",
];

/// Messages of something that has waited too long: nccl-tests, PyTorch, Slurm.
const TIMEOUTS: [&str; 3] = [
    "Test timeout",
    "collective operation timeout",
    "DUE TO TIME LIMIT",
];

/// Messages of launchers: Open MPI, PRRTE, MPICH, Slurm, shells.
const ABORTS: [&str; 8] = [
    "MPI_ABORT was invoked",
    "mpirun noticed that",
    "mpiexec noticed that",
    "prterun noticed that",
    "returned a non-zero exit code",
    "BAD TERMINATION",
    "srun: error:",
    "Segmentation fault",
];

/// Returns what a line says, if it is of interest.
#[must_use]
pub(crate) fn fact(line: &str) -> Option<Fact<'_>> {
    if let Some((_, message)) = line.split_once("NCCL INFO ") {
        return info(message);
    }
    let found = |words: &[&str]| words.iter().any(|word| line.contains(word));
    if found(&TIMEOUTS) {
        return Some(Fact::Error(Reason::Timeout, line));
    }
    if found(&ERRORS) {
        return Some(Fact::Error(reason(line), line));
    }
    if let Some((_, message)) = line.split_once("NCCL WARN ") {
        return Some(Fact::Warning(message));
    }
    found(&ABORTS).then_some(Fact::Aborted(line))
}

/// Returns the reason of an error, by its text.
#[must_use]
pub(crate) fn reason(text: &str) -> Reason {
    let text = text.to_ascii_lowercase();
    match text.contains("timed out") || text.contains("timeout") {
        true => Reason::Timeout,
        false => Reason::NcclError,
    }
}

fn info(message: &str) -> Option<Fact<'_>> {
    if message.contains("Init timings") {
        let seconds: f64 = after(message, " total ")?;
        // An hour is longer than any set-up; lines of several ranks may be mixed up.
        let plausible = (0.0..3600.0).contains(&seconds);
        let ranks = after(message, " nranks ");
        return plausible.then_some(Fact::Setup { seconds, ranks });
    }
    if let Some(ranks) = after(message, " nRanks ") {
        let nodes = after(message, " nNodes ");
        return Some(Fact::Communicator { ranks, nodes });
    }
    if message.contains("Init COMPLETE") {
        let ranks = after(message, " nranks ");
        return Some(Fact::Ready { ranks });
    }
    if message.starts_with("Connected all rings") {
        return Some(Fact::Ready { ranks: None });
    }
    if let Some((sign, used)) = nvls(message) {
        return Some(Fact::Nvls(sign, used));
    }
    // Pattern 4 is the ring (`NCCL_TOPO_PATTERN_RING`); `type` is the class inside a node,
    // a slash, and the class to the network.
    let pattern = message.trim_start().strip_prefix("Pattern 4,")?;
    let (_, class) = pattern.split_once(" type ")?;
    path(class.split('/').next()?).map(Fact::RingPath)
}

/// Returns what a message says of NVLS, if it does.
fn nvls(message: &str) -> Option<(Sign, bool)> {
    let message = message.trim_start();
    if let Some(rest) = message.strip_prefix("NVLS multicast support is ") {
        return Some((Sign::Support, rest.starts_with("available")));
    }
    if let Some((before, _)) = message.split_once(" nvls channels") {
        let number: u32 = before.rsplit(' ').next()?.parse().ok()?;
        return Some((Sign::Channels, number > 0));
    }
    if message.starts_with("Connected NVLS tree") {
        return Some((Sign::Channels, true));
    }
    if let Some((name, value)) = message.split_once(" set by environment to ") {
        return turns_nvls_off(name, value.trim_end_matches('.')).then_some((Sign::Setting, false));
    }
    let (bytes, chosen) = message
        .strip_prefix("AllReduce: ")?
        .split_once(" Bytes -> Algo ")?;
    let large = SizeClass::of(bytes.parse().ok()?) == SizeClass::Large;
    large.then_some((Sign::Algorithm, is_nvls(chosen)))
}

/// Reports whether the name of an algorithm of NCCL is one in which NVSwitches add up: `NVLS` and
/// `NVLS_TREE` in its log, with the protocol behind it in NCCL Inspector's label `algo_proto`.
#[must_use]
pub(crate) fn is_nvls(algorithm: &str) -> bool {
    let head = algorithm.get(..4);
    head.is_some_and(|head| head.eq_ignore_ascii_case("nvls"))
}

/// Reports whether a variable of NCCL leaves out NVLS for all-reduces: `NCCL_NVLS_ENABLE=0`, or an
/// `NCCL_ALGO` without it. Its form is `[FUNCTION:][^]ALGORITHM,…[;…]` (`parseList` in
/// `src/graph/tuning.cc`).
#[must_use]
pub(crate) fn turns_nvls_off(name: &str, value: &str) -> bool {
    let value = value.trim().to_ascii_lowercase();
    match name.trim() {
        "NCCL_NVLS_ENABLE" => value == "0",
        "NCCL_ALGO" => {
            let of_all_reduce = |part: &str| match part.split_once(':') {
                Some(("allreduce", list)) => Some((true, list.to_owned())),
                Some(_) => None,
                None => Some((false, part.to_owned())),
            };
            // A list for the function comes before one for all.
            let list = value
                .split(';')
                .filter_map(of_all_reduce)
                .max_by_key(|one| one.0);
            list.is_some_and(|(_, list)| match list.strip_prefix('^') {
                Some(without) => without.split(',').any(is_nvls),
                None => !list.split(',').any(is_nvls),
            })
        }
        _ => false,
    }
}

/// Returns NCCL's word for a path as a class; `None` where it names no path between GPUs.
fn path(word: &str) -> Option<PathClass> {
    Some(match word {
        // NVB: over NVLink through another GPU.
        "NVL" | "NVB" => PathClass::Nvlink,
        "PIX" => PathClass::Pix,
        "PXB" => PathClass::Pxb,
        "PHB" => PathClass::Phb,
        "SYS" => PathClass::Sys,
        _ => return None,
    })
}

/// Parses the word after `mark`.
fn after<T: std::str::FromStr>(text: &str, mark: &str) -> Option<T> {
    let (_, rest) = text.split_once(mark)?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_of_a_log() {
        let prefix = "gpu-1:53:267 [0] NCCL INFO ";
        let cases = [
            (
                "Init timings - ncclCommInitRank: rank 3 nranks 4 total 1.16 (kernels 0.18, alloc 0.04)",
                Some(Fact::Setup {
                    seconds: 1.16,
                    ranks: Some(4),
                }),
            ),
            (
                "Init timings - ncclCommInitRank: rank 3 nranks 4 total gpu-2",
                None,
            ),
            (
                "comm 0x36 rank 3 nRanks 64 nNodes 9 localRanks 1 localRank 0 MNNVL 0",
                Some(Fact::Communicator {
                    ranks: 64,
                    nodes: Some(9),
                }),
            ),
            (
                "ncclCommInitRank comm 0x36 rank 3 nranks 4 cudaDev 0 busId 1e0 - Init COMPLETE",
                Some(Fact::Ready { ranks: Some(4) }),
            ),
            (
                "Connected all rings, use ring PXN 0",
                Some(Fact::Ready { ranks: None }),
            ),
            (
                "Pattern 4, crossNic 0, nChannels 12, bw 20.0/20.0, type NVL/PIX, sameChannels 1",
                Some(Fact::RingPath(PathClass::Nvlink)),
            ),
            (
                "Pattern 4, crossNic 0, nChannels 1, bw 10.0/10.0, type SYS/PIX, sameChannels 1",
                Some(Fact::RingPath(PathClass::Sys)),
            ),
            (
                "Pattern 1, crossNic 0, nChannels 1, bw 1.0/1.0, type SYS/PIX",
                None,
            ),
            ("NCCL_IB_TIMEOUT set by environment to 22.", None),
        ];
        for (text, expected) in cases {
            assert_eq!(fact(&format!("{prefix}{text}")), expected, "{text}");
        }
    }

    /// What the texts of NCCL 2.17 to 2.30 say of NVLS, each after its sign.
    const SIGNS: &str = "\
support +: NVLS multicast support is available on dev 0
support -: NVLS multicast support is not available on dev 3 (NVLS_NCHANNELS 16)
channels +: 24 coll channels, 16 nvls channels, 32 p2p channels, 32 p2p channels per peer
channels -: 24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels, 32 p2p channels per peer
channels +: Connected NVLS tree
setting -: NCCL_NVLS_ENABLE set by environment to 0.
none: NCCL_NVLS_ENABLE set by environment to 2.
setting -: NCCL_ALGO set by environment to Ring,Tree
none: NCCL_ALGO set by environment to NVLS
none: NCCL_ALGO set by environment to ^tree
setting -: NCCL_ALGO set by environment to ^NVLS,NVLSTree
none: NCCL_ALGO set by environment to ring;allreduce:nvls
none: NCCL_ALGO set by environment to allgather:ring
algorithm +: AllReduce: 8589934592 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}
algorithm -: AllReduce: 8589934592 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}
none: AllReduce: 1048576 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..23}
none: AllGather: 8589934592 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}
";

    #[test]
    fn what_tells_whether_switches_add_up() {
        for line in SIGNS.lines() {
            let (expected, text) = line.split_once(": ").unwrap();
            let line = format!("gpu-1:53:267 [0] NCCL INFO {text}");
            let found = match fact(&line) {
                Some(Fact::Nvls(sign, used)) => {
                    let word = format!("{sign:?}").to_lowercase();
                    format!("{word} {}", if used { '+' } else { '-' })
                }
                Some(_) => "another fact".to_owned(),
                None => "none".to_owned(),
            };
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn errors_and_aborts() {
        let kind = |line| match fact(line)? {
            Fact::Error(reason, _) => Some(reason.as_str()),
            Fact::Warning(_) => Some("warning"),
            Fact::Aborted(_) => Some("aborted"),
            _ => None,
        };
        for (line, expected) in [
            (
                "n1: Test NCCL failure common.cu:958 'unhandled system error (run with NCCL_DEBUG=INFO for details)'",
                "nccl_error",
            ),
            (
                "n1: Test NCCL failure common.cu:958 'remote error / Connection timed out'",
                "timeout",
            ),
            (
                "torch.distributed.DistBackendError: ncclInternalError: Internal check failed.",
                "nccl_error",
            ),
            (
                "[rank3]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)",
                "timeout",
            ),
            (
                "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 10:00 DUE TO TIME LIMIT ***",
                "timeout",
            ),
            (
                "n1:1:2 [0] misc/socket.cc:57 NCCL WARN socketProgress: Connection closed",
                "warning",
            ),
            (
                "mpirun noticed that process rank 3 with PID 1 on node n1 exited on signal 9 (Killed).",
                "aborted",
            ),
        ] {
            assert_eq!(kind(line), Some(expected), "{line}");
        }
        assert_eq!(kind("# Out of bounds values : 0 OK"), None);
    }
}
