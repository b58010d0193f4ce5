//! What goes along with a write, so that the resource can refuse it.

use serde::{Deserialize, Serialize};

use crate::{FencingToken, LockGuard, LockKey, OwnerId};

/// Under which lock, which grant of it and by which owner something is written.
///
/// [`LockGuard::ticket`] makes it. It can be sent to the service that does the work, if that is
/// trusted: whoever knows the owner can enter the lock.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ticket {
    /// The lock.
    pub key: LockKey,
    /// The fencing token of the grant.
    pub token: FencingToken,
    /// Who was granted it.
    pub owner: OwnerId,
}

/// The ticket is not the newest; whoever brought it has lost the lock.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("token {token} of lock {key} is refused: {newest} has passed{}", if .token == .newest { ", of another owner" } else { "" })]
#[non_exhaustive]
pub struct Fenced {
    /// The lock.
    pub key: LockKey,
    /// The token that was refused.
    pub token: FencingToken,
    /// The newest one that has passed.
    pub newest: FencingToken,
}

impl Ticket {
    /// Whether it may pass where the last one to pass had this token and this owner: a newer
    /// token may, and the same one of the same owner.
    ///
    /// # Errors
    ///
    /// [`Fenced`] when it may not.
    pub fn check(&self, newest: FencingToken, owner: OwnerId) -> Result<(), Fenced> {
        if self.token > newest || self.token == newest && self.owner == owner {
            return Ok(());
        }
        Err(Fenced::new(self, newest))
    }
}

impl Fenced {
    /// The refusal of a ticket where `newest` has passed.
    pub fn new(ticket: &Ticket, newest: FencingToken) -> Self {
        Self {
            key: ticket.key.clone(),
            token: ticket.token,
            newest,
        }
    }
}

impl LockGuard {
    /// What a resource needs to refuse late writes: hand it along with every one.
    pub fn ticket(&self) -> Ticket {
        Ticket {
            key: self.key().clone(),
            token: self.token(),
            owner: self.owner(),
        }
    }
}
