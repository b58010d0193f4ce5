//! Every way to reach a cluster.

use integration_tests::servers::etcd::EtcdCluster;
use lock_core::{DistributedLock, Error};
use lock_etcd::EtcdLock;

use crate::support::*;

/// Every way to name a cluster: one member, all, a client of the application.
#[tokio::test]
async fn clusters_are_reached_in_every_way() {
    let cluster = EtcdCluster::one();
    let held = claim("l");
    granted(&open(&cluster.url()).await, &held).await;
    let dead = integration_tests::servers::free_port();
    for url in [
        format!("ETCD://{}/", cluster.address(0)),
        format!("etcd://{},{}", cluster.address(0), cluster.address(0)),
        // A member that is not there, before and after one that is.
        format!("etcd://127.0.0.1:{dead},{}", cluster.address(0)),
        format!("etcd://{},127.0.0.1:{dead}", cluster.address(0)),
    ] {
        let store = open(&url).await;
        assert_eq!(holder(&store, "l").await, Some(held.owner), "{url}");
    }
    let client = lock_etcd::etcd_client::Client::connect([cluster.address(0)], None).await;
    let store = EtcdLock::builder_with(client.unwrap())
        .connect()
        .await
        .unwrap();
    assert_eq!(holder(&store, "l").await, Some(held.owner));
    let waiter = queuing("l");
    busy(&store, &waiter).await;
    store.release(&waiter).await.unwrap();
    for url in [
        "http://localhost",
        "etcd://",
        "etcd://localhost/x",
        "nonsense",
    ] {
        let why = EtcdLock::connect(url).await.unwrap_err();
        assert!(matches!(why, Error::InvalidConfig { .. }), "{url}: {why}");
    }
    let why = EtcdLock::connect(&format!("etcd://127.0.0.1:{dead}"))
        .await
        .unwrap_err();
    assert!(why.is_retryable(), "{why}");
}

/// TLS with an authority of one's own; without it the server is not trusted.
#[tokio::test]
async fn clusters_are_reached_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let (key, certificate) = (file("key.pem"), file("cert.pem"));
    openssl(&format!(
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=etcd -addext \
         subjectAltName=IP:127.0.0.1 -addext basicConstraints=critical,CA:FALSE -days 2 -keyout \
         {key} -out {certificate}"
    ));
    let cluster = EtcdCluster::with_tls(&certificate, &key);
    let why = EtcdLock::connect(&cluster.tls_url()).await.unwrap_err();
    assert!(why.to_string().contains("certificate"), "{why}");
    assert!(!why.is_retryable());
    let authority =
        lock_etcd::etcd_client::Certificate::from_pem(std::fs::read(&certificate).unwrap());
    let options = lock_etcd::etcd_client::TlsOptions::new().ca_certificate(authority);
    let builder = EtcdLock::builder(&cluster.tls_url()).unwrap();
    let store = builder.tls(options).unwrap().connect().await.unwrap();
    let held = claim("l");
    granted(&store, &held).await;
    busy(&store, &queuing("l")).await;
    assert_eq!(keys(&cluster).await.len(), 2);
    store.release(&held).await.unwrap();
}
