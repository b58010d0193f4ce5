//! What the shop is started with.

use std::{env, error::Error, fs, net::SocketAddr, path::PathBuf};

use clap::Parser;
use distlock::LockConfig;

/// Sells a stock, together with any number of other processes.
#[derive(Debug, Parser)]
pub(crate) struct Options {
    /// Where to listen
    #[arg(long, env = "SHOP_LISTEN", default_value = "127.0.0.1:8080")]
    pub(crate) listen: SocketAddr,
    /// The database of the stock: a postgres:// or sqlite:// URL; a file in the folder otherwise
    #[arg(long, env = "SHOP_STOCK", hide_env_values = true)]
    stock: Option<String>,
    /// How many of each article a new stock has
    #[arg(long, env = "SHOP_ITEMS", default_value_t = 100)]
    pub(crate) items: u32,
    /// The settings of the locks, in TOML, YAML or JSON; DISTLOCK_URL, DISTLOCK_TTL and the like go
    /// above it. Without either the locks are in a file in the folder
    #[arg(long, env = "SHOP_LOCKS")]
    locks: Option<PathBuf>,
    /// Where the files are that it makes by itself
    #[arg(long, env = "SHOP_FOLDER", default_value = "target/shop")]
    folder: PathBuf,
}

impl Options {
    pub(crate) fn locks(&self) -> Result<LockConfig, Box<dyn Error>> {
        Ok(match &self.locks {
            Some(file) => LockConfig::load(file)?,
            None if env::var_os("DISTLOCK_URL").is_some() => LockConfig::from_env()?,
            None => LockConfig::new(self.file("locks.db")?),
        })
    }

    pub(crate) fn stock(&self) -> Result<String, Box<dyn Error>> {
        match &self.stock {
            Some(url) => Ok(url.clone()),
            None => Ok(format!("{}?mode=rwc", self.file("stock.db")?)),
        }
    }

    fn file(&self, name: &str) -> Result<String, Box<dyn Error>> {
        fs::create_dir_all(&self.folder)?;
        let file = self.folder.canonicalize()?.join(name);
        Ok(format!("sqlite://{}", file.display()))
    }
}
