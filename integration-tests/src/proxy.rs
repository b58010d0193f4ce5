//! A TCP proxy that breaks connections in the ways networks do.
//!
//! A [`Proxy`] listens on a free port on loopback and carries bytes to a server and back.
//! [`Faults`] say what happens to them on the way; they can be changed at any time and apply to
//! open and to new connections alike. Everything a fault did is counted, so that a test can
//! assert that the fault it asked for has happened.
//!
//! ```no_run
//! # async fn example() -> std::io::Result<()> {
//! use std::time::Duration;
//! use integration_tests::proxy::Proxy;
//!
//! let proxy = Proxy::start("127.0.0.1:6379").await?;
//! // ... connect the client to proxy.address() ...
//! proxy.faults().delay_replies(Duration::from_millis(200)); // a slow way back
//! proxy.faults().swallow_next_reply();                      // lost, the connection stays
//! proxy.faults().blackhole(true);                           // half-open: nothing gets through
//! proxy.reset_all();                                        // every peer sees a reset
//! proxy.faults().heal();
//! # Ok(()) }
//! ```

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::AsyncReadExt,
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, watch},
    task::JoinHandle,
    time::Instant,
};

/// A proxy in front of one server. It ends, with its connections, when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    target: Mutex<String>,
    faults: Faults,
    /// Raised to end the connections that are open now.
    cut: watch::Sender<Cut>,
    opened: AtomicU64,
    open: AtomicI64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cut {
    round: u64,
    how: Ending,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Ending {
    /// An orderly end of the stream (FIN).
    #[default]
    Close,
    /// A reset (RST).
    Reset,
}

/// What happens to the bytes; shared by all connections of a [`Proxy`].
#[derive(Debug, Default)]
pub struct Faults {
    request_delay_ms: AtomicU64,
    reply_delay_ms: AtomicU64,
    hold_requests: AtomicBool,
    hold_replies: AtomicBool,
    refuse: AtomicBool,
    refused: AtomicU64,
    /// Pieces that were delayed or held.
    late: AtomicU64,
    swallow: AtomicU64,
    swallowed: AtomicU64,
    /// Bytes of requests that still get through before the connection is reset; -1: all.
    request_budget: AtomicI64,
    /// As above, for replies.
    reply_budget: AtomicI64,
    cuts: AtomicU64,
    replace: Mutex<Option<Replacement>>,
    replaced: AtomicU64,
}

#[derive(Clone, Debug)]
struct Replacement {
    with: Vec<u8>,
    left: u64,
}

impl Proxy {
    /// Starts a proxy in front of `target`, such as `127.0.0.1:6379`.
    ///
    /// # Errors
    ///
    /// When no port can be bound on loopback.
    pub async fn start(target: impl Into<String>) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            target: Mutex::new(target.into()),
            faults: Faults::none(),
            cut: watch::Sender::default(),
            opened: AtomicU64::new(0),
            open: AtomicI64::new(0),
        });
        let accepting = tokio::spawn(accept(listener, shared.clone()));
        Ok(Self {
            address,
            shared,
            accepting,
        })
    }

    /// Where clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The port of [`Proxy::address`].
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The faults, to change and to count.
    pub fn faults(&self) -> &Faults {
        &self.shared.faults
    }

    /// Leads new connections to another server; open ones stay where they are.
    pub fn retarget(&self, target: impl Into<String>) {
        *self.shared.target.lock() = target.into();
    }

    /// Resets every open connection, on both sides.
    pub fn reset_all(&self) {
        self.end_all(Ending::Reset);
    }

    /// Closes every open connection in an orderly way, on both sides.
    pub fn close_all(&self) {
        self.end_all(Ending::Close);
    }

    /// How many connections were opened since the start.
    pub fn opened(&self) -> u64 {
        self.shared.opened.load(Ordering::SeqCst)
    }

    /// How many connections are open now.
    pub fn open(&self) -> u64 {
        self.shared.open.load(Ordering::SeqCst).max(0) as u64
    }

    fn end_all(&self, how: Ending) {
        self.shared.cut.send_modify(|cut| {
            cut.round += 1;
            cut.how = how;
        });
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.close_all();
    }
}

