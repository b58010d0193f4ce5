//! etcd: the metrics of its members.

use std::time::Duration;

use etcd_client::{Client, CompactionOptions};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    Error, Result,
    floor::etcd::{connect, read},
};

pub(crate) struct Etcd {
    client: Client,
    addresses: Vec<String>,
}

impl Etcd {
    pub(super) async fn open(url: &str) -> Result<Self> {
        Ok(Self {
            client: connect(url).await?,
            addresses: read(url)?.1,
        })
    }

    pub(super) async fn version(&mut self) -> Result<String> {
        let status = self.client.status().await.map_err(failed)?;
        let members = self.addresses.len();
        Ok(format!("etcd {}, {members} member(s)", status.version()))
    }

    /// Messages, so that those of one stream count each.
    pub(super) async fn requests(&mut self) -> Option<f64> {
        let mut all = 0.0;
        for address in &self.addresses {
            let metrics = metrics(address);
            let metrics = tokio::time::timeout(Duration::from_secs(5), metrics).await;
            let metrics = metrics.ok()?.ok()?;
            let counts = metrics
                .lines()
                .filter(|line| line.starts_with("grpc_server_msg_received_total{"))
                .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
            all += counts.sum::<f64>();
        }
        Some(all)
    }

    /// As a cluster does with `--auto-compaction-mode=periodic`.
    pub(super) async fn compact(&mut self) -> Result<()> {
        let now = self.client.get("none", None).await.map_err(failed)?;
        let revision = now.header().map_or(1, |header| header.revision());
        let physical = CompactionOptions::new().with_physical();
        match self.client.compact(revision, Some(physical)).await {
            // Nothing was written since the last time.
            Err(etcd_client::Error::GRpcStatus(status))
                if status.message().contains("compacted") =>
            {
                Ok(())
            }
            compacted => compacted.map(drop).map_err(failed),
        }
    }
}

async fn metrics(address: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

fn failed(why: etcd_client::Error) -> Error {
    Error::failed("etcd", why)
}
