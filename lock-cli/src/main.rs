//! The `distlock` program: run a command under a distributed lock, and look after locks from a
//! shell.

#[cfg(not(unix))]
compile_error!("the distlock program needs process groups and signals, so a Unix");

mod args;
#[cfg(feature = "bench")]
mod bench;
mod doctor;
mod failure;
mod group;
mod job;
mod keeper;
mod nested;
#[cfg(any(feature = "serve", feature = "watch"))]
mod observe;
mod run;
#[cfg(feature = "serve")]
mod serve;
mod show;
mod signals;
mod terminal;
mod verbs;
mod waiting;
#[cfg(feature = "watch")]
mod watch;

use std::{env, io, process};

use clap::{CommandFactory, Parser};

use args::{Args, Command};
use failure::{Failure, Kind};

fn main() {
    let mut args = env::args_os().skip(1);
    let code = match args.next().as_ref().and_then(|arg| arg.to_str()) {
        Some(keeper::NAME) => keeper::main(),
        Some(terminal::TAKE) => terminal::take(args),
        #[cfg(feature = "bench")]
        Some(lock_bench::WORKER) => lock_bench::serve(lock_bench::ours),
        #[cfg(feature = "bench")]
        Some(bench::NAME) => bench::main(),
        _ => program(),
    };
    process::exit(code)
}

/// Returns the exit code.
fn program() -> i32 {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(why) => return args::refuse(&why),
    };
    let (json, base) = (args.global.json, args.global.exit_code_base);
    match dispatch(args) {
        Ok(code) => code,
        Err(failure) => {
            failure.report(json, base);
            failure.kind().exit_code(base)
        }
    }
}

fn dispatch(args: Args) -> Result<i32, Failure> {
    let global = args.global;
    match args.command {
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Args::command(), "distlock", &mut io::stdout());
            Ok(0)
        }
        Command::Man { command } => verbs::man(command.as_deref()),
        Command::Run(run) => {
            terminal::allow_changes_from_the_background();
            block_on(run::run(run, global))
        }
        Command::Try(claim) => block_on(verbs::try_once(claim, global)),
        Command::Inspect { key } => block_on(verbs::inspect(key, global)),
        Command::List { prefix } => block_on(verbs::list(prefix, global)),
        #[cfg(feature = "watch")]
        Command::Watch { prefix } => block_on(watch::watch(prefix, global)),
        #[cfg(feature = "serve")]
        Command::Serve(options) => block_on(serve::serve(options, global)),
        Command::Doctor { strict } => block_on(doctor::doctor(strict, global)),
        #[cfg(feature = "bench")]
        Command::Bench => Err(bench::misplaced()),
        Command::Release { key, token, .. } => block_on(verbs::release(key, token, global)),
    }
}

fn block_on(work: impl Future<Output = Result<i32, Failure>>) -> Result<i32, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|why| Failure::new(Kind::Internal, format!("cannot start: {why}")))?
        .block_on(work)
}
