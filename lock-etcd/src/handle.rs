//! A handle on the cluster, what all handles of a store share, and what they do with leases.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use etcd_client::{GetOptions, LeaseGrantOptions};
use futures_util::stream::{self, StreamExt};
use lock_core::{Capabilities, Clock, Moment, StoreError, SystemClock, Ttl};
use parking_lot::Mutex;
use rand::random_range;
use tokio::{
    sync::mpsc::{Receiver, Sender, channel},
    time::{sleep, timeout},
};

use crate::{
    claims::Claims,
    config::Options,
    connection::{Cluster, Connection},
    error::{Cure, Failure},
    health,
    keepalive::{Alive, KeepAlive},
    lease::{Lease, Leases, length_for, used_for},
    record::{Id, Name, Names},
    upkeep::Upkeep,
    view,
    wakeup::Wakeup,
};

/// What all handles of a store share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) names: Names,
    pub(crate) leases: Leases,
    pub(crate) claims: Claims,
    pub(crate) capabilities: Capabilities,
    handles: AtomicU64,
}

impl Shared {
    /// Forgets the claims of a handle that are in the queue. Their leases, but not those that
    /// another process has made for the same claim.
    pub(crate) fn take_queued(&self, handle: u64) -> Vec<i64> {
        let queued = self.claims.take_queued(handle).into_iter();
        let leases = queued.map(|known| known.lease);
        leases
            .filter(|lease| self.leases.used(*lease).is_some())
            .collect()
    }

    /// What is granted to who asks for `ttl`.
    pub(crate) fn granted(&self, ttl: Ttl) -> Ttl {
        let seconds = ttl.as_millis().div_ceil(1000);
        let whole = Ttl::from_millis(seconds * 1000).unwrap_or(Ttl::MAX);
        whole.max(self.capabilities.min_ttl)
    }
}

