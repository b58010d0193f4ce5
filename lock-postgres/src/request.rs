//! The requests that a batch is made of, and their answers, as the function of the schema has them.

use std::{sync::Arc, time::Duration};

use lock_core::{
    Asker, Attempt, Busy, Claim, FencingToken, Grant, HoldId, Holder, OwnerId, Release, Renewal,
    StoreError, Ttl,
};
use sqlx::{Row, postgres::PgRow};
use uuid::Uuid;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Acquire,
    Renew,
    Release,
    /// Ends any grant, or the one with this token.
    Force(Option<FencingToken>),
    /// The process of the waiters is alive.
    Beat,
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) verb: Verb,
    /// `None` for a beat.
    pub(crate) claim: Option<Claim>,
}

impl Request {
    pub(crate) fn new(verb: Verb, claim: Claim) -> Self {
        Self {
            verb,
            claim: Some(claim),
        }
    }

    pub(crate) fn beat() -> Self {
        Self {
            verb: Verb::Beat,
            claim: None,
        }
    }

    pub(crate) fn hold(&self) -> Option<HoldId> {
        self.claim.as_ref().map(|claim| claim.hold)
    }

    pub(crate) fn queues(&self) -> bool {
        self.verb == Verb::Acquire && self.claim.as_ref().is_some_and(|claim| claim.queue)
    }

    /// Batches of all processes lock rows in this order; a beat comes last.
    pub(crate) fn key(&self) -> (bool, &str) {
        match &self.claim {
            Some(claim) => (false, claim.key.as_str()),
            None => (true, ""),
        }
    }
}

/// The arguments of the function, one element for each request.
#[derive(Default)]
pub(crate) struct Columns<'a> {
    pub(crate) verbs: Vec<&'static str>,
    pub(crate) keys: Vec<&'a str>,
    pub(crate) owners: Vec<Uuid>,
    pub(crate) holds: Vec<Uuid>,
    pub(crate) ttls: Vec<Option<i64>>,
    pub(crate) labels: Vec<Option<&'a str>>,
    pub(crate) hosts: Vec<&'a str>,
    pub(crate) pids: Vec<i64>,
    /// Whether no other request has the same key.
    pub(crate) alone: Vec<bool>,
}

impl<'a> Columns<'a> {
    pub(crate) fn push(&mut self, request: &'a Request, min_ttl: Ttl) {
        let claim = request.claim.as_ref();
        self.verbs.push(match request.verb {
            Verb::Acquire if request.queues() => "queue",
            Verb::Acquire => "try",
            Verb::Renew => "renew",
            Verb::Release => "release",
            Verb::Force(_) => "force",
            Verb::Beat => "beat",
        });
        let key = claim.map_or("", |claim| claim.key.as_str());
        // They come sorted by key.
        let alone = self.keys.last().is_none_or(|last| *last != key);
        if let (false, Some(last)) = (alone, self.alone.last_mut()) {
            *last = false;
        }
        self.alone.push(alone);
        self.keys.push(key);
        self.owners.push(Uuid::from_u128(
            claim.map_or(0, |claim| claim.owner.as_u128()),
        ));
        self.holds.push(Uuid::from_u128(
            claim.map_or(0, |claim| claim.hold.as_u128()),
        ));
        self.ttls.push(match request.verb {
            Verb::Force(token) => token.map(|token| token.as_u64() as i64),
            _ => claim.map(|claim| claim.ttl.max(min_ttl).as_millis() as i64),
        });
        self.labels
            .push(claim.and_then(|claim| claim.asker.label()));
        self.hosts
            .push(claim.map_or("", |claim| claim.asker.host()));
        self.pids
            .push(claim.map_or(0, |claim| i64::from(claim.asker.pid())));
    }
}

/// An answer, and which waiters of this process it wakes.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) answer: Answer,
    pub(crate) wake: Vec<HoldId>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer {
    Attempt(Attempt),
    Renewal(Renewal),
    Release(Release),
    /// Nothing was done: somebody else has the lock's row locked.
    Locked,
    /// How many waiters of this process the queue has.
    Alive {
        waiting: usize,
    },
}

