//! Which fault comes when: everything follows from one seed.

use std::time::Duration;

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};
use serde::{Deserialize, Serialize};

use super::faults::Kind;

/// A fault that is to come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Planned {
    /// What happens.
    pub kind: Kind,
    /// To which client, where it is about one.
    pub client: usize,
    /// To all clients at once, where that makes a difference.
    pub everywhere: bool,
    /// How many milliseconds of calm come before it.
    pub after: u64,
    /// How many milliseconds it lasts, where it lasts.
    pub lasts: u64,
    /// A number for what else is to be chosen.
    pub dice: u64,
}

impl Planned {
    /// How long it lasts.
    pub fn duration(&self) -> Duration {
        Duration::from_millis(self.lasts)
    }
}

/// The faults of a run, without end: every kind once in each round, in another order.
#[derive(Debug)]
pub struct Schedule {
    random: StdRng,
    clients: usize,
    kinds: Vec<Kind>,
    round: Vec<Kind>,
}

impl Schedule {
    /// The schedule of a seed.
    pub fn new(seed: u64, clients: usize, kinds: Vec<Kind>) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            clients,
            kinds,
            round: Vec::new(),
        }
    }
}

impl Iterator for Schedule {
    type Item = Planned;

    fn next(&mut self) -> Option<Planned> {
        if self.round.is_empty() {
            self.round = self.kinds.clone();
            self.round.shuffle(&mut self.random);
        }
        Some(Planned {
            kind: self.round.pop()?,
            client: self.random.random_range(0..self.clients),
            everywhere: self.random.random_bool(0.5),
            after: self.random.random_range(50..300),
            lasts: self.random.random_range(100..1500),
            dice: self.random.random(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign::StoreKind;

    #[test]
    fn a_seed_is_a_schedule() {
        let kinds = Kind::of(StoreKind::Redis);
        let schedule =
            |seed| -> Vec<_> { Schedule::new(seed, 6, kinds.clone()).take(100).collect() };
        assert_eq!(schedule(1), schedule(1));
        assert_ne!(schedule(1), schedule(2));
        let first: Vec<_> = schedule(3).into_iter().map(|fault| fault.kind).collect();
        for kind in kinds {
            assert!(first[..Kind::of(StoreKind::Redis).len()].contains(&kind));
        }
    }
}
