use nvlink_topology::{PathClass, Source, SourceKind, Via};

use super::*;

/// Formats rows of words in the driver's own layout.
fn tabs(header: &str, rows: &[&str]) -> String {
    let line = |row: &str| row.split(' ').collect::<Vec<_>>().join("\t");
    let titles = "CPU Affinity\tNUMA Affinity\tGPU NUMA ID";
    let rows: Vec<_> = rows
        .iter()
        .map(|row| line(row).replace("\tX\t", "\t X \t"))
        .collect();
    format!("\t{}\t{titles}\n{}\n", line(header), rows.join("\n"))
}

/// Two pairs of GPUs on two sockets, and two NICs.
fn pairs() -> String {
    tabs(
        "GPU0 GPU1 GPU2 GPU3 NIC0 NIC1",
        &[
            "GPU0 X NV12 SYS SYS PIX SYS 0-31,64-95 0  N/A",
            "GPU1 NV12 X SYS SYS PXB SYS 0-31,64-95 0  N/A",
            "GPU2 SYS SYS X NV12 SYS NODE 32-63,96-127 1  N/A",
            "GPU3 SYS SYS NV12 X SYS NODE 32-63,96-127 1  N/A",
            "NIC0 PIX PXB SYS SYS X SYS    ",
            "NIC1 SYS SYS NODE NODE SYS X    ",
        ],
    ) + "\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe\n\
         \nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_bond_0\n"
}

/// A switched board of `n` GPUs with `links` links each, aligned by blanks.
fn board(n: usize, links: u32, tail: &str) -> String {
    let header: String = (0..n).map(|gpu| format!("GPU{gpu}    ")).collect();
    let row = |gpu: usize| {
        let cell = |other| {
            if other == gpu {
                " X      ".into()
            } else {
                format!("NV{links:<6}")
            }
        };
        let cells: String = (0..n).map(cell).collect();
        format!("GPU{gpu}    {cells}{tail}\n")
    };
    format!("        {header}CPU Affinity    NUMA Affinity\n")
        + &(0..n).map(row).collect::<String>()
}

