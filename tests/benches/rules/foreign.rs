//! Metrics of others that the rules and the dashboards read: node_exporter, kube-state-metrics,
//! and the API server.

use std::{fmt::Write, sync::Arc, time::Instant};

use anyhow::Result;
use axum::{Router, http::Uri};
use nvlink_tests::dcgm::dcgm;
use tokio::{net::TcpListener, runtime::Runtime};

/// Pods of each node without GPUs: daemons and services.
const OTHERS: usize = 20;
const PORTS: usize = 8;
const BYTES_PER_SECOND: f64 = 1e9;

/// Serves the metrics of some nodes and of their cluster. It ends when dropped.
pub(crate) struct Foreign {
    /// `127.0.0.1:PORT`.
    pub(crate) address: String,
    _server: Runtime,
}

/// A node, the pods on it (namespace and name), and the UUIDs of its GPUs.
pub(crate) struct Machine {
    pub(crate) node: String,
    pub(crate) pods: Vec<(String, String)>,
    pub(crate) gpus: Vec<String>,
}

impl Foreign {
    /// `/node/NAME` is the node_exporter and dcgm-exporter of a node, `/state` is kube-state-metrics, `/api` the API
    /// server, `/collectives` what an exporter says about benchmarks.
    pub(crate) fn start(machines: Vec<Machine>) -> Result<Self> {
        let server = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()?;
        let listener = server.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?.to_string();
        let start = Instant::now();
        let machines = Arc::new(machines);
        let answer = move |uri: Uri| {
            let seconds = start.elapsed().as_secs_f64();
            let text = text(uri.path(), &machines, seconds).unwrap_or_default();
            async move { text }
        };
        let router = Router::new().fallback(answer);
        server.spawn(async move { axum::serve(listener, router).await });
        Ok(Self {
            address,
            _server: server,
        })
    }
}

fn text(path: &str, machines: &[Machine], seconds: f64) -> Result<String, std::fmt::Error> {
    let mut out = String::new();
    match path.strip_prefix("/node/") {
        Some(node) => {
            machine(&mut out, node, seconds)?;
            let of_node = machines.iter().find(|one| one.node == node);
            let gpus = of_node.map_or(&[][..], |one| &one.gpus);
            out.push_str(&dcgm(node, gpus, 0.9, BYTES_PER_SECOND));
        }
        None if path == "/state" => {
            for one in machines {
                state(&mut out, one)?;
            }
        }
        None if path == "/collectives" => collectives(&mut out, seconds)?,
        None => {
            for name in ["class", "pods"] {
                let name = format!("{name}.nvlink-domains.io");
                writeln!(
                    out,
                    r#"apiserver_admission_webhook_rejection_count{{name="{name}",error_type="no_error"}} {seconds:.0}"#
                )?;
            }
        }
    }
    Ok(out)
}

/// Two interfaces of the machine and one of each pod, and the ports of InfiniBand.
fn machine(out: &mut String, node: &str, seconds: f64) -> std::fmt::Result {
    writeln!(
        out,
        r#"node_uname_info{{nodename="{node}",sysname="Linux",machine="x86_64",release="6.8.0"}} 1"#
    )?;
    for port in 0..PORTS {
        writeln!(
            out,
            r#"node_infiniband_port_data_transmitted_bytes_total{{device="mlx5_{port}",port="1"}} {:.0}"#,
            seconds * BYTES_PER_SECOND
        )?;
    }
    let devices = (0..OTHERS).map(|pod| format!("cali{pod:011x}"));
    for device in ["eth0", "lo"].map(str::to_owned).into_iter().chain(devices) {
        writeln!(
            out,
            r#"node_network_transmit_bytes_total{{device="{device}"}} {:.0}"#,
            seconds * BYTES_PER_SECOND / 1e3
        )?;
    }
    Ok(())
}

fn state(out: &mut String, Machine { node, pods, .. }: &Machine) -> std::fmt::Result {
    writeln!(
        out,
        r#"kube_node_status_allocatable{{node="{node}",resource="nvidia_com_gpu",unit="integer"}} 8"#
    )?;
    for (resource, unit, value) in [("cpu", "core", 192_u64), ("memory", "byte", 2 << 40)] {
        writeln!(
            out,
            r#"kube_node_status_allocatable{{node="{node}",resource="{resource}",unit="{unit}"}} {value}"#
        )?;
    }
    for condition in ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"] {
        for status in ["true", "false", "unknown"] {
            let value = u8::from(if condition == "Ready" {
                status == "true"
            } else {
                status == "false"
            });
            writeln!(
                out,
                r#"kube_node_status_condition{{node="{node}",condition="{condition}",status="{status}"}} {value}"#
            )?;
        }
    }
    let others = (0..OTHERS).map(|pod| ("kube-system".to_owned(), format!("daemon-{pod}-{node}")));
    let exporter = [(
        "nvlink-exporter".to_owned(),
        format!("nvlink-exporter-{node}"),
    )];
    for (namespace, pod) in others.chain(exporter).chain(pods.iter().cloned()) {
        let container = if namespace == "nvlink-exporter" {
            "exporter"
        } else {
            "main"
        };
        let of = format!(r#"namespace="{namespace}",pod="{pod}""#);
        writeln!(
            out,
            r#"kube_pod_info{{{of},node="{node}",host_ip="10.0.0.1",created_by_kind="Job",priority_class="default"}} 1"#
        )?;
        writeln!(
            out,
            r#"kube_pod_container_status_restarts_total{{{of},container="{container}"}} 0"#
        )?;
    }
    Ok(())
}

/// What the exporters export of benchmarks: 64 classes.
fn collectives(out: &mut String, seconds: f64) -> std::fmt::Result {
    for collective in ["all_reduce", "all_gather", "reduce_scatter", "alltoall"] {
        for class in 0..16 {
            let (gpus, nodes) = (8 * (1 + class), 1 + class);
            let of = format!(
                r#"collective="{collective}",model="H100",gpus="{gpus}",nodes="{nodes}",path="NVLINK""#
            );
            writeln!(out, "nvlink_collective_runs_total{{{of}}} {seconds:.0}")?;
            writeln!(
                out,
                r#"nvlink_collective_failures_total{{{of},reason="timeout"}} 0"#
            )?;
            writeln!(out, "nvlink_collective_model_bytes_per_second{{{of}}} 4e11")?;
            writeln!(out, "nvlink_collective_setup_seconds{{{of}}} 2.5")?;
            writeln!(
                out,
                "nvlink_collective_timestamp_seconds{{{of}}} {seconds:.0}"
            )?;
            for size in ["small", "medium", "large"] {
                let of = format!(r#"{of},size_class="{size}""#);
                writeln!(
                    out,
                    "nvlink_collective_bus_bandwidth_bytes_per_second{{{of}}} 3.5e11"
                )?;
                writeln!(
                    out,
                    "nvlink_collective_baseline_bytes_per_second{{{of}}} 3.6e11"
                )?;
                writeln!(out, "nvlink_collective_duration_seconds{{{of}}} 0.002")?;
            }
        }
    }
    Ok(())
}