impl Faults {
    fn none() -> Self {
        Self {
            request_budget: AtomicI64::new(-1),
            reply_budget: AtomicI64::new(-1),
            ..Self::default()
        }
    }

    /// Delays what clients send; the order and the throughput stay.
    pub fn delay_requests(&self, by: Duration) {
        self.request_delay_ms
            .store(by.as_millis() as u64, Ordering::SeqCst);
    }

    /// Delays what the server sends.
    pub fn delay_replies(&self, by: Duration) {
        self.reply_delay_ms
            .store(by.as_millis() as u64, Ordering::SeqCst);
    }

    /// Lets nothing through in either direction, without a reset: both ends are half-open.
    ///
    /// What arrives meanwhile is kept and goes on when the fault ends, as in a network that
    /// sends again. New connections are accepted and hang.
    pub fn blackhole(&self, on: bool) {
        self.hold_requests(on);
        self.hold_replies(on);
    }

    /// As [`Faults::blackhole`], from the clients to the server only.
    pub fn hold_requests(&self, on: bool) {
        self.hold_requests.store(on, Ordering::SeqCst);
    }

    /// As [`Faults::blackhole`], from the server to the clients only: requests take effect.
    pub fn hold_replies(&self, on: bool) {
        self.hold_replies.store(on, Ordering::SeqCst);
    }

    /// Closes new connections at once; open ones go on.
    pub fn refuse(&self, on: bool) {
        self.refuse.store(on, Ordering::SeqCst);
    }

    /// How many new connections were closed at once.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::SeqCst)
    }

    /// How many pieces, of either direction, were delayed or held until now.
    pub fn late(&self) -> u64 {
        self.late.load(Ordering::SeqCst)
    }

    /// Drops the next piece that a server sends, on whichever connection it comes; the
    /// connection stays open. With one request in flight, a piece is its whole reply.
    pub fn swallow_next_reply(&self) {
        self.swallow_replies(1);
    }

    /// As [`Faults::swallow_next_reply`], for the next `count` pieces.
    pub fn swallow_replies(&self, count: u64) {
        self.swallow.fetch_add(count, Ordering::SeqCst);
    }

    /// How many pieces were dropped.
    pub fn swallowed(&self) -> u64 {
        self.swallowed.load(Ordering::SeqCst)
    }

    /// Sends `with` in place of each of the next `count` pieces of the server; the request has
    /// taken effect by then.
    pub fn replace_replies(&self, with: impl Into<Vec<u8>>, count: u64) {
        *self.replace.lock() = Some(Replacement {
            with: with.into(),
            left: count,
        });
    }

    /// How many pieces were replaced.
    pub fn replaced(&self) -> u64 {
        self.replaced.load(Ordering::SeqCst)
    }

    /// Resets the connection on which the n-th byte from a client arrives, after that byte.
    pub fn cut_requests_after(&self, bytes: u64) {
        self.request_budget.store(bytes as i64, Ordering::SeqCst);
    }

    /// Resets the connection on which the n-th byte from the server arrives, after that byte.
    pub fn cut_replies_after(&self, bytes: u64) {
        self.reply_budget.store(bytes as i64, Ordering::SeqCst);
    }

    /// How many connections were cut by a number of bytes.
    pub fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::SeqCst)
    }

    /// Ends all faults; the counts stay.
    pub fn heal(&self) {
        self.delay_requests(Duration::ZERO);
        self.delay_replies(Duration::ZERO);
        self.blackhole(false);
        self.refuse(false);
        self.swallow.store(0, Ordering::SeqCst);
        self.request_budget.store(-1, Ordering::SeqCst);
        self.reply_budget.store(-1, Ordering::SeqCst);
        *self.replace.lock() = None;
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        if shared.faults.refuse.load(Ordering::SeqCst) {
            shared.faults.refused.fetch_add(1, Ordering::SeqCst);
        } else {
            tokio::spawn(serve(client, shared.clone()));
        }
    }
}

