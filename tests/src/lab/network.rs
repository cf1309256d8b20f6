//! The network of a node: its addresses, the machine's end of the wire, and the way to the API
//! server, which listens on the machine's loopback only.
//!
//! The addresses are of 198.18.0.0/15, which RFC 2544 reserves for tests.

use std::{net::Ipv4Addr, process::Command};

use anyhow::{Context, Result};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    runtime::Runtime,
};

use crate::process::feed;

/// The addresses of one node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Network {
    number: u8,
}

impl Network {
    pub(super) fn new(number: u8) -> Self {
        Self { number }
    }

    /// Returns the name of the machine's interface, which is the name of the node's cgroup too.
    pub(super) fn name(self) -> String {
        format!("{PREFIX}{}", self.number)
    }

    /// Returns the machine's address.
    pub(super) fn machine(self) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.number, 1)
    }

    /// Returns the node's address.
    pub(super) fn node(self) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.number, 2)
    }

    /// Returns the addresses of pods.
    pub(super) fn pods(self) -> String {
        format!("198.18.{}.128/25", self.number)
    }

    /// Connects the machine's end of the wire. The kernel removes it with the node's end.
    pub(super) fn connect(self) -> Result<()> {
        let (name, address) = (self.name(), format!("{}/30", self.machine()));
        ip(&["address", "add", &address, "dev", &name])?;
        ip(&["link", "set", &name, "up"])?;
        let (pods, node) = (self.pods(), self.node().to_string());
        ip(&["route", "add", &pods, "via", &node])
    }

    /// Forwards connections from the node to `port` of the machine's loopback.
    pub(super) fn forward(self, runtime: &Runtime, port: u16) -> Result<()> {
        let address = (self.machine(), port);
        let listener = runtime
            .block_on(TcpListener::bind(address))
            .with_context(|| format!("cannot listen on {}:{port}", self.machine()))?;
        runtime.spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                tokio::spawn(async move {
                    if let Ok(mut server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await {
                        // Both ends see that the other is gone.
                        let _ = copy_bidirectional(&mut client, &mut server).await;
                    }
                });
            }
        });
        Ok(())
    }
}

/// What the names of all nodes' interfaces and cgroups begin with.
pub(super) const PREFIX: &str = "nvlink-lab-";

fn ip(arguments: &[&str]) -> Result<()> {
    let output = feed(Command::new("ip").args(arguments), "").context("cannot run ip")?;
    let said = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(
        output.status.success(),
        "ip {}: {said}",
        arguments.join(" ")
    );
    Ok(())
}