#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) connection: Arc<Connection>,
    pub(crate) wakeup: Wakeup,
    pub(crate) shared: Arc<Shared>,
    pub(crate) number: u64,
    pub(crate) renewals: Arc<KeepAlive>,
    upkeep: Upkeep,
    /// The one that keeps the unused leases.
    is_main: bool,
    closed: AtomicBool,
    /// Those who revoke leases in the background have a sender each.
    revoking: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl Handle {
    pub(crate) async fn open(cluster: Cluster, options: &Options) -> Result<Arc<Self>, StoreError> {
        let connection = Connection::new(Arc::new(cluster));
        let capabilities = health::examine(&connection).await?;
        let shared = Shared {
            names: Names::new(&options.prefix),
            leases: Leases::new(options.lease_pool),
            claims: Claims::default(),
            capabilities,
            handles: AtomicU64::new(0),
        };
        Ok(Self::assemble(connection, Arc::new(shared), true))
    }

    fn assemble(connection: Connection, shared: Arc<Shared>, is_main: bool) -> Arc<Self> {
        let connection = Arc::new(connection);
        Arc::new(Self {
            wakeup: Wakeup::new(connection.clone()),
            renewals: Arc::new(KeepAlive::new(connection.clone())),
            number: shared.handles.fetch_add(1, Ordering::Relaxed),
            upkeep: Upkeep::default(),
            connection,
            shared,
            is_main,
            closed: AtomicBool::new(false),
            revoking: Mutex::new(Some(channel(1))),
        })
    }

    /// Another handle, with connections of its own.
    pub(crate) fn another(&self) -> Result<Arc<Self>, StoreError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(StoreError::closed());
        }
        let connection = Connection::new(self.connection.cluster().clone());
        Ok(Self::assemble(connection, self.shared.clone(), false))
    }

    /// Keeps a lease alive, and notes it.
    pub(crate) async fn keep_alive(&self, lease: i64) -> Result<Alive, StoreError> {
        let sent = SystemClock.now();
        let alive = self.renewals.renew(lease).await?;
        if let Alive::For(life) = alive {
            self.shared.leases.renewed(lease, sent, life);
        }
        Ok(alive)
    }

    /// A lease for a lock with this ttl: an unused one, or a new one.
    pub(crate) async fn lease(&self, ttl: Ttl) -> Result<Lease, StoreError> {
        if self.connection.is_closed() {
            return Err(StoreError::closed());
        }
        self.start_upkeep();
        let seconds = length_for(ttl.as_millis() / 1000);
        if let Some(lease) = self.shared.leases.take(seconds) {
            return Ok(lease);
        }
        let lease = grant(&self.connection, seconds).await?;
        self.shared.leases.add(lease);
        Ok(lease)
    }

    fn start_upkeep(&self) {
        if self.is_main && !self.closed.load(Ordering::Acquire) {
            let parts = (
                self.connection.clone(),
                self.renewals.clone(),
                self.shared.clone(),
            );
            self.upkeep.start(self.number, parts);
        }
    }

    /// No key has the lease any more. It is used again, unless a request may still be under way
    /// that would give it to one.
    pub(crate) fn give_back(&self, lease: i64, stray: bool) {
        let due = self
            .shared
            .leases
            .used(lease)
            .map_or(Moment::NEVER, |lease| lease.due());
        if stray || !self.shared.leases.put_back(lease) {
            self.revoke_later(lease);
        } else {
            self.upkeep.wake_by(due);
        }
    }

    /// A key was put on a longer lease and keeps the name of this one, which so is not used again.
    pub(crate) fn left_behind(&self, lease: i64) {
        // Another process may use its own for something else by now.
        if self.shared.leases.used(lease).is_some() {
            self.revoke_later(lease);
        }
    }

    /// A keep-alive was answered by a member that had not heard of the last election: the next
    /// one is to go elsewhere.
    pub(crate) async fn doubt(&self) {
        self.renewals.reopen();
        sleep(Duration::from_millis(10)).await;
    }

    /// Revokes a lease in the background; what does not succeed ends by itself.
    pub(crate) fn revoke_later(&self, lease: i64) {
        self.shared.leases.forget(lease);
        if lease != 0 {
            let connection = self.connection.clone();
            let revoking = self
                .revoking
                .lock()
                .as_ref()
                .map(|(sender, _)| sender.clone());
            tokio::spawn(async move {
                let _revoking = revoking;
                give_up(&connection, vec![lease]).await;
            });
        }
    }

    /// An unused lease was not there any more: whatever has ended it may have ended the others.
    pub(crate) fn distrust_leases(&self, lease: i64) {
        self.shared.leases.forget(lease);
        for lease in self.shared.leases.take_unused() {
            self.revoke_later(lease);
        }
    }

    /// Revokes a lease, with the keys that have it.
    pub(crate) async fn revoke(&self, lease: i64) -> Result<(), StoreError> {
        self.shared.leases.forget(lease);
        revoke(&self.connection, lease).await
    }

    /// How long a lease still runs at most, less what it is longer than the ttl.
    pub(crate) async fn remaining(&self, lease: i64) -> Duration {
        let ours = self.shared.leases.used(lease);
        let left = ours.map(|lease| lease.remaining(SystemClock.now()));
        if let Some(left) = left.filter(|left| !left.is_zero()) {
            return left;
        }
        let asked = self.connection.call(|client| {
            let mut client = client.lease_client();
            async move { client.time_to_live(lease, None).await }
        });
        match asked.await {
            Ok(left) if left.ttl() >= 0 => {
                let whole = u64::try_from(left.granted_ttl()).unwrap_or(0);
                // It is told in whole seconds, cut off.
                let left = u64::try_from(left.ttl()).unwrap_or(0) + 1;
                Duration::from_secs(left.min(used_for(whole)).max(1))
            }
            // Over, but its keys are still there; or unknown.
            _ => Duration::from_millis(200),
        }
    }

    /// How many keys of the lock were created up to `created`.
    pub(crate) async fn position(&self, name: &Name, created: i64) -> Result<u32, StoreError> {
        if let Some(position) = self.wakeup.position(name.lock(), created) {
            return Ok(position);
        }
        let ahead = self.connection.call(|client| {
            let mut kv = client.kv_client();
            let lock = name.lock().to_owned();
            let options = GetOptions::new()
                .with_prefix()
                .with_keys_only()
                .with_max_create_revision(created);
            async move { kv.get(lock, Some(options)).await }
        });
        Ok(ahead.await?.kvs().len() as u32)
    }

    /// Somebody waits for a claim, until this is dropped.
    pub(crate) fn interest<'a>(&'a self, id: &'a Id) -> impl Drop + 'a {
        struct Interest<'a>(&'a Claims, &'a Id);
        impl Drop for Interest<'_> {
            fn drop(&mut self) {
                self.0.waits(self.1, false);
            }
        }
        self.shared.claims.waits(id, true);
        let known = self.shared.claims.find(id);
        let lease = known.and_then(|known| self.shared.leases.used(known.lease));
        if let Some(lease) = lease {
            self.upkeep.wake_by(lease.due());
        }
        Interest(&self.shared.claims, id)
    }

    /// Ends what runs in the background and gives unused leases back. Locks stay held.
    pub(crate) async fn close(&self) {
        if self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        self.upkeep.stop();
        self.wakeup.close();
        let mut leases = self.shared.take_queued(self.number);
        if self.is_main {
            leases.extend(self.shared.leases.close());
        }
        let revoking = self.revoking.lock().take();
        let revoked = async {
            give_up(&self.connection, leases).await;
            if let Some((sender, mut others)) = revoking {
                drop(sender);
                others.recv().await;
            }
        };
        let limit = self.connection.cluster().operation_timeout();
        if timeout(limit, revoked).await.is_err() {
            tracing::debug!("some leases were not revoked; they end by themselves");
        }
        self.renewals.close();
        self.connection.close();
    }
}

