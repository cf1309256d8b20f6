//! Small outputs in the shapes that nccl-tests and NCCL write. The numbers are made up.

use std::fmt::Write;

use nvlink_collectives::Collective;

/// A test of nccl-tests under construction.
#[derive(Clone)]
pub(crate) struct Test {
    pub(crate) collective: Collective,
    pub(crate) ranks: u32,
    pub(crate) hosts: u32,
    /// Sizes, and algorithm bandwidths in GB/s.
    pub(crate) rows: Vec<(u64, f64)>,
    /// Wrong values of the last row.
    pub(crate) wrong: u64,
    /// Whether it has the columns of version 2.18 and later.
    pub(crate) new: bool,
}

impl Test {
    /// Returns a good all-reduce of `ranks` GPUs on one host.
    pub(crate) fn all_reduce(ranks: u32, gbps: f64) -> Self {
        Self {
            collective: Collective::AllReduce,
            ranks,
            hosts: 1,
            rows: vec![
                (1 << 10, 0.05),
                (1 << 25, gbps / 2.0),
                (1 << 30, gbps * 0.9),
                (1 << 33, gbps),
            ],
            wrong: 0,
            new: true,
        }
    }

    pub(crate) fn text(&self) -> String {
        self.head() + &self.table() + &self.foot()
    }

    pub(crate) fn head(&self) -> String {
        let name = self.collective.as_str();
        let mut text = String::new();
        if self.new {
            text += "# nccl-tests version 2.18.3 nccl-headers=23003 nccl-library=23003\n";
            writeln!(text, "# Collective test starting: {name}_perf").unwrap();
        }
        text += "# nThread 1 nGpus 1 minBytes 1024 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0\n#\n# Using devices\n";
        let here = self.ranks / self.hosts;
        for rank in 0..self.ranks {
            let (host, device) = (rank / here, rank % here);
            // The addresses of the simulated DGX H100.
            let bus = [0x1b, 0x43, 0x52, 0x61, 0x9d, 0xc3, 0xd1, 0xdf][device as usize % 8];
            writeln!(
                text,
                "#  Rank {rank:2} Group  0 Pid {:6} on      gpu-{host} device {device:2} [0000:{bus:02x}:00] NVIDIA H100 80GB HBM3",
                4000 + rank
            )
            .unwrap();
        }
        text + "NCCL version 2.26.2+cuda12.8\n"
    }

    pub(crate) fn table(&self) -> String {
        let mut text = match self.new {
            true => "#\n#                                                              out-of-place                       in-place          \n#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong \n#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)         \n",
            false => "#\n#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       \n",
        }
        .to_owned();
        for (at, &(size, gbps)) in self.rows.iter().enumerate() {
            let wrong = if at + 1 == self.rows.len() {
                self.wrong
            } else {
                0
            };
            text += &self.row(size, gbps, wrong);
        }
        text
    }

    fn row(&self, size: u64, gbps: f64, wrong: u64) -> String {
        let bus = gbps * self.collective.bus_factor(self.ranks);
        let time = size as f64 / gbps / 1e3;
        let count = size / 4;
        format!(
            "{size:12}  {count:12}     float     sum      -1  {time:7.1}  {gbps:6.2}  {bus:6.2}  {wrong:6}  {time:7.1}  {gbps:6.2}  {bus:6.2}  {wrong:6}\n"
        )
    }

    pub(crate) fn foot(&self) -> String {
        let (wrong, word) = match self.wrong {
            0 => (0, "OK"),
            wrong => (wrong, "FAILED"),
        };
        let mut text = format!(
            "# Out of bounds values : {wrong} {word}\n# Avg bus bandwidth    : 123.456 \n#\n"
        );
        if self.new {
            writeln!(
                text,
                "# Collective test concluded: {}_perf",
                self.collective
            )
            .unwrap();
        }
        text + "\n"
    }
}

/// A log of NCCL at level INFO, of two ranks.
pub(crate) const LOG: &str = "\
gpu-0:4000:4010 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>
gpu-0:4000:4010 [0] NCCL INFO NCCL_IB_TIMEOUT set by environment to 22.
gpu-0:4000:4010 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 12, bw 20.000000/20.000000, type NVL/PIX, sameChannels 1
gpu-0:4000:4010 [0] NCCL INFO comm 0x55 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0
gpu-0:4000:4010 [0] NCCL INFO Connected all rings
gpu-0:4000:4010 [0] NCCL INFO ncclCommInitRank comm 0x55 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x1 - Init COMPLETE
gpu-0:4000:4010 [0] NCCL INFO Init timings - ncclCommInitRank: rank 0 nranks 2 total 1.16 (kernels 0.18, alloc 0.04, bootstrap 0.93, allgathers 0.00, topo 0.00, graphs 0.00, connections 0.01, rest 0.00)
gpu-0:4001:4011 [1] NCCL INFO Init timings - ncclCommInitRank: rank 1 nranks 2 total 2.25 (kernels 0.18, alloc 0.04, bootstrap 2.03, allgathers 0.00, topo 0.00, graphs 0.00, connections 0.00, rest 0.00)
";
