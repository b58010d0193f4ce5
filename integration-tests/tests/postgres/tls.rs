//! Encrypted connections.

use std::{process::Command, sync::Arc};

use integration_tests::servers::postgres::PostgresServer;
use lock_core::{DistributedLock, Error, StoreErrorKind};
use lock_postgres::PostgresLock;
use tempfile::TempDir;

use crate::support::{busy, claim, granted, queued, secs, until};

/// An authority, and what it has signed, as files.
struct Authority(TempDir);

impl Authority {
    fn new() -> Self {
        let authority = Self(tempfile::tempdir().unwrap());
        authority
            .openssl("req -x509 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.pem");
        authority
    }

    /// The certificate of a server that is 127.0.0.1, and its key.
    fn sign(&self) -> (Vec<u8>, Vec<u8>) {
        std::fs::write(self.0.path().join("names"), "subjectAltName=IP:127.0.0.1").unwrap();
        self.openssl("req -new -nodes -subj /CN=server -keyout server.key -out server.csr");
        let sign = "x509 -req -days 2 -in server.csr -CA ca.pem -CAkey ca.key -set_serial 2";
        self.openssl(&format!("{sign} -extfile names -out server.pem"));
        let read = |name| std::fs::read(self.0.path().join(name)).unwrap();
        (read("server.pem"), read("server.key"))
    }

    fn certificate(&self) -> String {
        self.0.path().join("ca.pem").display().to_string()
    }

    fn openssl(&self, arguments: &str) {
        let mut command = Command::new("openssl");
        command.current_dir(self.0.path());
        command.args(arguments.split(' '));
        if arguments.starts_with("req") {
            command.args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
        }
        let done = command.output().expect("openssl runs");
        assert!(done.status.success(), "openssl {arguments}: {done:?}");
    }
}

/// Whether each connection of the store is encrypted, and how many there are.
async fn encrypted(server: &PostgresServer) -> (i64, i64) {
    let sql = "SELECT count(*) FILTER (WHERE ssl), count(*)
               FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
               WHERE application_name = 'distlock'";
    let rows = server.sql(sql).await;
    let at = |column| sqlx::Row::get::<i64, usize>(&rows[0], column);
    (at(0), at(1))
}

/// A server with a certificate of one's own authority: it is reached, also to listen, by who knows
/// the authority; who knows another, or another name of the server, does not trust it, and says so
/// for good. Who does not want TLS is refused by the server.
#[tokio::test]
async fn servers_are_reached_over_tls() {
    let server = PostgresServer::start();
    let (authority, other) = (Authority::new(), Authority::new());
    let (certificate, key) = authority.sign();
    server.write("server.crt", &certificate);
    server.write("server.key", &key);
    server.write(
        "pg_hba.conf",
        b"hostssl all all 127.0.0.1/32 trust\nhost all postgres 127.0.0.1/32 trust\n",
    );
    server.sql("CREATE ROLE app LOGIN SUPERUSER").await;
    server.sql("ALTER SYSTEM SET ssl = on").await;
    server.sql("SELECT pg_reload_conf()").await;
    until(secs(10), async || {
        server.value::<String>("SHOW ssl").await == "on"
    })
    .await;

    let url = |host: &str, mode: &str, authority: &Authority| {
        let port = server.port();
        format!(
            "postgres://app@{host}:{port}/postgres?sslmode={mode}&sslrootcert={}",
            authority.certificate()
        )
    };
    let full = url("127.0.0.1", "verify-full", &authority);
    let store = Arc::new(PostgresLock::connect(&full).await.unwrap());
    let held = claim("k", 30_000);
    granted(store.try_acquire(&held).await.unwrap());
    busy(store.try_acquire(&queued("k", 1_000)).await.unwrap());
    let second = store.dedicated().await.unwrap();
    second.renew(&held).await.unwrap();
    until(secs(10), async || encrypted(&server).await == (3, 3)).await;
    store.close().await.unwrap();
    second.close().await.unwrap();

    for (host, mode) in [("127.0.0.1", "require"), ("localhost", "verify-ca")] {
        let store = PostgresLock::connect(&url(host, mode, &authority)).await;
        store.unwrap().close().await.unwrap();
    }
    for (host, mode, authority) in [
        ("127.0.0.1", "verify-full", &other),
        ("127.0.0.1", "verify-ca", &other),
        ("localhost", "verify-full", &authority),
        ("127.0.0.1", "disable", &authority),
    ] {
        match PostgresLock::connect(&url(host, mode, authority)).await {
            Err(Error::Store { source, .. }) => {
                let is_permanent = source.kind() == StoreErrorKind::Permanent;
                assert!(is_permanent, "{host} {mode}: {source}");
            }
            other => panic!("{host} {mode}: {other:?}"),
        }
    }
}
