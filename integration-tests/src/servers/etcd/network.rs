//! The network between the members of a cluster, which a test can cut.

use std::{
    fs, io,
    net::{SocketAddr, TcpListener},
    path::Path,
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::{io::copy_bidirectional, net::TcpStream, runtime::Runtime, sync::watch};

/// A relay in front of each member's peer port. It knows which member a connection comes from by
/// the process that owns the socket, as the system tells it.
#[derive(Debug)]
pub(super) struct Network {
    /// Of its own: members are waited for in a way that blocks the test's.
    runtime: Option<Runtime>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// The process of each member.
    processes: Mutex<Vec<Option<u32>>>,
    isolated: watch::Sender<Option<usize>>,
}

impl Network {
    /// Relays to the peer ports `targets`; also returns its own ports, in the same order.
    pub(super) fn new(targets: &[u16]) -> (Self, Vec<u16>) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime starts");
        let shared = Arc::new(Shared {
            processes: Mutex::new(vec![None; targets.len()]),
            isolated: watch::Sender::new(None),
        });
        let mut ports = Vec::new();
        for (to, target) in targets.iter().enumerate() {
            let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port on loopback");
            listener.set_nonblocking(true).expect("it does not block");
            let address = listener.local_addr().expect("its address");
            ports.push(address.port());
            runtime.spawn(accept(listener, address, to, *target, shared.clone()));
        }
        let runtime = Some(runtime);
        (Self { runtime, shared }, ports)
    }

    /// Says which process a member is now.
    pub(super) fn started(&self, member: usize, process: u32) {
        self.shared.processes.lock()[member] = Some(process);
    }

    /// Cuts one member off from all others, or nobody.
    pub(super) fn isolate(&self, member: Option<usize>) {
        self.shared.isolated.send_replace(member);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // Dropping it would wait, which is not allowed on another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn accept(
    listener: TcpListener,
    address: SocketAddr,
    to: usize,
    target: u16,
    shared: Arc<Shared>,
) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
    while let Ok((stream, from)) = listener.accept().await {
        let shared = shared.clone();
        tokio::spawn(async move {
            let _ = relay(stream, from, address, to, target, &shared).await;
        });
    }
}

async fn relay(
    mut stream: TcpStream,
    from: SocketAddr,
    address: SocketAddr,
    to: usize,
    target: u16,
    shared: &Shared,
) -> io::Result<()> {
    let mut isolated = shared.isolated.subscribe();
    let from = shared.member_at(from, address)?;
    let is_cut =
        |isolated: &Option<usize>| [from, Some(to)].contains(isolated) && isolated.is_some();
    if is_cut(&isolated.borrow_and_update()) {
        return Ok(());
    }
    let mut member = TcpStream::connect(("127.0.0.1", target)).await?;
    stream.set_nodelay(true)?;
    member.set_nodelay(true)?;
    tokio::select! {
        done = copy_bidirectional(&mut stream, &mut member) => done.map(drop),
        _ = isolated.wait_for(is_cut) => Ok(()),
    }
}

impl Shared {
    /// The member whose process has the socket that is connected from `from` to `to`.
    fn member_at(&self, from: SocketAddr, to: SocketAddr) -> io::Result<Option<usize>> {
        let Some(inode) = inode(from, to)? else {
            return Ok(None);
        };
        let socket = format!("socket:[{inode}]");
        let processes = self.processes.lock();
        Ok(processes.iter().position(|process| {
            process.is_some_and(|process| has_open(process, Path::new(&socket)))
        }))
    }
}

fn inode(from: SocketAddr, to: SocketAddr) -> io::Result<Option<String>> {
    let as_listed = |address: SocketAddr| format!("0100007F:{:04X}", address.port());
    let (from, to) = (as_listed(from), as_listed(to));
    let table = fs::read_to_string("/proc/net/tcp")?;
    Ok(table.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let is_it = fields.next()? == from && fields.next()? == to;
        is_it.then(|| fields.nth(6).map(str::to_owned))?
    }))
}

fn has_open(process: u32, file: &Path) -> bool {
    let Ok(files) = fs::read_dir(format!("/proc/{process}/fd")) else {
        return false;
    };
    files
        .flatten()
        .any(|entry| fs::read_link(entry.path()).is_ok_and(|link| link == file))
}
