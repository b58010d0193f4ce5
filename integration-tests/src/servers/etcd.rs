//! Private etcd clusters.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use etcd_client::{Client, ConnectOptions};
use tempfile::TempDir;

use super::free_ports;
use crate::process::Process;

/// The environment variable that names the server's program; `etcd` without it.
pub const PROGRAM: &str = "DISTLOCK_TEST_ETCD";

/// How long a cluster may take until it answers.
const PATIENCE: Duration = Duration::from_secs(60);

/// Members on free ports on loopback, with their data in a temporary folder.
///
/// They are killed when it is dropped. The smallest ttl of a lease is one second: 1.5 times the
/// election time-out, and whole seconds.
#[derive(Debug)]
pub struct EtcdCluster {
    members: Vec<Member>,
    folder: TempDir,
    options: Vec<String>,
}

#[derive(Debug)]
struct Member {
    name: String,
    client_port: u16,
    peer_port: u16,
    process: Option<Process>,
    paused: AtomicBool,
}

impl EtcdCluster {
    /// One member.
    pub fn one() -> Self {
        Self::with(1, &[])
    }

    /// Three members, one of which may fail.
    pub fn three() -> Self {
        Self::with(3, &[])
    }

    /// A cluster with more options for each member, such as `["--quota-backend-bytes", "1000000"]`.
    ///
    /// # Panics
    ///
    /// When it cannot be started: a test that needs it fails without it.
    pub fn with(size: usize, options: &[&str]) -> Self {
        let ports = free_ports(2 * size);
        let members = (0..size).map(|n| Member {
            name: format!("member-{n}"),
            client_port: ports[2 * n],
            peer_port: ports[2 * n + 1],
            process: None,
            paused: AtomicBool::new(false),
        });
        let mut cluster = Self {
            members: members.collect(),
            folder: folder(),
            options: options.iter().map(|option| (*option).to_owned()).collect(),
        };
        for member in 0..size {
            cluster.spawn(member, "new");
        }
        cluster.wait_until_ready();
        cluster
    }

    /// How many members there are, running or not.
    pub fn size(&self) -> usize {
        self.members.len()
    }

    /// `127.0.0.1:PORT` of a member, for clients.
    pub fn address(&self, member: usize) -> String {
        format!("127.0.0.1:{}", self.members[member].client_port)
    }

    /// The addresses of all members, in order.
    pub fn addresses(&self) -> Vec<String> {
        (0..self.size())
            .map(|member| self.address(member))
            .collect()
    }

    /// `etcd://` and the addresses of all members.
    pub fn url(&self) -> String {
        format!("etcd://{}", self.addresses().join(","))
    }

    /// `etcd://` and the address of one member.
    pub fn url_of(&self, member: usize) -> String {
        format!("etcd://{}", self.address(member))
    }

    /// A client past the library and every proxy, for all members.
    ///
    /// # Panics
    ///
    /// When an address is not accepted.
    pub async fn admin(&self) -> Client {
        connect(&self.addresses()).await
    }

    /// As [`EtcdCluster::admin`], for one member.
    pub async fn admin_of(&self, member: usize) -> Client {
        connect(&[self.address(member)]).await
    }

    /// A number of a member's `/metrics`, such as `etcd_server_leader_changes_seen_total`; the sum
    /// of those whose name begins with `name` and whose labels contain each of `labels`.
    ///
    /// # Panics
    ///
    /// When the member does not answer.
    pub fn metric(&self, member: usize, name: &str, labels: &[&str]) -> f64 {
        let metrics = self.http(member, "/metrics").expect("the metrics");
        let lines = metrics.lines().filter(|line| {
            let end = line.find(['{', ' ']).unwrap_or(line.len());
            line[..end] == *name && labels.iter().all(|label| line.contains(label))
        });
        lines
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
            .sum()
    }

    /// How many requests of a kind, such as `Txn`, all members together have answered.
    pub fn calls(&self, method: &str) -> u64 {
        self.sum_of("grpc_server_handled_total", method)
    }

    /// How many messages clients have sent for a kind of request, a stream such as
    /// `LeaseKeepAlive` included, to all members together.
    pub fn messages(&self, method: &str) -> u64 {
        self.sum_of("grpc_server_msg_received_total", method)
    }

