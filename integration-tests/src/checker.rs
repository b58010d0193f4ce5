//! Checks a history of holds, and the writes that were made under them.
//!
//! * **No overlap.** A hold is definite from when the acquire has returned until shortly before
//!   the guard said for the last time that it is held. Definite holds of one key by different
//!   owners do not overlap.
//! * **Tokens grow.** A grant whose acquire was called after another grant of that key was
//!   returned has the larger token. No token of a key has two owners.
//! * **Writes are in order.** What the resource has accepted came in the order of the tokens, one
//!   owner for each, and none overwrote what it had not seen: each adds exactly one.
//!
//! What a store does not promise, such as exclusion after it has lost its data, is [`Excuse`]d,
//! with the time and the cause; it is counted all the same. Tokens and writes have no excuse.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use crate::{fenced::Written, history::Hold};

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Violation {
    /// Two owners held a key at once, both for certain.
    Overlap {
        /// Who had it first.
        first: Hold,
        /// Who had it as well.
        second: Hold,
    },
    /// A later grant has a token that is not larger.
    TokenBack {
        /// The grant with the largest token of those before.
        earlier: Hold,
        /// The later grant.
        later: Hold,
    },
    /// A token was granted to two owners.
    TokenTwice {
        /// One of them.
        first: Hold,
        /// The other.
        second: Hold,
    },
    /// The resource accepted a write that is out of order.
    WriteBack {
        /// The key.
        key: String,
        /// The largest token accepted before.
        after: u64,
        /// The token that was accepted.
        token: u64,
    },
    /// The resource accepted a token from two owners.
    WriteTwice {
        /// The key.
        key: String,
        /// The token.
        token: u64,
    },
    /// A write that overwrote what its writer had not seen.
    WriteLost {
        /// The key.
        key: String,
        /// The value before.
        before: u64,
        /// The value written.
        value: u64,
    },
    /// A key that nobody could get when everything was well again.
    Stuck {
        /// The key.
        key: u32,
        /// For how long nobody got it, in milliseconds.
        millis: u64,
    },
    /// Acquires that never returned.
    Unanswered {
        /// How many.
        count: u64,
    },
    /// A window that the second oracle cannot explain.
    NotLinearizable {
        /// The key.
        key: u32,
        /// The first token of the window.
        from: u64,
        /// How many holds are in the window.
        holds: usize,
    },
}

/// A time in which overlaps have a cause that the guarantees name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Excuse {
    /// From when.
    pub from: u64,
    /// Until when.
    pub until: u64,
    /// The cause.
    pub why: String,
}

/// What came out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Findings {
    /// What must not be.
    pub violations: Vec<Violation>,
    /// How often each cause explains an overlap.
    pub excused: BTreeMap<String, u64>,
}

/// Checks the holds of a run.
pub fn holds(holds: &[Hold], excuses: &[Excuse]) -> Findings {
    let mut findings = Findings::default();
    for holds in by_key(holds).values_mut() {
        overlaps(holds, excuses, &mut findings);
        tokens(holds, &mut findings.violations);
    }
    findings
}

/// Checks the writes of a run, in the order in which the resource accepted them.
pub fn writes(writes: &[Written]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut last = HashMap::<&str, &Written>::new();
    for write in writes {
        let key = || write.key.clone();
        let before = last.insert(&write.key, write);
        let value = before.map_or(0, |before| before.value);
        if let Some(before) = before {
            if write.token < before.token {
                violations.push(Violation::WriteBack {
                    key: key(),
                    after: before.token,
                    token: write.token,
                });
            } else if write.token == before.token && write.owner != before.owner {
                violations.push(Violation::WriteTwice {
                    key: key(),
                    token: write.token,
                });
            }
        }
        if write.value != value + 1 {
            violations.push(Violation::WriteLost {
                key: key(),
                before: value,
                value: write.value,
            });
        }
    }
    violations
}

/// The holds of each key.
pub fn by_key(holds: &[Hold]) -> BTreeMap<u32, Vec<&Hold>> {
    let mut keys = BTreeMap::<u32, Vec<&Hold>>::new();
    for hold in holds {
        keys.entry(hold.key).or_default().push(hold);
    }
    keys
}

fn overlaps(holds: &mut [&Hold], excuses: &[Excuse], findings: &mut Findings) {
    holds.sort_by_key(|hold| hold.granted);
    let mut longest: Option<&Hold> = None;
    for hold in holds.iter() {
        if let Some(first) = longest
            && hold.granted < first.held_until
            && hold.granted < hold.held_until
            && hold.owner != first.owner
        {
            let excuse = excuses
                .iter()
                .find(|excuse| (excuse.from..=excuse.until).contains(&hold.granted));
            match excuse {
                Some(excuse) => *findings.excused.entry(excuse.why.clone()).or_default() += 1,
                None => findings.violations.push(Violation::Overlap {
                    first: first.clone(),
                    second: (*hold).clone(),
                }),
            }
        }
        if longest.is_none_or(|first| first.held_until < hold.held_until) {
            longest = Some(hold);
        }
    }
}

