//! What a store tells about itself, over a connection of its own.

#[cfg(feature = "etcd")]
mod etcd;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;

use crate::{Kind, Result, Target};

/// A connection to ask the store with.
pub(crate) enum Probe {
    /// There is nobody to ask.
    None(Kind),
    #[cfg(feature = "redis")]
    Redis(redis::Redis),
    #[cfg(feature = "postgres")]
    Postgres(postgres::Postgres),
    #[cfg(feature = "etcd")]
    Etcd(Box<etcd::Etcd>),
}

impl Probe {
    pub(crate) async fn open(target: &Target) -> Result<Self> {
        let url = target.url.as_str();
        Ok(match target.kind {
            #[cfg(feature = "redis")]
            Kind::Redis => Self::Redis(redis::Redis::open(url).await?),
            #[cfg(feature = "postgres")]
            Kind::Postgres => Self::Postgres(postgres::Postgres::open(url).await?),
            #[cfg(feature = "etcd")]
            Kind::Etcd => Self::Etcd(Box::new(etcd::Etcd::open(url).await?)),
            kind => {
                let _ = url;
                Self::None(kind)
            }
        })
    }

    /// The store's name and version, for people.
    pub(crate) async fn version(&mut self) -> Result<String> {
        match self {
            Self::None(kind) => Ok(match kind {
                Kind::Memory => "memory of this process".to_owned(),
                kind => format!("{kind}, embedded"),
            }),
            #[cfg(feature = "redis")]
            Self::Redis(probe) => probe.version().await,
            #[cfg(feature = "postgres")]
            Self::Postgres(probe) => probe.version().await,
            #[cfg(feature = "etcd")]
            Self::Etcd(probe) => probe.version().await,
        }
    }

    /// Requests answered so far, of whoever is there; `None` when the store does not count.
    pub(crate) async fn requests(&mut self, commands: &[&str]) -> Option<f64> {
        let _ = commands;
        match self {
            Self::None(_) => None,
            #[cfg(feature = "redis")]
            Self::Redis(probe) => probe.requests(commands).await,
            #[cfg(feature = "postgres")]
            Self::Postgres(probe) => probe.requests().await,
            #[cfg(feature = "etcd")]
            Self::Etcd(probe) => probe.requests().await,
        }
    }

    /// What a well-kept store does by itself every few minutes.
    pub(crate) async fn tidy(&mut self) -> Result<()> {
        #[cfg(feature = "etcd")]
        if let Self::Etcd(probe) = self {
            probe.compact().await?;
        }
        Ok(())
    }
}