    /// The member that leads; one that stands still is none.
    ///
    /// # Panics
    ///
    /// When none does for a minute.
    pub fn leader(&self) -> usize {
        let begin = Instant::now();
        loop {
            let leads = |member: &usize| {
                self.members[*member].is_running()
                    && self
                        .http(*member, "/metrics")
                        .is_ok_and(|metrics| metrics.contains("\netcd_server_is_leader 1\n"))
            };
            if let Some(leader) = (0..self.size()).find(leads) {
                return leader;
            }
            assert!(begin.elapsed() < PATIENCE, "no member leads");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// What a member has logged.
    pub fn log(&self, member: usize) -> String {
        let log = fs::read(self.path(member, "log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Stops a member where it is (SIGSTOP).
    pub fn pause(&self, member: usize) {
        self.members[member].pause(true);
    }

    /// Lets it go on (SIGCONT).
    pub fn resume(&self, member: usize) {
        self.members[member].pause(false);
    }

    /// Ends a member at once (SIGKILL).
    pub fn kill(&mut self, member: usize) {
        if let Some(mut process) = self.members[member].process.take() {
            process.kill();
        }
    }

    /// Starts a member again with the data that was on disk, and waits until it answers.
    pub fn restart(&mut self, member: usize) {
        self.restart_without_waiting(member);
        self.wait_until_healthy(member);
    }

    /// Starts a member again and does not wait.
    pub fn restart_without_waiting(&mut self, member: usize) {
        self.kill(member);
        self.spawn(member, "new");
    }

    /// Kills all members, deletes their data, and starts them again as a new cluster.
    pub fn restart_empty(&mut self) {
        for member in 0..self.size() {
            self.kill(member);
            fs::remove_dir_all(self.path(member, "data")).expect("the data is removed");
            self.spawn(member, "new");
        }
        self.wait_until_ready();
    }

    /// Waits until each member knows a leader and answers.
    pub fn wait_until_ready(&mut self) {
        for member in 0..self.size() {
            self.wait_until_healthy(member);
        }
    }

    fn wait_until_healthy(&mut self, member: usize) {
        let begin = Instant::now();
        loop {
            let answer = self.http(member, "/health").unwrap_or_default();
            if answer.contains("\"true\"") {
                return;
            }
            if let Some(process) = &mut self.members[member].process
                && let Ok(Some(status)) = process.child().try_wait()
            {
                panic!("a member ended: {status}\n{}", self.log(member));
            }
            assert!(
                begin.elapsed() < PATIENCE,
                "a member does not start:\n{}",
                self.log(member)
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn spawn(&mut self, member: usize, state: &str) {
        let all: Vec<_> = self.members.iter().map(Member::as_peer).collect();
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.path(member, "log"))
            .expect("the member's log");
        let (client, peer) = (
            format!("http://{}", self.address(member)),
            format!("http://127.0.0.1:{}", self.members[member].peer_port),
        );
        // A single member waits for one election; three would disturb each other.
        let timing = match self.size() {
            1 => ["10", "100"],
            _ => ["50", "500"],
        };
        let program = std::env::var(PROGRAM).unwrap_or_else(|_| "etcd".to_owned());
        let mut command = Command::new(program);
        command
            .args(["--name", &self.members[member].name, "--data-dir"])
            .arg(self.path(member, "data"))
            .args(["--listen-client-urls", &client])
            .args(["--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer])
            .args(["--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &all.join(",")])
            .args(["--initial-cluster-state", state])
            .args(["--heartbeat-interval", timing[0]])
            .args(["--election-timeout", timing[1]])
            .args(["--logger", "zap", "--log-level", "warn"])
            .args(&self.options)
            .stdout(Stdio::null())
            .stderr(log);
        self.members[member].process = Some(Process::start(&mut command));
        self.members[member].paused = AtomicBool::new(false);
    }

    fn path(&self, member: usize, what: &str) -> PathBuf {
        let name = format!("{}.{what}", self.members[member].name);
        self.folder.path().join(name)
    }

    fn sum_of(&self, metric: &str, method: &str) -> u64 {
        let method = format!("grpc_method=\"{method}\"");
        let members = 0..self.size();
        members
            .map(|member| self.metric(member, metric, &[&method]) as u64)
            .sum()
    }

    fn http(&self, member: usize, path: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(self.address(member))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }
}

impl Member {
    fn pause(&self, paused: bool) {
        if let Some(process) = &self.process {
            self.paused.store(paused, Ordering::SeqCst);
            match paused {
                true => process.pause(),
                false => process.resume(),
            }
        }
    }

    fn is_running(&self) -> bool {
        self.process.is_some() && !self.paused.load(Ordering::SeqCst)
    }

    fn as_peer(&self) -> String {
        format!("{}=http://127.0.0.1:{}", self.name, self.peer_port)
    }
}

async fn connect(addresses: &[String]) -> Client {
    let options = ConnectOptions::new().with_timeout(Duration::from_secs(20));
    let client = Client::connect(addresses, Some(options)).await;
    client.expect("a client of the cluster")
}

/// A temporary folder in memory where there is one: etcd writes to the disk before it answers.
fn folder() -> TempDir {
    let memory = tempfile::tempdir_in("/dev/shm");
    memory
        .or_else(|_| tempfile::tempdir())
        .expect("a temporary folder")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_member_keeps_its_data_when_it_is_killed() {
        let mut cluster = EtcdCluster::one();
        let mut admin = cluster.admin().await;
        let lease = admin.lease_grant(1, None).await.unwrap();
        assert_eq!(lease.ttl(), 1);
        admin.put("a", "b", None).await.unwrap();
        assert_eq!((cluster.calls("Put"), cluster.messages("Put")), (1, 1));
        cluster.kill(0);
        cluster.restart(0);
        let mut admin = cluster.admin().await;
        let found = admin.get("a", None).await.unwrap();
        assert_eq!(found.kvs()[0].value(), b"b");
        cluster.restart_empty();
        let mut admin = cluster.admin().await;
        assert_eq!(admin.get("a", None).await.unwrap().count(), 0);
    }

    #[tokio::test]
    async fn three_members_do_without_any_one_of_them() {
        let mut cluster = EtcdCluster::three();
        let leader = cluster.leader();
        let other = (leader + 1) % 3;
        let mut admin = cluster.admin_of(other).await;
        assert_eq!(admin.lease_grant(1, None).await.unwrap().ttl(), 1);
        cluster.pause(leader);
        // What a follower has sent to a leader that stands still is lost with that.
        while admin.put("a", "b", None).await.is_err() {}
        assert_ne!(cluster.leader(), leader);
        cluster.resume(leader);
        cluster.kill(other);
        let mut admin = cluster.admin_of((leader + 2) % 3).await;
        while admin.put("a", "c", None).await.is_err() {}
        cluster.restart(other);
        let mut admin = cluster.admin_of(other).await;
        let found = admin.get("a", None).await.unwrap();
        assert_eq!(found.kvs()[0].value(), b"c");
    }
}