fn tokens(holds: &mut [&Hold], violations: &mut Vec<Violation>) {
    let mut owners = HashMap::<u64, &Hold>::new();
    for hold in holds.iter() {
        let first = owners.entry(hold.token).or_insert(hold);
        if first.owner != hold.owner {
            violations.push(Violation::TokenTwice {
                first: (*first).clone(),
                second: (*hold).clone(),
            });
        }
    }

    // Along with the acquires as they were called, the grants that had returned by then.
    let mut returned = holds.to_vec();
    returned.sort_by_key(|hold| hold.granted);
    holds.sort_by_key(|hold| hold.asked);
    let mut returned = returned.into_iter().peekable();
    let mut largest: Option<&Hold> = None;
    for later in holds.iter() {
        while let Some(earlier) = returned.next_if(|earlier| earlier.granted < later.asked) {
            if largest.is_none_or(|largest| largest.token < earlier.token) {
                largest = Some(earlier);
            }
        }
        if let Some(earlier) = largest
            && later.token <= earlier.token
            && later.owner != earlier.owner
        {
            violations.push(Violation::TokenBack {
                earlier: earlier.clone(),
                later: (*later).clone(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(owner: &str, token: u64, times: [u64; 4]) -> Hold {
        let [asked, granted, held_until, over] = times;
        Hold {
            key: 1,
            owner: owner.into(),
            token,
            process: 0,
            asked,
            granted,
            held_until,
            over,
        }
    }

    fn written(owner: &str, token: u64, value: u64) -> Written {
        Written {
            key: "k".into(),
            token,
            owner: owner.into(),
            value,
        }
    }

    #[test]
    fn a_good_history_is_good() {
        let good = [
            hold("a", 1, [0, 10, 20, 25]),
            hold("b", 2, [1, 20, 30, u64::MAX]),
            // Lost at once: nothing definite.
            hold("c", 3, [2, 25, 25, u64::MAX]),
            // Entered twice.
            hold("d", 4, [26, 40, 60, 61]),
            hold("d", 4, [41, 42, 50, 51]),
        ];
        assert_eq!(holds(&good, &[]), Findings::default());
    }

    #[test]
    fn overlaps_are_found_and_excused() {
        let bad = [
            hold("a", 1, [0, 10, 30, 31]),
            hold("b", 2, [0, 20, 25, 26]),
            hold("c", 3, [0, 29, 40, 41]),
        ];
        assert_eq!(holds(&bad, &[]).violations.len(), 2);
        let excuse = Excuse {
            from: 15,
            until: 22,
            why: "flushed".into(),
        };
        let findings = holds(&bad, &[excuse]);
        assert_eq!(findings.violations.len(), 1);
        assert_eq!(findings.excused["flushed"], 1);
    }

    #[test]
    fn tokens_that_do_not_grow_are_found() {
        let back = [
            hold("a", 5, [0, 10, 20, 21]),
            hold("b", 4, [22, 30, 40, 41]),
        ];
        assert!(matches!(
            holds(&back, &[]).violations[..],
            [Violation::TokenBack { .. }]
        ));
        // Asked for while the first was on its way: the order is not known.
        let open = [hold("a", 5, [0, 10, 20, 21]), hold("b", 4, [9, 30, 40, 41])];
        assert_eq!(holds(&open, &[]), Findings::default());
        let twice = [hold("a", 5, [0, 10, 20, 21]), hold("b", 5, [9, 30, 40, 41])];
        assert!(matches!(
            holds(&twice, &[]).violations[..],
            [Violation::TokenTwice { .. }]
        ));
    }

    #[test]
    fn writes_out_of_order_are_found() {
        let good = [written("a", 1, 1), written("a", 1, 2), written("b", 2, 3)];
        assert_eq!(writes(&good), []);
        let back = [written("b", 2, 1), written("a", 1, 2)];
        assert!(matches!(writes(&back)[..], [Violation::WriteBack { .. }]));
        let twice = [written("a", 2, 1), written("b", 2, 2)];
        assert!(matches!(writes(&twice)[..], [Violation::WriteTwice { .. }]));
        let lost = [written("a", 1, 1), written("b", 2, 1)];
        assert!(matches!(writes(&lost)[..], [Violation::WriteLost { .. }]));
    }
}
