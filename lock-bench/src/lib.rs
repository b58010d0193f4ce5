//! Measures the stores of distlock side by side, next to the bare store and to other libraries.
//!
//! A [`Contender`] opens [`Locks`] on a [`Target`]; the scenarios take locks from them and note
//! what it cost, contender after contender in each round, so that a slow minute of the machine
//! meets all of them. The result is a [`Report`]: records for scripts, a page and tables for
//! people.
//!
//! Two programs use it: `distlock bench`, and the crate `peers`, which adds other libraries and
//! starts private servers.
//!
//! | module | what it is |
//! | --- | --- |
//! | `contender`, `ours`, `floor` | who is measured |
//! | `probe` | what the store tells: its version, the requests it has answered |
//! | `scenario` | what is done with the locks |
//! | `clock`, `statistics` | times, and what is made of them |
//! | `worker` | the same in a process of its own |
//! | `record`, `report` | what comes out |

mod args;
mod bench;
mod clock;
mod contender;
mod error;
mod floor;
mod ours;
mod plan;
mod probe;
mod record;
mod report;
mod scenario;
mod statistics;
mod worker;

pub use args::Args;
pub use bench::{Bench, Outcome, Outputs};
pub use contender::{Contender, Features, Held, Kind, Locks, Roster, Target, ours};
pub use error::{Error, Result};
pub use plan::{Plan, Scenario};
pub use record::{Metric, Record};
pub use report::{Distribution, FeatureRow, Gap, Report};
pub use statistics::{median, percentile};
pub use worker::{WORKER, serve};
