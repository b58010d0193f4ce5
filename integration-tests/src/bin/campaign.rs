//! Tries to break a store: faults without end on one side, checks of everything on the other.
//!
//! ```text
//! campaign --store redis --minutes 5 --seed 1
//! ```
//!
//! Exit codes: 0 when everything held, 1 when something did not, 3 when the run is void because
//! it could not have shown it.

use std::{env, error::Error, path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use integration_tests::{
    campaign::{self, ClientOptions, Options},
    fenced::{self, Leniency},
};

#[derive(Parser)]
#[command(
    about = "Tries to break a store",
    args_conflicts_with_subcommands = true
)]
struct Arguments {
    #[command(subcommand)]
    part: Option<Part>,
    #[command(flatten)]
    options: Option<Options>,
}

/// The parts that the campaign starts as processes of their own.
#[derive(Subcommand)]
#[command(rename_all = "lowercase")]
enum Part {
    /// A client process
    #[command(hide = true)]
    Client(ClientOptions),
    /// The fenced resource
    #[command(hide = true)]
    Resource {
        #[arg(long)]
        log: PathBuf,
        #[arg(long, value_enum, default_value_t = Leniency::None)]
        leniency: Leniency,
    },
}

fn main() -> Result<ExitCode, Box<dyn Error + Send + Sync>> {
    match Arguments::parse() {
        Arguments {
            part: Some(Part::Client(options)),
            ..
        } => {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(campaign::run_client(options))?;
            Ok(ExitCode::SUCCESS)
        }
        Arguments {
            part: Some(Part::Resource { log, leniency }),
            ..
        } => {
            fenced::serve(&log, leniency)?;
            Ok(ExitCode::SUCCESS)
        }
        Arguments {
            options: Some(options),
            ..
        } => {
            let program = env::current_exe()?;
            let runtime = tokio::runtime::Runtime::new()?;
            let report = runtime.block_on(campaign::run(options, &program));
            println!("{report}");
            Ok(report.verdict.exit_code().into())
        }
        _ => Err("--store is missing; see --help".into()),
    }
}
