//! Private etcd clusters.

mod network;

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use etcd_client::{Client, ConnectOptions, ResponseHeader};
use tempfile::TempDir;

use self::network::Network;
use super::{free_port, free_ports};
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
    network: Option<Network>,
    /// The port for TLS, of a single member.
    tls_port: Option<u16>,
}

#[derive(Debug)]
struct Member {
    name: String,
    client_port: u16,
    /// Where it listens for the other members.
    peer_port: u16,
    /// Where they reach it: the same port, or one of the network in between.
    public_port: u16,
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
        Self::start(size, options, None, None, folder())
    }

    /// Members that write to the disk before they answer; the others' disk may be in memory.
    pub fn durable(size: usize) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Self::start(size, &[], None, None, folder)
    }

    /// Three members that can be cut off from each other.
    pub fn divisible() -> Self {
        let peers = free_ports(3);
        let (network, public) = Network::new(&peers);
        Self::start(3, &[], Some((network, peers, public)), None, folder())
    }

    /// One member that clients reach over TLS as well, with a certificate and its key in PEM files.
    pub fn with_tls(certificate: &str, key: &str) -> Self {
        let options = ["--cert-file", certificate, "--key-file", key];
        Self::start(1, &options, None, Some(free_port()), folder())
    }

    fn start(
        size: usize,
        options: &[&str],
        divided: Option<(Network, Vec<u16>, Vec<u16>)>,
        tls_port: Option<u16>,
        folder: TempDir,
    ) -> Self {
        let ports = free_ports(2 * size);
        let (network, peer_ports, public_ports) = match divided {
            Some((network, peers, public)) => (Some(network), peers, public),
            None => (None, ports[size..].to_vec(), ports[size..].to_vec()),
        };
        let members = (0..size).map(|n| Member {
            name: format!("member-{n}"),
            client_port: ports[n],
            peer_port: peer_ports[n],
            public_port: public_ports[n],
            process: None,
            paused: AtomicBool::new(false),
        });
        let mut cluster = Self {
            members: members.collect(),
            folder,
            options: options.iter().map(|option| (*option).to_owned()).collect(),
            network,
            tls_port,
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

    /// `etcds://127.0.0.1:PORT` of the member that takes TLS.
    ///
    /// # Panics
    ///
    /// When none does.
    pub fn tls_url(&self) -> String {
        let port = self.tls_port.expect("a member with TLS");
        format!("etcds://127.0.0.1:{port}")
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

    /// Cuts a member of a [divisible](EtcdCluster::divisible) cluster off from the others; clients
    /// still reach it. Only one is cut off at a time.
    ///
    /// # Panics
    ///
    /// When the cluster is not divisible.
    pub fn isolate(&self, member: usize) {
        let network = self.network.as_ref().expect("a divisible cluster");
        network.isolate(Some(self.members[member].public_port));
    }

    /// Ends what [`EtcdCluster::isolate`] did.
    pub fn heal(&self) {
        if let Some(network) = &self.network {
            network.isolate(None);
        }
    }

    /// How many connections between members [`EtcdCluster::isolate`] has cut or refused.
    pub fn cuts(&self) -> u64 {
        self.network.as_ref().map_or(0, Network::cuts)
    }

    /// Compacts the history up to now; the revision up to which.
    ///
    /// # Errors
    ///
    /// When the cluster does not answer, or nothing has happened since the last time.
    pub async fn compact(&self) -> Result<u64, etcd_client::Error> {
        let mut admin = self.admin().await;
        let now = admin.get("\0", None).await?;
        let revision = now.header().map_or(0, ResponseHeader::revision);
        admin.compact(revision, None).await?;
        Ok(revision.unsigned_abs())
    }

    /// Has a member rewrite its file.
    ///
    /// # Errors
    ///
    /// When it does not answer.
    pub async fn defragment(&self, member: usize) -> Result<u64, etcd_client::Error> {
        self.admin_of(member).await.defragment().await.map(|_| 1)
    }

    /// Revokes all leases; how many.
    ///
    /// # Errors
    ///
    /// When the cluster does not answer.
    pub async fn revoke_leases(&self) -> Result<u64, etcd_client::Error> {
        let mut admin = self.admin().await;
        let leases = admin.leases().await?;
        let mut revoked = 0;
        for lease in leases.leases() {
            // It may have ended meanwhile.
            revoked += u64::from(admin.lease_revoke(lease.id()).await.is_ok());
        }
        Ok(revoked)
    }

    /// Has another member lead.
    ///
    /// # Errors
    ///
    /// When the cluster does not answer, or the other one is not ready.
    pub async fn move_leader(&self) -> Result<u64, etcd_client::Error> {
        let mut admin = self.admin_of(self.leader()).await;
        let leader = admin.status().await?.leader();
        let members = admin.member_list().await?;
        let mut others = members.members().iter().map(|member| member.id());
        match others.find(|id| *id != leader) {
            Some(other) => admin.move_leader(other).await.map(|_| 1),
            None => Ok(0),
        }
    }

    /// The process of a member, unless it was killed.
    pub(crate) fn process(&self, member: usize) -> Option<&Process> {
        self.members[member].process.as_ref()
    }

    /// Removes a member for good and adds a new one, at other addresses and without data, in its
    /// place.
    ///
    /// # Panics
    ///
    /// When the others refuse, or the cluster is divisible.
    pub async fn replace(&mut self, member: usize) {
        assert!(self.network.is_none(), "its addresses cannot change");
        self.kill(member);
        let mut admin = self.admin_of(self.leader()).await;
        let members = admin.member_list().await.expect("the members");
        let name = &self.members[member].name;
        let old = members.members().iter().find(|old| old.name() == name);
        let old = old.expect("the member").id();
        admin.member_remove(old).await.expect("it is removed");
        fs::remove_dir_all(self.path(member, "data")).expect("the data is removed");
        let ports = free_ports(2);
        let new = &mut self.members[member];
        (new.client_port, new.peer_port, new.public_port) = (ports[0], ports[1], ports[1]);
        let url = new.url_for_peers();
        admin.member_add([url], None).await.expect("it is added");
        self.spawn(member, "existing");
        self.wait_until_ready();
    }

    /// Kills a single member and keeps a copy of its data, for [`EtcdCluster::restore`]; then
    /// starts it again.
    ///
    /// # Panics
    ///
    /// When the data cannot be copied.
    pub fn back_up(&mut self) -> TempDir {
        let backup = folder();
        self.kill(0);
        copy(&self.path(0, "data"), &backup.path().join("data"));
        self.restart(0);
        backup
    }

    /// Kills a single member and starts it again with the data of a backup.
    ///
    /// # Panics
    ///
    /// When the data cannot be copied.
    pub fn restore(&mut self, backup: &TempDir) {
        self.kill(0);
        fs::remove_dir_all(self.path(0, "data")).expect("the data is removed");
        copy(&backup.path().join("data"), &self.path(0, "data"));
        self.restart(0);
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
        let client = format!("http://{}", self.address(member));
        let peer = format!("http://127.0.0.1:{}", self.members[member].peer_port);
        let listens = match self.tls_port {
            Some(port) => format!("{client},https://127.0.0.1:{port}"),
            None => client.clone(),
        };
        let public = self.members[member].url_for_peers();
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
            .args(["--listen-client-urls", &listens])
            .args(["--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer])
            .args(["--initial-advertise-peer-urls", &public])
            .args(["--initial-cluster", &all.join(",")])
            .args(["--initial-cluster-state", state])
            .args(["--heartbeat-interval", timing[0]])
            .args(["--election-timeout", timing[1]])
            // It would refuse new members for some seconds after a start.
            .arg("--strict-reconfig-check=false")
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
        format!("{}={}", self.name, self.url_for_peers())
    }

    fn url_for_peers(&self) -> String {
        format!("http://127.0.0.1:{}", self.public_port)
    }
}

fn copy(from: &Path, to: &Path) {
    let done = Command::new("cp").arg("-a").args([from, to]).status();
    let done = done.expect("cp runs");
    assert!(done.success(), "the data cannot be copied: {done}");
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
        // Another key: what was sent before without an answer may be applied late.
        while admin.put("c", "d", None).await.is_err() {}
        cluster.restart(other);
        let mut admin = cluster.admin_of(other).await;
        let found = admin.get("c", None).await.unwrap();
        assert_eq!(found.kvs()[0].value(), b"d");
    }

    #[tokio::test]
    async fn a_member_can_be_isolated_and_replaced() {
        let cluster = EtcdCluster::divisible();
        let leader = cluster.leader();
        let mut alone = cluster.admin_of(leader).await;
        let mut others = cluster.admin_of((leader + 1) % 3).await;
        cluster.isolate(leader);
        while others.put("a", "b", None).await.is_err() {}
        assert!(alone.get("a", None).await.is_err());
        cluster.heal();
        while alone.get("a", None).await.is_err() {}
        assert_eq!(alone.get("a", None).await.unwrap().count(), 1);

        let mut cluster = EtcdCluster::three();
        let mut admin = cluster.admin_of(1).await;
        admin.put("a", "b", None).await.unwrap();
        let before = cluster.address(0);
        cluster.replace(0).await;
        assert_ne!(cluster.address(0), before);
        let mut admin = cluster.admin_of(0).await;
        assert_eq!(admin.get("a", None).await.unwrap().count(), 1);
    }

    #[tokio::test]
    async fn a_backup_brings_the_past_back() {
        let mut cluster = EtcdCluster::one();
        let backup = cluster.back_up();
        let mut admin = cluster.admin().await;
        admin.put("a", "b", None).await.unwrap();
        cluster.restore(&backup);
        let mut admin = cluster.admin().await;
        assert_eq!(admin.get("a", None).await.unwrap().count(), 0);
    }
}
