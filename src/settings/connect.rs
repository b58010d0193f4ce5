//! From settings to a store and a client.

use std::sync::Arc;

use super::LockConfig;
use crate::{DistributedLock, LockClient, Result};

impl LockConfig {
    /// A client with these options on a store that is there already, such as a
    /// [`MemoryLock`](crate::MemoryLock) in a test; `url` and the store's section are not used.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`](crate::Error::InvalidConfig), which names the option.
    pub fn client(&self, store: Arc<dyn DistributedLock>) -> Result<LockClient> {
        let mut client = LockClient::builder(store)
            .ttl(self.ttl)
            .wait(self.wait)
            .operation_timeout(self.operation_timeout)
            .max_holds(self.max_holds)
            .metrics_by_key(self.metrics_by_key);
        if let Some(limit) = self.max_hold {
            client = client.max_hold(limit);
        }
        if let Some(interval) = self.renewal {
            client = client.renew_every(interval);
        }
        if let Some(label) = &self.label {
            client = client.label(label);
        }
        client.build()
    }
}

/// The store of `url`, with the options of its section.
pub(super) async fn open(config: &LockConfig) -> Result<Arc<dyn DistributedLock>> {
    match super::check::section_of(&config.url.scheme()) {
        #[cfg(feature = "redis")]
        Some("redis") => redis(config).await,
        #[cfg(feature = "postgres")]
        Some("postgres") => postgres(config).await,
        #[cfg(feature = "etcd")]
        Some("etcd") => etcd(config).await,
        #[cfg(feature = "sqlite")]
        Some("sqlite") => sqlite(config).await,
        // Memory, or an error that says what is missing.
        _ => crate::open(config.url.expose()).await,
    }
}

#[cfg(feature = "redis")]
async fn redis(config: &LockConfig) -> Result<Arc<dyn DistributedLock>> {
    let options = config.redis.clone().unwrap_or_default();
    let mut store = crate::redis::RedisLock::builder(config.url.expose())?
        .operation_timeout(options.operation_timeout)
        .claim_window(options.claim_window)
        .token_retention(options.token_retention);
    if let Some(prefix) = &config.prefix {
        store = store.prefix(prefix);
    }
    #[cfg(feature = "tls")]
    if let Some(tls) = &config.tls {
        use crate::redis::redis::{ClientTlsConfig, TlsCertificates};
        let pem = tls.read()?;
        store = store.tls(TlsCertificates {
            root_cert: pem.ca,
            client_tls: pem
                .identity
                .map(|(client_cert, client_key)| ClientTlsConfig {
                    client_cert,
                    client_key,
                }),
        })?;
    }
    Ok(Arc::new(store.connect().await?))
}

#[cfg(feature = "etcd")]
async fn etcd(config: &LockConfig) -> Result<Arc<dyn DistributedLock>> {
    let options = config.etcd.clone().unwrap_or_default();
    let mut store = crate::etcd::EtcdLock::builder(config.url.expose())?
        .operation_timeout(options.operation_timeout)
        .lease_pool(options.lease_pool as usize);
    if let Some(prefix) = &config.prefix {
        store = store.prefix(prefix);
    }
    #[cfg(feature = "tls")]
    if let Some(tls) = &config.tls {
        use crate::etcd::etcd_client::{Certificate, Identity, TlsOptions};
        let pem = tls.read()?;
        let mut options = TlsOptions::new();
        options = match pem.ca {
            Some(ca) => options.ca_certificate(Certificate::from_pem(ca)),
            None => options.with_native_roots(),
        };
        if let Some((certificate, key)) = pem.identity {
            options = options.identity(Identity::from_pem(certificate, key));
        }
        store = store.tls(options)?;
    }
    Ok(Arc::new(store.connect().await?))
}

