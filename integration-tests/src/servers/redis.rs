//! A private Redis or Valkey server.

use std::{
    io::{Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use tempfile::TempDir;

use super::free_port;
use crate::{clock::ShiftedClock, process::Process};

/// The environment variable that names the server's program; `redis-server` without it.
pub const PROGRAM: &str = "DISTLOCK_TEST_REDIS_SERVER";

/// A server on a free port on loopback, with its data in a temporary folder.
///
/// It is killed when it is dropped.
#[derive(Debug)]
pub struct RedisServer {
    port: u16,
    folder: TempDir,
    options: Vec<String>,
    environment: Vec<(&'static str, PathBuf)>,
    process: Option<Process>,
}

impl RedisServer {
    /// A server without persistence.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// A server that writes every change to its append-only file before it answers.
    pub fn durable() -> Self {
        Self::with(&["--appendonly", "yes", "--appendfsync", "always"])
    }

    /// A server with more options, such as `["--maxmemory", "100mb"]`.
    ///
    /// # Panics
    ///
    /// When the server cannot be started: a test that needs it fails without it.
    pub fn with(options: &[&str]) -> Self {
        let mut server = Self {
            port: free_port(),
            folder: tempfile::tempdir().expect("a temporary folder"),
            options: options.iter().map(|option| (*option).to_owned()).collect(),
            environment: Vec::new(),
            process: None,
        };
        server.launch();
        server
    }

    /// Starts it again with its data, and from now on, on a clock of the test's own.
    pub fn move_to(&mut self, clock: &ShiftedClock) {
        self.environment = clock.environment().into();
        self.launch();
    }

    /// The port on loopback.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// `redis://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// The server's process.
    ///
    /// # Panics
    ///
    /// When it is not running.
    pub fn pid(&self) -> u32 {
        let process = self.process.as_ref().expect("a running server");
        process.pid().as_raw_nonzero().get().unsigned_abs()
    }

    /// Where the server keeps its files, its unix socket `redis.sock` among them.
    pub fn folder(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    /// Sends one command on a connection of its own and returns the reply as text: the lines of
    /// nested replies one after the other, `(nil)` for nothing, `ERR …` for an error.
    ///
    /// # Panics
    ///
    /// When the server does not answer within ten seconds.
    pub fn command(&self, parts: &[&str]) -> String {
        self.try_command(parts).expect("an answer of the server")
    }

    /// As [`RedisServer::command`], for a server that may be down.
    ///
    /// # Errors
    ///
    /// When the server does not answer within ten seconds.
    pub fn try_command(&self, parts: &[&str]) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(self.address())?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        let mut request = format!("*{}\r\n", parts.len());
        for part in parts {
            request.push_str(&format!("${}\r\n{part}\r\n", part.len()));
        }
        stream.write_all(request.as_bytes())?;
        read_reply(&mut stream)
    }

    /// A field of INFO, such as `total_commands_processed`; empty when there is none.
    pub fn info(&self, field: &str) -> String {
        self.command(&["INFO", "everything"])
            .lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
            .unwrap_or_default()
            .to_owned()
    }

    /// How often clients called `command`, in lower case, since the start or CONFIG RESETSTAT.
    pub fn calls(&self, command: &str) -> u64 {
        self.info(&format!("cmdstat_{command}"))
            .split(',')
            .find_map(|part| part.strip_prefix("calls=")?.parse().ok())
            .unwrap_or(0)
    }

    /// The names of all keys that match a pattern.
    pub fn keys(&self, pattern: &str) -> Vec<String> {
        let reply = self.command(&["KEYS", pattern]);
        reply.lines().map(str::to_owned).collect()
    }

    /// The server's process, unless it was killed.
    pub fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    /// Stops the server where it is (SIGSTOP).
    pub fn pause(&self) {
        if let Some(process) = &self.process {
            process.pause();
        }
    }

    /// Lets it go on (SIGCONT).
    pub fn resume(&self) {
        if let Some(process) = &self.process {
            process.resume();
        }
    }

    /// Ends it at once (SIGKILL).
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill();
        }
    }

    /// Starts it again on the same port with whatever its files hold.
    pub fn launch(&mut self) {
        self.kill();
        let program = std::env::var(PROGRAM).unwrap_or_else(|_| "redis-server".to_owned());
        let folder = self.folder.path();
        let mut command = Command::new(program);
        command
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--maxclients", "20000"])
            .args(["--repl-diskless-sync-delay", "0"])
            .args(["--unixsocket", &folder.join("redis.sock").to_string_lossy()])
            .arg("--dir")
            .arg(folder)
            .args(&self.options)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdout(Stdio::null());
        self.process = Some(Process::start(&mut command));
        self.wait_until_ready();
    }

    /// Kills it and starts it again with the data that was on disk.
    pub fn restart(&mut self) {
        self.launch();
    }

    /// Kills it, deletes its files and starts it again empty.
    pub fn restart_empty(&mut self) {
        self.kill();
        for entry in std::fs::read_dir(self.folder.path()).expect("the folder") {
            let path = entry.expect("an entry of the folder").path();
            if path.is_dir() {
                std::fs::remove_dir_all(path).expect("the folder is removed");
            } else {
                std::fs::remove_file(path).expect("the file is removed");
            }
        }
        self.launch();
    }

    fn wait_until_ready(&mut self) {
        let begin = Instant::now();
        loop {
            match self.try_command(&["PING"]) {
                Ok(reply) if !reply.starts_with("ERR LOADING") => return,
                _ => {}
            }
            if let Some(process) = &mut self.process
                && let Ok(Some(status)) = process.child().try_wait()
            {
                panic!("the server ended: {status}");
            }
            assert!(
                begin.elapsed() < Duration::from_secs(30),
                "the server does not start"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn read_reply(stream: &mut impl Read) -> std::io::Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    while !line.ends_with(b"\r\n") {
        stream.read_exact(&mut byte)?;
        line.push(byte[0]);
    }
    let line = String::from_utf8_lossy(&line[..line.len() - 2]).into_owned();
    let (kind, rest) = line.split_at(1);
    let length: i64 = rest.parse().unwrap_or(0);
    match kind {
        "$" if length >= 0 => {
            let mut bulk = vec![0; length as usize + 2];
            stream.read_exact(&mut bulk)?;
            bulk.truncate(length as usize);
            Ok(String::from_utf8_lossy(&bulk).into_owned())
        }
        "*" if length >= 0 => {
            let parts: Result<Vec<_>, _> = (0..length).map(|_| read_reply(stream)).collect();
            Ok(parts?.join("\n"))
        }
        "$" | "*" => Ok("(nil)".to_owned()),
        "-" => Ok(format!("ERR {rest}")),
        _ => Ok(rest.to_owned()),
    }
}