async fn serve(client: TcpStream, shared: Arc<Shared>) {
    let mut cut = shared.cut.subscribe();
    cut.mark_unchanged();
    shared.opened.fetch_add(1, Ordering::SeqCst);
    shared.open.fetch_add(1, Ordering::SeqCst);
    let target = shared.target.lock().clone();
    if let Ok(server) = TcpStream::connect(target).await {
        let _ = client.set_nodelay(true);
        let _ = server.set_nodelay(true);
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        let ending = tokio::select! {
            ending = carry(from_client, &to_server, Way::Request, &shared) => ending,
            ending = carry(from_server, &to_client, Way::Reply, &shared) => ending,
            _ = cut.changed() => cut.borrow().how,
        };
        if ending == Ending::Reset {
            for half in [to_client, to_server] {
                // With no time to linger, and without the shutdown of a dropped half, closing a
                // socket resets its peer.
                let _ = half.as_ref().set_zero_linger();
                half.forget();
            }
        }
    }
    shared.open.fetch_sub(1, Ordering::SeqCst);
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Request,
    Reply,
}

/// Carries one direction until it ends; reading goes on while earlier pieces are delayed.
async fn carry(mut from: OwnedReadHalf, to: &OwnedWriteHalf, way: Way, shared: &Shared) -> Ending {
    let faults = &shared.faults;
    let (pieces, mut due) = mpsc::channel::<(Instant, Vec<u8>)>(1024);
    // It owns the sender, so that its end is the end of `due`.
    let read = async move {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            match from.read(&mut buffer).await {
                Ok(0) => return Ending::Close,
                Err(_) => return Ending::Reset,
                Ok(n) => {
                    let delay = match way {
                        Way::Request => &faults.request_delay_ms,
                        Way::Reply => &faults.reply_delay_ms,
                    };
                    let at = Instant::now() + Duration::from_millis(delay.load(Ordering::SeqCst));
                    let mut piece = buffer[..n].to_vec();
                    if way == Way::Reply && !faults.pass_reply(&mut piece) {
                        continue;
                    }
                    if pieces.send((at, piece)).await.is_err() {
                        return Ending::Close;
                    }
                }
            }
        }
    };
    let write = async {
        while let Some((at, piece)) = due.recv().await {
            let hold = match way {
                Way::Request => &faults.hold_requests,
                Way::Reply => &faults.hold_replies,
            };
            if at > Instant::now() || hold.load(Ordering::SeqCst) {
                faults.late.fetch_add(1, Ordering::SeqCst);
            }
            if at > Instant::now() {
                tokio::time::sleep_until(at).await;
            }
            while hold.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let (length, cut) = faults.spend(way, piece.len());
            if write_all(to, &piece[..length]).await.is_err() || cut {
                return Ending::Reset;
            }
        }
        Ending::Close
    };
    tokio::pin!(read, write);
    tokio::select! {
        ending = &mut write => ending,
        // What was read before the end still has to arrive.
        ending = &mut read => {
            write.await;
            ending
        }
    }
}

