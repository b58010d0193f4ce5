//! The network between the members of a cluster, which a test can cut.

use std::{
    io,
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::TcpStream,
    runtime::Runtime,
    sync::watch,
};

/// A relay in front of each member's peer port. A member that sends raft's messages names its own
/// address in the head of its request, which is a relay's.
#[derive(Debug)]
pub(super) struct Network {
    /// Of its own: members are waited for in a way that blocks the test's.
    runtime: Option<Runtime>,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    /// The port of the member that is cut off.
    isolated: watch::Sender<Option<u16>>,
    /// How many connections were cut or refused.
    cuts: AtomicU64,
}

impl Network {
    /// Relays to the peer ports `targets`; also returns its own ports, in the same order.
    pub(super) fn new(targets: &[u16]) -> (Self, Vec<u16>) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime starts");
        let state = Arc::new(State {
            isolated: watch::Sender::new(None),
            cuts: AtomicU64::new(0),
        });
        let mut ports = Vec::new();
        for target in targets {
            let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port on loopback");
            listener.set_nonblocking(true).expect("it does not block");
            let port = listener.local_addr().expect("its address").port();
            ports.push(port);
            runtime.spawn(accept(listener, port, *target, state.clone()));
        }
        let runtime = Some(runtime);
        (Self { runtime, state }, ports)
    }

    /// Cuts the member with a port of the relay's off from all others, or nobody.
    pub(super) fn isolate(&self, port: Option<u16>) {
        self.state.isolated.send_replace(port);
    }

    pub(super) fn cuts(&self) -> u64 {
        self.state.cuts.load(Ordering::SeqCst)
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

async fn accept(listener: TcpListener, to: u16, target: u16, state: Arc<State>) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
    while let Ok((stream, _)) = listener.accept().await {
        let state = state.clone();
        tokio::spawn(async move {
            let isolated = state.isolated.subscribe();
            if let Ok(true) = relay(stream, to, target, isolated).await {
                state.cuts.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
}

/// Relays a connection to its end; whether it was cut.
async fn relay(
    mut stream: TcpStream,
    to: u16,
    target: u16,
    mut isolated: watch::Receiver<Option<u16>>,
) -> io::Result<bool> {
    let head = head(&mut stream).await?;
    let from = sender(&head);
    let is_cut = |isolated: &Option<u16>| isolated.is_some_and(|it| it == to || from == Some(it));
    if is_cut(&isolated.borrow_and_update()) {
        return Ok(true);
    }
    let mut member = TcpStream::connect(("127.0.0.1", target)).await?;
    stream.set_nodelay(true)?;
    member.set_nodelay(true)?;
    member.write_all(&head).await?;
    tokio::select! {
        done = copy_bidirectional(&mut stream, &mut member) => done.map(|_| false),
        _ = isolated.wait_for(is_cut) => Ok(true),
    }
}

/// The first request up to the end of its head, and what came with it.
async fn head(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if stream.read_buf(&mut head).await? == 0 {
            break;
        }
    }
    Ok(head)
}

/// The port in the address that the sender of a request names as its own.
fn sender(head: &[u8]) -> Option<u16> {
    let head = String::from_utf8_lossy(head);
    let line = head
        .lines()
        .find_map(|line| line.strip_prefix("X-Peerurls: "))?;
    line.trim().rsplit(':').next()?.parse().ok()
}