/// A new lease. Its id is chosen here, so that a repeat of the request makes no second one.
pub(crate) async fn grant(connection: &Connection, seconds: u64) -> Result<Lease, StoreError> {
    let id = random_range(1..i64::MAX);
    let renewed = SystemClock.now();
    let granted = connection.call(|client| {
        let mut client = client.lease_client();
        let options = LeaseGrantOptions::new().with_id(id);
        let ttl = i64::try_from(seconds).unwrap_or(i64::MAX);
        async move { client.grant(ttl, Some(options)).await }
    });
    let (seconds, term) = match granted.await {
        Ok(granted) => (
            u64::try_from(granted.ttl()).unwrap_or(0),
            view::term(granted.header()),
        ),
        // By a copy of the request that was not answered.
        Err(failure) if failure.error.to_string().contains("lease already exists") => (seconds, 0),
        Err(failure) => return Err(failure.error),
    };
    Ok(Lease {
        id,
        seconds,
        renewed,
        term,
    })
}

pub(crate) async fn revoke(connection: &Connection, lease: i64) -> Result<(), StoreError> {
    let revoked = connection.call(|client| {
        let mut client = client.lease_client();
        async move { client.revoke(lease).await }
    });
    match revoked.await {
        Ok(_) => Ok(()),
        Err(Failure {
            cure: Cure::Lease, ..
        }) => Ok(()),
        Err(failure) => Err(failure.error),
    }
}

/// Revokes many leases; what does not succeed ends by itself.
pub(crate) async fn give_up(connection: &Connection, leases: Vec<i64>) {
    let revokes = stream::iter(leases).map(|lease| revoke(connection, lease));
    let mut revokes = revokes.buffer_unordered(32);
    while let Some(revoked) = revokes.next().await {
        if let Err(why) = revoked {
            tracing::debug!(%why, "a lease was not revoked; it ends by itself");
        }
    }
}
