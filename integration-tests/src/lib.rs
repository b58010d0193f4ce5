//! What the tests of the stores share: private servers, faults, and checks that can fail.
//!
//! | module | what it is |
//! | --- | --- |
//! | [`servers`] | private servers: start, stop, kill, pause, restart, with and without their data |
//! | [`proxy`] | a network that delays, drops, resets, swallows and cuts, one way or both |
//! | [`process`], [`taker`] | client processes that are driven over a pipe, paused and killed |
//! | [`clock`] | a wall clock that a test moves while a server runs on it |
//! | [`fenced`] | a resource in a process of its own that checks fencing tokens |
//! | [`protected`] | data behind the fences of the store crates |
//! | [`history`] | what clients did, and when, as they saw it |
//! | [`checker`] | no two hold at once, tokens grow, everything is accounted for |
//! | [`oracle`] | a second opinion that shares nothing with the first: linearizability |
//! | [`model`] | random histories, on a store and on the model |
//! | [`sabotage`] | planted bugs, to show that all this finds them |
//! | [`campaign`] | all of it at once, for as long as wanted, from one seed |

pub mod campaign;
pub mod checker;
pub mod clock;
pub mod fenced;
pub mod history;
pub mod model;
pub mod oracle;
pub mod process;
pub mod protected;
pub mod proxy;
pub mod sabotage;
pub mod servers;
pub mod taker;