fn relations(text: &str) -> Vec<String> {
    let matrix = parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let row = |row: &GpuRow| {
        let cells = row.to_gpus.iter().chain(&row.to_nics);
        cells.map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    matrix.gpus.iter().map(row).collect()
}

fn refusal(text: &str) -> String {
    match parse(text) {
        Err(error) => error.to_string(),
        Ok(matrix) => panic!("accepted:\n{text}\n{matrix:#?}"),
    }
}

const PAIRS: [&str; 4] = [
    "X NV12 SYS SYS PIX SYS",
    "NV12 X SYS SYS PXB SYS",
    "SYS SYS X NV12 SYS NODE",
    "SYS SYS NV12 X SYS NODE",
];

#[test]
fn the_driver_s_own_layout_is_parsed() {
    assert_eq!(relations(&pairs()), PAIRS);
    let matrix = parse(&pairs()).unwrap();
    assert_eq!(matrix.nics[1].name, "mlx5_bond_0");
    assert_eq!(matrix.gpus[2].cpu_affinity, "32-63,96-127");
    assert_eq!(matrix.gpus[2].numa_affinity, "1");
}

#[test]
fn other_forms_give_the_same_matrix() {
    let text = pairs();
    let header = text.lines().next().unwrap();
    let forms = [
        text.replace(header, &format!("\t\x1b[4m{}\x1b[0m", header.trim_start())),
        text.replace(header, &format!("[4m{header}[0m")),
        text.replace('\n', "\r\n"),
        text.lines().map(|line| format!("    {line}\n")).collect(),
        text.lines()
            .map(|line| format!("{line}{}\n", " ".repeat(40)))
            .collect(),
        text.lines().map(|line| format!("> {line}\n")).collect(),
        text.lines().map(|line| format!(">> {line}\n")).collect(),
        text.lines().map(|line| format!("> >{line}\n")).collect(),
        text.replace(" X ", "X "),
        text.replace(" X ", "X"),
        text.lines()
            .map(|line| format!("{}\n", line.trim_end()))
            .collect(),
        text.replace("\t\t", "\t").replace('\t', "     "),
        format!(
            "$ nvidia-smi topo -m\n206 NICs found in the topology, only displaying 2 in the matrix.\n{text}"
        ),
        text.replace("\n\nLegend", "\nGPU0 and GPU1 share a bridge.\n\nLegend"),
        format!("{text}\n \tGPU0\tGPU1\t\n GPU0\tX\tNS\t\n GPU1\tNS\tX\t\n"),
        format!(" \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tOK\tX\t\n{text}"),
        text.replace("SYS", "SOC"),
        text.split("\nLegend").next().unwrap().to_owned(),
        text.split("\nLegend").next().unwrap().trim_end().to_owned(),
        text.split("\nNIC0\t").next().unwrap().to_owned(),
    ];
    for form in forms {
        let expected = PAIRS.map(str::to_owned).to_vec();
        assert_eq!(relations(&form), expected, "{form}");
    }
}

#[test]
fn columns_are_found_by_title_not_by_position() {
    let text = "      GPU0 mlx5_1 GPU1 mlx5_0 CPU Affinity\n\
                GPU0   X   PHB   NV2  PIX  0-19,40-59\n\
                GPU1  NV2  PIX    X   PHB  0-19,40-59\n\
                mlx5_1 PHB X PIX SYS\n\
                mlx5_0 PIX SYS PHB X\n";
    assert_eq!(relations(text), ["X NV2 PHB PIX", "NV2 X PIX PHB"]);
    assert_eq!(parse(text).unwrap().nics[0].name, "mlx5_1");
}

#[test]
fn affinities() {
    let cases = [
        ("0-47,96-143     0", Some(0)),
        ("0       0-1", Some(0)),
        ("0,2,4   0,3-9,11-17", Some(0)),
        ("6,14,22,30      3", Some(3)),
        ("0-23    N/A", None),
        ("N/A     N/A", None),
        ("3", Some(3)),
        ("N/A", None),
        ("", None),
    ];
    for (tail, numa) in cases {
        let matrix = parse(&board(2, 4, tail)).unwrap_or_else(|error| panic!("{tail}: {error}"));
        let spec = spec(&matrix, source());
        assert_eq!(spec.gpus[0].numa_node, numa, "{tail}");
    }
}

#[test]
#[allow(clippy::too_many_lines, reason = "one table")]
fn refused_with_the_line() {
    let text = pairs();
    let line = |n: usize| text.lines().nth(n - 1).unwrap().to_owned();
    let up_to = |n: usize| text.lines().take(n).collect::<Vec<_>>().join("\n");
    let cases = [
        (
            up_to(1),
            "line 1: the matrix is truncated: it ends after 0 of 4 GPU rows",
        ),
        (
            up_to(4),
            "line 4: the matrix is truncated: it ends after 3 of 4 GPU rows",
        ),
        (
            up_to(6),
            "line 6: the matrix is truncated: it ends after 1 of 2 NIC rows",
        ),
        (
            up_to(6) + "\nNIC1\tSYS\tSYS",
            "line 7: NIC1: 2 of 6 relations; the line is truncated",
        ),
        (
            text.replace("\tNODE\tNODE", "\tNODENODE"),
            "line 7: NIC1: \"NODENODE\" in column GPU2",
        ),
        (
            text.replacen("NV12", "NV2", 1),
            "line 3: GPU1 to GPU0 is NV12 here, but NV2 on line 2",
        ),
        (
            text.replacen("NV12", "NV1212", 1),
            "line 2: GPU0: \"NV1212\" in column GPU1",
        ),
        (
            text.replacen("PIX", "PHB", 1),
            "line 6: NIC0 to GPU0 is PIX here, but PHB on line 2",
        ),
        (
            text.replacen("\tPIX", "\tNV4", 2),
            "line 2: NV4 to NIC0, which is not a GPU",
        ),
        (
            text.replace("GPU3\tNIC0", "GPU2\tNIC0"),
            "line 1: two columns GPU2",
        ),
        (
            text.replace(&line(3), &line(2)),
            "line 3: GPU0 has a second row",
        ),
        (
            text.replace(&line(1), ""),
            "line 2: the row of GPU0 has no header line above it",
        ),
        (
            text.replace("32-63,96-127\t1\t\tN/A", "32-63,96-1271\tN/A"),
            "line 4: GPU2: ",
        ),
        (
            text.replace("64-95\t0", "64-95\t"),
            "line 2: GPU0: the CPU affinity",
        ),
        (
            text.replace("64-95\t0", "64-\t0"),
            "line 2: GPU0: the CPU affinity \"0-31,64-\" is not",
        ),
        (
            format!("{text}{text}"),
            "line 18: a second topology matrix (the first is on line 1)",
        ),
        (
            "\tGPU0\tGPU1\t\nGPU0\tX\tNS\t\nGPU1\tNS\tX\t\n".into(),
            "line 1: this is the matrix of `nvidia-smi topo -p2p`",
        ),
        ("nothing here".into(), "line 1: no topology found"),
        (
            "GPU0 GPU1 CPU Temperature\n".into(),
            "line 1: \"CPU\" is not a column",
        ),
    ];
    for (text, expected) in cases {
        let error = refusal(&text);
        assert!(
            error.starts_with(expected),
            "expected {expected}\n     got {error}\n{text}"
        );
    }
}

#[test]
fn joined_affinities_are_refused_between_blanks_too() {
    let rows = board(2, 4, "56-111,168-2231   N/A")
        .replace("NUMA Affinity", "NUMA Affinity   GPU NUMA ID");
    assert!(refusal(&rows).contains("line 2: GPU0: the affinity \"56-111,168-2231\" is ambiguous"));
    let rows = board(2, 4, "56-111,168-2231");
    assert!(refusal(&rows).contains("is ambiguous"));
}

/// A board of two GPUs, with the `titles` and the `tails` of its rows.
fn two(titles: &str, tails: [&str; 2]) -> String {
    let [first, second] = tails;
    format!("     GPU0 GPU1 {titles}\nGPU0  X   SYS {first}\nGPU1 SYS   X  {second}\n")
}

const TWO: &str = "CPU Affinity  NUMA Affinity";
const THREE: &str = "CPU Affinity  NUMA Affinity  GPU NUMA ID";

#[test]
#[allow(clippy::too_many_lines, reason = "one table")]
fn a_cpu_affinity_is_not_parsed_as_a_numa_node() {
    let cases = [
        // Wrapped lines.
        (
            two(TWO, ["0-31\n,64-95 0", "32-63\n,96-127 1"]),
            "line 2: GPU0: the affinity \"0-31\" is ambiguous",
        ),
        (
            two("CPU Affinity", ["0-31\n,64-95", "32-63\n,96-127"]),
            "line 3: this line is not a row, but it is between rows",
        ),
        // One cell is lost in each row, then in one row.
        (
            two(THREE, ["0-15 0", "16-31 1"]),
            "line 2: GPU0: the affinity \"0-15\" is ambiguous",
        ),
        (
            two(THREE, ["0-15 0 N/A", "16-31 1"]),
            "line 3: GPU1: the affinity \"16-31\" is ambiguous",
        ),
        (
            two(THREE, ["16 1", "16 1"]),
            "line 2: GPU0: the affinity \"16\" is ambiguous",
        ),
        (
            two(TWO, ["0-23 N/A", "0-23"]),
            "line 3: GPU1: the affinity \"0-23\" is ambiguous",
        ),
        (
            two(TWO, ["0,2", "0,2"]),
            "line 2: GPU0: the affinity \"0,2\" is ambiguous",
        ),
        (two(TWO, ["0 0", "0"]), "line 3: GPU1: fewer cells"),
        (two(TWO, ["N/A", "0 0"]), "line 2: GPU0: fewer cells"),
        // The same with tabs, which show the number of cells.
        (
            two(TWO, ["\t0-31", "\t32-63"]),
            "line 2: GPU0: 1 of 2 cells",
        ),
        (
            two(THREE, ["\t0\t\tN/A", "\t1\t\tN/A"]),
            "line 2: GPU0: the CPU affinity \"0\" has no NUMA",
        ),
        (
            two(THREE, ["\t0\tN/A", "\t1\tN/A"]),
            "line 2: GPU0: 2 of 3 cells",
        ),
    ];
    for (text, expected) in cases {
        let error = refusal(&text);
        assert!(
            error.starts_with(expected),
            "expected {expected}\n     got {error}\n{text}"
        );
    }
}

#[test]
fn a_row_truncated_after_its_relations_is_refused_wherever_it_is() {
    let text = pairs();
    for n in 2..=5 {
        let line = text.lines().nth(n - 1).unwrap();
        let relations = line.match_indices('\t').nth(6).unwrap().0;
        for end in relations..line.len() - "N/A".len() {
            for blanks in [false, true] {
                let cut = text.replacen(&format!("{line}\n"), &format!("{}\n", &line[..end]), 1);
                let cut = match blanks {
                    true => cut.replace("\t\t", "\t").replace('\t', "   "),
                    false => cut,
                };
                let error = refusal(&cut);
                assert!(
                    error.starts_with(&format!("line {n}: GPU{}: ", n - 2)),
                    "{error}\n{cut}"
                );
            }
        }
    }
}

#[test]
fn an_empty_cell_between_tabs_is_empty() {
    let text = pairs().replacen("0-31,64-95", "", 1);
    let matrix = parse(&text).unwrap();
    let affinities = |n: usize| {
        (
            &*matrix.gpus[n].cpu_affinity,
            &*matrix.gpus[n].numa_affinity,
        )
    };
    assert_eq!(
        (affinities(0), affinities(1)),
        (("", "0"), ("0-31,64-95", "0"))
    );
    // The output of `topology --output matrix` for a recording, copied from a terminal.
    let matrix = parse(&two(THREE, ["0 N/A", "1 N/A"])).unwrap();
    assert_eq!(matrix.gpus[1].numa_affinity, "1");
}

#[test]
fn text_among_the_rows_is_refused() {
    let text = pairs().replacen("\nGPU2", "\n\nsome prose\nGPU2", 1);
    assert!(refusal(&text).starts_with("line 5: this line is not a row"));
    let text = pairs().replacen("\nGPU2", "\n\nGPU2", 1);
    assert_eq!(relations(&text), PAIRS);
}

#[test]
fn more_links_than_a_gpu_can_have_are_refused() {
    assert_eq!(relations(&board(2, 36, "0 0")), ["X NV36", "NV36 X"]);
    let error = refusal(&board(2, 37, "0 0"));
    assert!(
        error.starts_with(
            "line 2: GPU0: \"NV37\" in column GPU1 is not a relation (X, NV1 to NV36,"
        ),
        "{error}"
    );
}

fn source() -> Source {
    Source {
        kind: SourceKind::File,
        from: "test".into(),
    }
}

#[test]
fn how_edges_are_joined() {
    // GPUs, links of each pair, kind of connection.
    let cases = [
        (2, 4, Via::Direct),
        (2, 12, Via::Direct),
        (2, 18, Via::Switch),
        (4, 4, Via::Direct),
        (4, 6, Via::Direct),
        (4, 18, Via::Switch),
        (7, 12, Via::Switch),
        (8, 8, Via::Switch),
        (16, 6, Via::Switch),
    ];
    for (gpus, links, via) in cases {
        let mut spec = spec(&parse(&board(gpus, links, "0-9    0")).unwrap(), source());
        assert_eq!(spec.complete("n").unwrap(), [""; 0]);
        assert!(
            spec.edges.iter().all(|edge| edge.via == via),
            "{gpus} {links}"
        );
        assert_eq!(spec.domains.len(), 1);
        assert!(
            spec.paths
                .iter()
                .all(|path| path.assumed && path.class == PathClass::Nvlink)
        );
        assert!(
            spec.gpus
                .iter()
                .all(|gpu| gpu.links.is_none() && gpu.model.is_none())
        );
    }
}

#[test]
fn a_nic_has_its_nearest_gpus() {
    let spec = spec(&parse(&pairs()).unwrap(), source());
    let near: Vec<_> = spec
        .nics
        .iter()
        .map(|nic| (&*nic.name, &nic.gpus[..]))
        .collect();
    assert_eq!(near, [("mlx5_0", &[0][..]), ("mlx5_bond_0", &[2, 3])]);
    let far = parse(&pairs().replace("NODE", "SYS")).unwrap();
    assert!(super::spec(&far, source()).nics[1].gpus.is_empty());
}

#[test]
fn a_matrix_truncated_anywhere_is_refused_or_unchanged() {
    let whole = pairs();
    let blanks = board(5, 4, "0-9,20-29    0-1");
    for text in [&whole, &blanks] {
        let expected = relations(text);
        for end in 0..text.len() {
            if let Ok(matrix) = parse(&text[..end]) {
                let numa = |matrix: &Matrix| {
                    matrix
                        .gpus
                        .iter()
                        .map(|gpu| gpu.numa_affinity.clone())
                        .collect::<Vec<_>>()
                };
                assert_eq!(relations(&text[..end]), expected, "cut at {end}");
                if text.contains('\t') {
                    assert_eq!(numa(&matrix), numa(&parse(text).unwrap()), "cut at {end}");
                }
            }
        }
    }
}
