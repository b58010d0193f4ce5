//! A private Postgres server.

use std::{
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use sqlx::{
    AssertSqlSafe, ConnectOptions, Connection, Decode, PgConnection, Postgres, Row, Type,
    postgres::{PgConnectOptions, PgRow},
};
use tempfile::TempDir;

use super::free_port;
use crate::{clock::ShiftedClock, process::Process};

/// A server on a free port on loopback, with its data in a temporary folder.
///
/// Postgres does not run as root; then the server runs as the user `postgres`, or as `nobody`.
/// It is killed when it is dropped.
#[derive(Debug)]
pub struct PostgresServer {
    port: u16,
    folder: TempDir,
    options: Vec<String>,
    environment: Vec<(&'static str, PathBuf)>,
    process: Option<Process>,
    /// Kept, so that the next server need not make it again.
    _template: Arc<TempDir>,
}

impl PostgresServer {
    /// A server with fsync off, for tests that do not crash the machine.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// A server with more settings, such as `["max_connections=20"]`.
    ///
    /// # Panics
    ///
    /// When the server cannot be started: a test that needs it fails without it.
    pub fn with(settings: &[&str]) -> Self {
        let folder = own_folder();
        let template = template();
        copy_cluster(template.path(), &folder.path().join("data"));
        let mut server = Self {
            port: free_port(),
            folder,
            options: settings
                .iter()
                .map(|setting| (*setting).to_owned())
                .collect(),
            environment: Vec::new(),
            process: None,
            _template: template,
        };
        server.launch();
        server
    }

    /// A standby that follows this server, asynchronously; it has a copy of the files.
    ///
    /// # Panics
    ///
    /// When the copy cannot be made, or the standby not be started.
    pub fn standby(&self) -> Self {
        let folder = own_folder();
        let done = program("pg_basebackup")
            .arg("-D")
            .arg(folder.path().join("data"))
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string()])
            .args(["-U", "postgres", "-c", "fast", "-R", "--no-sync"])
            .status()
            .expect("pg_basebackup runs");
        assert!(done.success(), "pg_basebackup failed: {done}");
        let mut standby = Self {
            port: free_port(),
            folder,
            options: self.options.clone(),
            process: None,
            environment: Vec::new(),
            _template: self._template.clone(),
        };
        standby.launch();
        standby
    }

    /// Starts it again with its data, and from now on, on a clock of the test's own.
    pub fn move_to(&mut self, clock: &ShiftedClock) {
        self.environment = clock.environment().into();
        self.launch();
    }

    /// A server that tests of one program share while any of them has it.
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<PostgresServer>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        match shared.upgrade() {
            Some(server) => server,
            None => {
                let server = Arc::new(Self::with(&["max_connections=300"]));
                *shared = Arc::downgrade(&server);
                server
            }
        }
    }

    /// The port on loopback.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The URL of the database `postgres`, for the superuser.
    pub fn url(&self) -> String {
        self.url_of("postgres", "postgres")
    }

    /// The URL of a database for a role; no password is asked for.
    pub fn url_of(&self, role: &str, database: &str) -> String {
        format!("postgres://{role}@{}/{database}", self.address())
    }

    /// What the server has logged since its folder was made.
    pub fn log(&self) -> String {
        let log = fs::read(self.folder.path().join("log")).expect("the server's log");
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Where `pg_hba.conf` and the other files are.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Puts a file beside its data that nobody but the server can read.
    pub fn write(&self, name: &str, contents: &[u8]) {
        let path = self.data().join(name);
        fs::write(&path, contents).expect("a file of the server");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(&path, mode).expect("chmod");
        if let Some((user, group)) = other_user() {
            std::os::unix::fs::chown(&path, Some(user), Some(group)).expect("chown");
        }
    }

    /// A connection of the superuser, past every proxy.
    pub async fn admin(&self) -> PgConnection {
        self.connect("postgres").await
    }

    /// A connection of the superuser to a database.
    pub async fn connect(&self, database: &str) -> PgConnection {
        let options: PgConnectOptions = self.url_of("postgres", database).parse().expect("a URL");
        options
            .application_name("admin")
            .disable_statement_logging()
            .connect()
            .await
            .expect("a connection of the superuser")
    }

    /// Runs statements as superuser and returns the rows of them all.
    ///
    /// # Panics
    ///
    /// When one fails.
    pub async fn sql(&self, statements: &str) -> Vec<PgRow> {
        let mut connection = self.admin().await;
        let rows = sqlx::raw_sql(AssertSqlSafe(statements))
            .fetch_all(&mut connection)
            .await
            .expect("the statements run");
        connection.close().await.expect("the connection closes");
        rows
    }

    /// The one value that a statement returns.
    pub async fn value<T>(&self, statement: &str) -> T
    where
        T: for<'r> Decode<'r, Postgres> + Type<Postgres>,
    {
        self.sql(statement).await[0].try_get(0).expect("a value")
    }

    /// The server's process, unless it was killed.
    pub fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    /// Stops the server and its processes where they are (SIGSTOP).
    pub fn pause(&self) {
        self.signal_all(Signal::STOP);
    }

    /// Lets them go on (SIGCONT).
    pub fn resume(&self) {
        self.signal_all(Signal::CONT);
    }

    /// Ends the server and its processes at once (SIGKILL).
    pub fn kill(&mut self) {
        self.signal_all(Signal::KILL);
        if let Some(mut process) = self.process.take() {
            process.kill();
        }
    }

    /// Ends the server in order: clients are disconnected, transactions rolled back.
    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.signal(Signal::INT);
            process.wait().expect("the server ends");
        }
    }

    /// Starts it again on the same port with whatever its files hold, and waits until it answers.
    pub fn launch(&mut self) {
        self.launch_without_waiting();
        self.wait_until_ready();
    }

    /// Starts it again and does not wait.
    pub fn launch_without_waiting(&mut self) {
        self.kill();
        let _ = fs::remove_file(self.data().join("postmaster.pid"));
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.folder.path().join("log"))
            .expect("the server's log");
        let mut command = program("postgres");
        command
            .arg("-D")
            .arg(self.data())
            .args(["-p", &self.port.to_string()])
            .args(["-c", "listen_addresses=127.0.0.1"])
            .args(["-c", "unix_socket_directories="])
            .args(["-c", "log_line_prefix=%m [%p] %a "])
            .args(["-c", "lc_messages=C"])
            .args(["-c", "fsync=off"])
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdout(Stdio::null())
            .stderr(log);
        for option in &self.options {
            command.args(["-c", option]);
        }
        self.process = Some(Process::start(&mut command));
    }

    /// Waits until it takes connections.
    pub fn wait_until_ready(&mut self) {
        let begin = Instant::now();
        let port = self.port.to_string();
        loop {
            let ready = program("pg_isready")
                .args(["-q", "-h", "127.0.0.1", "-p", &port])
                .status()
                .expect("pg_isready runs");
            if ready.success() {
                return;
            }
            if let Some(process) = &mut self.process
                && let Ok(Some(status)) = process.child().try_wait()
            {
                panic!("the server ended: {status}\n{}", self.log());
            }
            assert!(
                begin.elapsed() < Duration::from_secs(60),
                "the server does not start\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn signal_all(&self, signal: Signal) {
        let Some(process) = &self.process else {
            return;
        };
        let server = process.pid();
        let list = format!("/proc/{server}/task/{server}/children");
        let children = fs::read_to_string(list).unwrap_or_default();
        process.signal(signal);
        for child in children.split_whitespace() {
            if let Some(pid) = child.parse().ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, signal);
            }
        }
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A program of the server, run by a user whom Postgres accepts.
pub(super) fn program(name: &str) -> Command {
    let mut command = Command::new(binaries().join(name));
    demote(&mut command);
    command
}

/// Postgres and PgBouncer refuse to run as root.
pub(super) fn demote(command: &mut Command) {
    if let Some((user, group)) = other_user() {
        command.uid(user).gid(group);
    }
    // The folder that the tests are run in may be closed to that user.
    command.current_dir("/");
}

/// A temporary folder of the user whom the servers run as.
pub(super) fn own_folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    if let Some((user, group)) = other_user() {
        std::os::unix::fs::chown(folder.path(), Some(user), Some(group)).expect("chown");
    }
    folder
}