impl Reply {
    pub(crate) fn read(row: &PgRow, request: &Request, min_ttl: Ttl) -> Result<Self, sqlx::Error> {
        let ttl = request
            .claim
            .as_ref()
            .map_or(min_ttl, |claim| claim.ttl.max(min_ttl));
        let holds = || Ok::<_, sqlx::Error>(row.try_get::<Option<i32>, _>(2)?.unwrap_or(0) as u32);
        let answer = match row.try_get::<&str, _>(0)? {
            "granted" => Answer::Attempt(Attempt::Granted(Grant {
                token: token(row.try_get(1)?)?,
                ttl,
                holds: holds()?,
            })),
            "busy" => Answer::Attempt(Attempt::Busy(busy(row)?)),
            "renewed" => Answer::Renewal(Renewal::Renewed { ttl }),
            "gone" => Answer::Renewal(Renewal::Gone { taken_over: false }),
            "taken over" => Answer::Renewal(Renewal::Gone { taken_over: true }),
            "released" => Answer::Release(Release::Released { holds: holds()? }),
            "withdrawn" => Answer::Release(Release::Withdrawn),
            "not held" => Answer::Release(Release::NotHeld),
            "locked" => Answer::Locked,
            "alive" => Answer::Alive {
                waiting: row.try_get::<Option<i32>, _>(10)?.unwrap_or(0) as usize,
            },
            other => return Err(foreign(format!("the answer {other:?}"))),
        };
        let wake = row.try_get::<Option<Vec<Uuid>>, _>(11)?.unwrap_or_default();
        Ok(Self {
            answer,
            wake: wake.iter().map(hold_id).collect(),
        })
    }
}

fn busy(row: &PgRow) -> Result<Busy, sqlx::Error> {
    let holder = match row.try_get::<Option<Uuid>, _>(3)? {
        None => None,
        Some(owner) => Some(Holder {
            owner: OwnerId::from_u128(owner.as_u128()),
            asker: asker(row.try_get(4)?, row.try_get(5)?, row.try_get(6)?)?,
            token: token(row.try_get(1)?)?,
            holds: row.try_get::<Option<i32>, _>(2)?.unwrap_or(0) as u32,
            held_for: micros(row.try_get(7)?),
            remaining: micros(row.try_get(8)?),
        }),
    };
    Ok(Busy {
        holder,
        remaining: micros(row.try_get(8)?),
        position: row.try_get::<Option<i32>, _>(9)?.map(|place| place as u32),
        queued: row.try_get::<Option<i32>, _>(10)?.unwrap_or(0) as u32,
    })
}

pub(crate) fn hold_id(id: &Uuid) -> HoldId {
    HoldId::from_u128(id.as_u128())
}

pub(crate) fn micros(micros: Option<i64>) -> Duration {
    Duration::from_micros(micros.unwrap_or(0).max(0) as u64)
}

pub(crate) fn token(token: Option<i64>) -> Result<FencingToken, sqlx::Error> {
    token
        .and_then(|token| u64::try_from(token).ok())
        .and_then(FencingToken::new)
        .ok_or_else(|| foreign(format!("the token {token:?}")))
}

pub(crate) fn asker(
    label: Option<String>,
    host: Option<String>,
    pid: Option<i64>,
) -> Result<Arc<Asker>, sqlx::Error> {
    let pid = pid.and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0);
    match Asker::new(label, host.unwrap_or_default(), pid) {
        Ok(asker) => Ok(Arc::new(asker)),
        Err(why) => Err(foreign(format!("an asker: {why}"))),
    }
}

/// Something in the tables that this library does not write.
fn foreign(what: String) -> sqlx::Error {
    sqlx::Error::Decode(
        StoreError::permanent(format!(
            "the tables hold what distlock never writes: {what}"
        ))
        .into(),
    )
}
