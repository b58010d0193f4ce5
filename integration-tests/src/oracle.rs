//! A second opinion on a history: is it linearizable as a lock whose tokens grow?
//!
//! It shares no code with the [checker](crate::checker): the search is that of Wing and Gong with
//! Lowe's memory, from `todc-utils`. Taking whole holds out of a history leaves a history that is
//! as good, so it is looked at in windows of consecutive tokens, small enough for the search.

use todc_utils::{Action, History, Specification, WGLChecker};

use crate::{
    checker::{Excuse, Violation, by_key},
    history::Hold,
};

/// How many operations a window has: two for each hold.
const WINDOW: usize = 2000;

/// What two operations of a hold do.
#[derive(Clone, Debug)]
enum Step {
    Acquire { owner: u32, token: u64 },
    GiveUp { owner: u32 },
}

struct Lock;

impl Specification for Lock {
    /// Who holds it, and the last token.
    type State = (Option<u32>, u64);
    type Operation = Step;

    fn init() -> Self::State {
        (None, 0)
    }

    fn apply(step: &Step, (holder, last): &Self::State) -> (bool, Self::State) {
        match step {
            Step::Acquire { owner, token } => {
                (holder.is_none() && token > last, (Some(*owner), *token))
            }
            Step::GiveUp { owner } => (*holder == Some(*owner), (None, *last)),
        }
    }
}

/// Looks at every window of every key; gives how many windows there were, and those that cannot
/// be explained. Windows with an excuse in them are left out.
pub fn check(holds: &[Hold], excuses: &[Excuse]) -> (usize, Vec<Violation>) {
    let (mut windows, mut violations) = (0, Vec::new());
    for (key, mut holds) in by_key(holds) {
        holds.sort_by_key(|hold| (hold.token, hold.granted));
        // The holds of an owner that entered more than once are one.
        holds.dedup_by(|next, first| next.token == first.token && next.owner == first.owner);
        for window in split(&holds, excuses) {
            windows += 1;
            if !WGLChecker::<Lock>::is_linearizable(history(window)) {
                violations.push(Violation::NotLinearizable {
                    key,
                    from: window[0].token,
                    holds: window.len(),
                });
            }
        }
    }
    (windows, violations)
}

/// Windows of at most [`WINDOW`] operations, without the holds that touch an excuse.
fn split<'a, 'h>(holds: &'a [&'h Hold], excuses: &[Excuse]) -> Vec<&'a [&'h Hold]> {
    let excused = |hold: &Hold| {
        excuses
            .iter()
            .any(|excuse| hold.granted <= excuse.until && hold.held_until >= excuse.from)
    };
    holds
        .split(|hold| excused(hold))
        .flat_map(|good| good.chunks(WINDOW / 2))
        .collect()
}

fn history(window: &[&Hold]) -> History<Step> {
    // A moment, whether it is the end of an operation, and which: calls come first, so that what
    // happened at the same moment may be in either order.
    let mut moments = Vec::with_capacity(4 * window.len());
    for (place, hold) in window.iter().enumerate() {
        let owner = place as u32;
        let acquire = Step::Acquire {
            owner,
            token: hold.token,
        };
        let give_up = Step::GiveUp { owner };
        moments.push((hold.asked, false, 2 * place, acquire.clone()));
        moments.push((hold.granted, true, 2 * place, acquire));
        moments.push((hold.held_until, false, 2 * place + 1, give_up.clone()));
        // The search needs an end of everything: what has none ends last.
        moments.push((hold.over, true, 2 * place + 1, give_up));
    }
    moments.sort_by_key(|(at, is_end, ..)| (*at, *is_end));
    let actions = moments
        .into_iter()
        .map(|(_, is_end, process, step)| match is_end {
            false => (process, Action::Call(step)),
            true => (process, Action::Response(step)),
        })
        .collect();
    History::from_actions(actions)
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

    #[test]
    fn a_lock_is_linearizable_and_two_at_once_are_not() {
        let good = [
            hold("a", 1, [0, 10, 20, 25]),
            hold("b", 2, [1, 22, 30, u64::MAX]),
            hold("c", 3, [2, 35, 40, 41]),
        ];
        assert_eq!(check(&good, &[]), (1, vec![]));
        let mut bad = good.clone();
        bad[1].granted = 15;
        assert_eq!(check(&bad, &[]).1.len(), 1);
        let excuse = Excuse {
            from: 14,
            until: 15,
            why: "flushed".into(),
        };
        assert_eq!(check(&bad, &[excuse]).1, vec![]);
        let mut back = good;
        back[2].token = 2;
        back[2].owner = "d".into();
        assert_eq!(check(&back, &[]).1.len(), 1);
    }

    /// The largest window there is, with twenty who wait at any time.
    #[test]
    fn a_full_window_is_checked_in_time() {
        let many: Vec<Hold> = (0..1000)
            .map(|n: u64| {
                let granted = 100 + 10 * n;
                let asked = granted.saturating_sub(200);
                hold(
                    &n.to_string(),
                    n + 1,
                    [asked, granted, granted + 8, granted + 9],
                )
            })
            .collect();
        let start = std::time::Instant::now();
        assert_eq!(check(&many, &[]), (1, vec![]));
        assert!(start.elapsed().as_secs() < 60);
    }
}