/// The user and group to run as when the tests run as root.
fn other_user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").expect("/etc/passwd");
    ["postgres", "nobody"].iter().find_map(|wanted| {
        let line = users
            .lines()
            .find(|line| line.split(':').next() == Some(wanted))?;
        let mut fields = line.split(':').skip(2);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    })
}

/// The newest version that is installed, 14 at least.
fn binaries() -> &'static Path {
    static BINARIES: OnceLock<PathBuf> = OnceLock::new();
    BINARIES.get_or_init(|| {
        let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
        versions
            .filter_map(|entry| {
                let path = entry.ok()?.path();
                let version: u32 = path.file_name()?.to_str()?.parse().ok()?;
                let binaries = path.join("bin");
                (version >= 14 && binaries.join("initdb").exists()).then_some((version, binaries))
            })
            .max()
            .map(|(_, binaries)| binaries)
            // Elsewhere it has to be on the path.
            .unwrap_or_default()
    })
}

/// A cluster that is made once and copied for each server, while any server has it.
fn template() -> Arc<TempDir> {
    static TEMPLATE: Mutex<Weak<TempDir>> = Mutex::new(Weak::new());
    let mut template = TEMPLATE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(folder) = template.upgrade() {
        return folder;
    }
    let folder = Arc::new(own_folder());
    let done = program("initdb")
        .arg("-D")
        .arg(folder.path().join("data"))
        .args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"])
        .arg("--locale=C.UTF-8")
        .stdout(Stdio::null())
        .status()
        .expect("initdb runs");
    assert!(done.success(), "initdb failed: {done}");
    *template = Arc::downgrade(&folder);
    folder
}

fn copy_cluster(template: &Path, to: &Path) {
    let mut command = Command::new("cp");
    command.arg("-a").arg(template.join("data")).arg(to);
    demote(&mut command);
    let done = command.status().expect("cp runs");
    assert!(done.success(), "the cluster cannot be copied: {done}");
}
