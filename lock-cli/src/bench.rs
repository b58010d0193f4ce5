//! `distlock bench`: stores side by side, next to the bare store.
//!
//! It has a command line of its own: where the other commands have one store, it has several, and
//! its `--json` names a file.

use clap::Parser;
use lock_bench::{Args, Bench, Error, ours};

use crate::{
    args,
    failure::{Failure, Kind},
    show,
};

/// The name of the command; it has to come first.
pub(crate) const NAME: &str = "bench";

/// Measure stores side by side: distlock, and the bare store on the same client library.
///
/// Without a store it measures the memory of a process and an SQLite file in a temporary folder.
/// Do not name a store that others depend on: locks are taken there as fast as it can. What the
/// figures mean is in docs/benchmarks.md.
#[derive(Debug, Parser)]
#[command(name = "distlock bench", max_term_width = 100)]
struct Options {
    #[command(flatten)]
    bench: Args,
}

/// Returns the exit code.
pub(crate) fn main() -> i32 {
    let base = args::exit_code_base();
    let after_name = std::env::args_os().skip(1);
    let options = match Options::try_parse_from(after_name) {
        Ok(options) => options,
        Err(why) => {
            let _ = why.print();
            return match why.use_stderr() {
                true => Kind::Usage.exit_code(base),
                // Help, asked for.
                false => 0,
            };
        }
    };
    match run(&options.bench) {
        Ok(()) => 0,
        Err(failure) => {
            failure.report(false, base);
            failure.kind().exit_code(base)
        }
    }
}

fn run(args: &Args) -> Result<(), Failure> {
    let bench = Bench::new(args, ours, Vec::new).map_err(failure)?;
    let outcome = bench.run().map_err(failure)?;
    if !outcome.is_written {
        show::print(&outcome.report.markdown());
    }
    Ok(())
}

fn failure(why: Error) -> Failure {
    let kind = match why {
        Error::Usage(_) | Error::Output { .. } => Kind::Usage,
        _ => Kind::StoreUnavailable,
    };
    Failure::new(kind, why.to_string())
}

/// What is said when options of other commands come before it.
pub(crate) fn misplaced() -> Failure {
    Failure::new(
        Kind::Usage,
        "`bench` has options of its own: `distlock bench [OPTIONS]`, see `distlock bench --help`",
    )
}
