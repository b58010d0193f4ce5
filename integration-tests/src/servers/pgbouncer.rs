//! A private PgBouncer in transaction mode.

use std::{
    fs,
    net::TcpStream,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::Signal;
use tempfile::TempDir;

use super::{
    free_port,
    postgres::{PostgresServer, demote, own_folder},
};
use crate::process::Process;

/// A pooler on a free port on loopback in front of one server.
#[derive(Debug)]
pub struct PgBouncer {
    port: u16,
    folder: TempDir,
    process: Process,
}

impl PgBouncer {
    /// A pooler with its default settings, which refuses the settings that a session starts with.
    pub fn start(server: &PostgresServer) -> Self {
        Self::with(server, &[])
    }

    /// A pooler with more settings, such as `["default_pool_size = 1"]`.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    pub fn with(server: &PostgresServer, settings: &[&str]) -> Self {
        let folder = own_folder();
        let port = free_port();
        let path = folder.path();
        fs::write(path.join("users"), "\"postgres\" \"\"\n\"app\" \"\"\n").expect("users");
        let config = format!(
            "[databases]\n\
             * = host=127.0.0.1 port={}\n\
             [pgbouncer]\n\
             listen_addr = 127.0.0.1\n\
             listen_port = {port}\n\
             unix_socket_dir =\n\
             auth_type = trust\n\
             auth_file = {}\n\
             logfile = {}\n\
             pool_mode = transaction\n\
             max_client_conn = 500\n\
             default_pool_size = 4\n\
             {}\n",
            server.port(),
            path.join("users").display(),
            path.join("log").display(),
            settings.join("\n"),
        );
        fs::write(path.join("config"), config).expect("config");
        for file in ["users", "config"] {
            use std::os::unix::fs::PermissionsExt;
            fs::set_permissions(path.join(file), fs::Permissions::from_mode(0o644)).expect("chmod");
        }
        let mut command = Command::new(Self::program());
        demote(&mut command);
        command
            .arg(path.join("config"))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut pooler = Self {
            port,
            process: Process::start(&mut command),
            folder,
        };
        pooler.wait_until_ready();
        pooler
    }

    /// The port on loopback.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The URL of the database `postgres`, for the superuser.
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// What the pooler has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Ends it in order.
    pub fn stop(mut self) {
        self.process.signal(Signal::INT);
        self.process.wait().expect("the pooler ends");
    }

    fn program() -> &'static str {
        let usual = "/usr/sbin/pgbouncer";
        if fs::exists(usual).unwrap_or(false) {
            usual
        } else {
            "pgbouncer"
        }
    }

    fn wait_until_ready(&mut self) {
        let begin = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            if let Ok(Some(status)) = self.process.child().try_wait() {
                panic!("the pooler ended: {status}\n{}", self.log());
            }
            assert!(
                begin.elapsed() < Duration::from_secs(30),
                "the pooler does not start\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
