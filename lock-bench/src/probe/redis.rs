//! Redis: INFO.

use redis::aio::MultiplexedConnection;

use crate::{Error, Result, floor::redis::connect};

pub(crate) struct Redis(MultiplexedConnection);

impl Redis {
    pub(super) async fn open(url: &str) -> Result<Self> {
        connect(url).await.map(Self)
    }

    pub(super) async fn version(&mut self) -> Result<String> {
        let info = self.info("server").await?;
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name));
        Ok(match (field("valkey_version:"), field("redis_version:")) {
            (Some(version), _) => format!("Valkey {version}"),
            (None, version) => format!("Redis {}", version.unwrap_or("of an unknown version")),
        })
    }

    /// Commands inside scripts count as well, so that one has to say which are asked for.
    pub(super) async fn requests(&mut self, commands: &[&str]) -> Option<f64> {
        let info = self.info("commandstats").await.ok()?;
        let calls = commands.iter().filter_map(|command| {
            let name = format!("cmdstat_{command}:calls=");
            let line = info.lines().find_map(|line| line.strip_prefix(&name))?;
            line.split(',').next()?.parse::<f64>().ok()
        });
        Some(calls.sum())
    }

    async fn info(&mut self, section: &str) -> Result<String> {
        let mut info = redis::cmd("INFO");
        let answer = info.arg(section).query_async(&mut self.0).await;
        answer.map_err(|why| Error::failed("redis", why))
    }
}
