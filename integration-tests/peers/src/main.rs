//! The benchmarks of every store, on private servers, with the libraries one could use instead.
//!
//! `cargo run --release -p peers -- --help` tells the options; they are those of
//! `distlock bench`. Each peer is used as its documentation shows, with its own settings, and the
//! same lease as distlock where it has one.

mod peers;
mod servers;
mod versions;

use std::process::ExitCode;

use clap::Parser;
use lock_bench::{Args, Bench, Error, WORKER, serve};

use servers::Servers;

/// Measure every store side by side, with the bare store and other libraries.
///
/// Without a store it starts a Redis, a Postgres and an etcd of its own, on loopback and in
/// temporary folders.
#[derive(Debug, Parser)]
#[command(name = "peers", max_term_width = 100)]
struct Options {
    #[command(flatten)]
    bench: Args,
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(WORKER) {
        return ExitCode::from(serve(peers::roster) as u8);
    }
    let options = Options::parse();
    match run(&options.bench) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("peers: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<(), Error> {
    let mut servers = None;
    let bench = Bench::new(args, peers::roster, || {
        servers.insert(Servers::start()).urls()
    })?;
    let outcome = bench.with_versions(versions::of_peers()).run()?;
    if !outcome.is_written {
        println!("{}", outcome.report.markdown());
    }
    Ok(())
}