#[cfg(feature = "postgres")]
async fn postgres(config: &LockConfig) -> Result<Arc<dyn DistributedLock>> {
    use super::stores::{PoolerConfig, SchemaConfig, SynchronousCommitConfig};
    use crate::postgres::{Pooler, PostgresLock, SchemaMode, SynchronousCommit};

    let options = config.postgres.clone().unwrap_or_default();
    let url = with_files(config, &config.url, "url")?;
    let mut store = PostgresLock::builder(&url)?
        .schema(options.schema)
        .schema_mode(match options.schema_mode {
            SchemaConfig::Ensure => SchemaMode::Ensure,
            SchemaConfig::Check => SchemaMode::Check,
        })
        .pooler(match options.pooler {
            PoolerConfig::Detect => Pooler::Detect,
            PoolerConfig::None => Pooler::None,
            PoolerConfig::Transaction => Pooler::Transaction,
        })
        .synchronous_commit(match options.synchronous_commit {
            SynchronousCommitConfig::ServerDefault => SynchronousCommit::ServerDefault,
            SynchronousCommitConfig::On => SynchronousCommit::On,
            SynchronousCommitConfig::RemoteApply => SynchronousCommit::RemoteApply,
            SynchronousCommitConfig::Local => SynchronousCommit::Local,
            SynchronousCommitConfig::Off => SynchronousCommit::Off,
        })
        .request_timeout(options.request_timeout)
        .batch_limit(options.batch_limit as usize)
        .sweep_interval(options.sweep_interval)
        .keep_idle(options.keep_idle)
        .poll_interval(options.poll_interval);
    if let Some(prefix) = &config.prefix {
        store = store.table_prefix(prefix);
    }
    if let Some(address) = &options.listen_url {
        store = store.listen_url(&with_files(config, address, "postgres.listen_url")?)?;
    }
    if !options.listen {
        store = store.without_listen();
    }
    Ok(Arc::new(store.connect().await?))
}

/// The URL with the certificates of the section `tls`, in Postgres' own words.
#[cfg(feature = "postgres")]
fn with_files(config: &LockConfig, url: &super::StoreUrl, key: &str) -> Result<String> {
    use super::check::Problem;

    let Some(tls) = &config.tls else {
        return Ok(url.expose().to_owned());
    };
    let bad = |key: &str, what: &str| Problem::new(key, what);
    let mut url = ::url::Url::parse(url.expose()).map_err(|_| bad(key, "it is not a URL"))?;
    let mut parameters = vec![];
    // Certificates that nobody looks at would protect nothing.
    if tls.ca.is_some()
        && !url
            .query_pairs()
            .any(|(name, _)| name == "sslmode" || name == "ssl-mode")
    {
        parameters.push(("sslmode", "verify-full"));
    }
    let files = [
        ("sslrootcert", "tls.ca", &tls.ca),
        ("sslcert", "tls.certificate", &tls.certificate),
        ("sslkey", "tls.key", &tls.key),
    ];
    for (parameter, key, file) in files {
        if let Some(file) = file {
            let file = file
                .to_str()
                .ok_or_else(|| bad(key, "the path is not UTF-8"))?;
            parameters.push((parameter, file));
        }
    }
    url.query_pairs_mut().extend_pairs(parameters);
    Ok(url.into())
}

#[cfg(feature = "sqlite")]
async fn sqlite(config: &LockConfig) -> Result<Arc<dyn DistributedLock>> {
    let Some(options) = &config.sqlite else {
        return crate::open(config.url.expose()).await;
    };
    let store = crate::sqlite::SqliteLockBuilder::from_url(config.url.expose())
        .map_err(crate::connect::bad_url)?
        .busy_timeout(options.busy_timeout)
        .poll_interval(options.poll_interval)
        .claim_window(options.claim_window)
        .forget_after(options.forget_after);
    let store = store.open().await.map_err(crate::connect::unusable)?;
    Ok(Arc::new(store))
}

/// What is in the files of the section `tls`.
#[cfg(all(feature = "tls", any(feature = "redis", feature = "etcd")))]
struct Pem {
    ca: Option<Vec<u8>>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

#[cfg(all(feature = "tls", any(feature = "redis", feature = "etcd")))]
impl super::TlsConfig {
    fn read(&self) -> Result<Pem> {
        let read = |key: &str, path: &std::path::Path| {
            std::fs::read(path).map_err(|why| {
                super::check::Problem::new(key, format!("{} cannot be read: {why}", path.display()))
            })
        };
        let ca = match &self.ca {
            Some(path) => Some(read("tls.ca", path)?),
            None => None,
        };
        let identity = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                Some((read("tls.certificate", certificate)?, read("tls.key", key)?))
            }
            _ => None,
        };
        Ok(Pem { ca, identity })
    }
}