impl Faults {
    /// Whether this piece of a server goes on, after it was replaced if that was asked for.
    fn pass_reply(&self, piece: &mut Vec<u8>) -> bool {
        let swallows = self
            .swallow
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                left.checked_sub(1)
            });
        if swallows.is_ok() {
            self.swallowed.fetch_add(1, Ordering::SeqCst);
            return false;
        }
        let mut replace = self.replace.lock();
        if let Some(replacement) = replace.as_mut().filter(|replacement| replacement.left > 0) {
            replacement.left -= 1;
            piece.clone_from(&replacement.with);
            self.replaced.fetch_add(1, Ordering::SeqCst);
        }
        true
    }

    /// How many bytes of a piece may pass, and whether the connection ends after them.
    fn spend(&self, way: Way, length: usize) -> (usize, bool) {
        let budget = match way {
            Way::Request => &self.request_budget,
            Way::Reply => &self.reply_budget,
        };
        let before = budget.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| match left {
            ..0 => None,
            left if left <= length as i64 => Some(-1),
            left => Some(left - length as i64),
        });
        match before {
            Ok(left) if left <= length as i64 => {
                self.cuts.fetch_add(1, Ordering::SeqCst);
                (left as usize, true)
            }
            _ => (length, false),
        }
    }
}

async fn write_all(to: &OwnedWriteHalf, mut piece: &[u8]) -> io::Result<()> {
    while !piece.is_empty() {
        to.writable().await?;
        match to.try_write(piece) {
            Ok(n) => piece = &piece[n..],
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
            Err(why) => return Err(why),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::{io::AsyncWriteExt, time::timeout};

    const SOON: Duration = Duration::from_secs(10);

    async fn echo() -> (Proxy, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let target = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        let proxy = Proxy::start(target).await.unwrap();
        let client = TcpStream::connect(proxy.address()).await.unwrap();
        (proxy, client)
    }

    async fn answer(client: &mut TcpStream, request: &[u8]) -> io::Result<Vec<u8>> {
        client.write_all(request).await?;
        let mut reply = vec![0; 100];
        let n = timeout(SOON, client.read(&mut reply))
            .await
            .expect("an answer")?;
        reply.truncate(n);
        Ok(reply)
    }

    #[tokio::test]
    async fn it_carries_delays_swallows_and_replaces() {
        let (proxy, mut client) = echo().await;
        assert_eq!(answer(&mut client, b"one").await.unwrap(), b"one");
        let begin = Instant::now();
        proxy.faults().delay_replies(Duration::from_millis(80));
        assert_eq!(answer(&mut client, b"two").await.unwrap(), b"two");
        assert!(begin.elapsed() >= Duration::from_millis(80));
        assert_eq!(proxy.faults().late(), 1);
        proxy.faults().heal();
        proxy.faults().swallow_next_reply();
        client.write_all(b"lost").await.unwrap();
        while proxy.faults().swallowed() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(answer(&mut client, b"three").await.unwrap(), b"three");
        proxy.faults().replace_replies("-ERR", 1);
        assert_eq!(answer(&mut client, b"four").await.unwrap(), b"-ERR");
        assert_eq!(answer(&mut client, b"five").await.unwrap(), b"five");
    }

    #[tokio::test]
    async fn it_holds_cuts_resets_and_closes() {
        let (proxy, mut client) = echo().await;
        proxy.faults().blackhole(true);
        client.write_all(b"held").await.unwrap();
        let mut reply = [0; 4];
        let held = timeout(Duration::from_millis(50), client.read(&mut reply)).await;
        assert!(held.is_err());
        proxy.faults().heal();
        timeout(SOON, client.read_exact(&mut reply))
            .await
            .unwrap()
            .unwrap();
        proxy.faults().cut_replies_after(2);
        assert_eq!(answer(&mut client, b"cut").await.unwrap(), b"cu");
        assert!(answer(&mut client, b"gone").await.is_err());
        assert_eq!(proxy.faults().cuts(), 1);

        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(answer(&mut client, b"new").await.unwrap(), b"new");
        proxy.reset_all();
        let end = timeout(SOON, client.read(&mut reply)).await.unwrap();
        assert_eq!(end.unwrap_err().kind(), io::ErrorKind::ConnectionReset);

        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(answer(&mut client, b"new").await.unwrap(), b"new");
        drop(client);
        while proxy.open() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(proxy.opened(), 3);
    }
}
