//! The command line.

use std::{ffi::OsString, time::Duration};

use clap::{Parser, Subcommand, ValueEnum};
use distlock::{FencingToken, LockKey, OwnerId};

use crate::failure::{Failure, Kind};

/// Run a command under a distributed lock, and look after locks.
///
/// Without a store URL the locks are in one SQLite file of this user, for the processes of this
/// machine; nothing has to be installed.
#[derive(Debug, Parser)]
#[command(name = "distlock", version, after_long_help = EXIT_CODES, max_term_width = 100)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Global {
    /// Where the locks are, such as `redis://host`, `postgres://host/db`, `sqlite:///path`
    ///
    /// A URL with a password belongs in the variable: arguments are shown to every user of the
    /// machine.
    #[arg(
        long,
        global = true,
        env = "DISTLOCK_URL",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub(crate) store: Option<String>,

    /// Print JSON: results on stdout, an error as one object on stderr
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Move distlock's own exit codes to N and up
    #[arg(
        long,
        global = true,
        env = EXIT_CODE_BASE,
        value_name = "N",
        default_value_t = DEFAULT_EXIT_CODE_BASE,
        value_parser = clap::value_parser!(u8).range(1..=i64::from(LARGEST_EXIT_CODE_BASE)),
    )]
    pub(crate) exit_code_base: u8,
}

const EXIT_CODE_BASE: &str = "DISTLOCK_EXIT_CODE_BASE";
const DEFAULT_EXIT_CODE_BASE: u8 = 200;
const LARGEST_EXIT_CODE_BASE: u8 = u8::MAX - Kind::Unhealthy as u8;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command while holding a lock
    #[command(after_long_help = RUN_DETAILS)]
    Run(Run),
    /// Take a lock if it is free, and leave it held for the ttl or until it is released
    ///
    /// Nothing renews it. Prints the fencing token, which `distlock release --token` takes, and
    /// the owner, with which `distlock run --owner` enters it again.
    Try(Claim),
    /// Show who holds a lock, with which token and until when, and who waits for it
    Inspect {
        /// The name of the lock
        #[arg(value_parser = key)]
        key: LockKey,
    },
    /// Show the locks that are held or waited for
    List {
        /// Only those whose name starts with this
        #[arg(default_value = "", hide_default_value = true)]
        prefix: String,
    },
    /// Watch the locks as they change, at a terminal
    ///
    /// Looks more than once a second, and less often when there are more than a thousand locks.
    #[cfg(feature = "watch")]
    Watch {
        /// Only those whose name starts with this
        #[arg(default_value = "", hide_default_value = true)]
        prefix: String,
    },
    /// Show the locks as they change on a web page, with metrics and health
    ///
    /// For this machine only, and without a way to change anything, unless it is told otherwise.
    #[cfg(feature = "serve")]
    Serve(crate::serve::Serve),
    /// End a grant in its holder's place
    ///
    /// The holder learns of it at its next renewal, and `distlock run` then ends its command.
    Release {
        /// The name of the lock
        #[arg(value_parser = key)]
        key: LockKey,
        /// End the grant with this fencing token, and no other
        #[arg(long, required_unless_present = "force", conflicts_with = "force")]
        token: Option<FencingToken>,
        /// End whatever grant there is
        #[arg(long)]
        force: bool,
    },
    /// Examine the store: how it is set up, and what that means for the guarantees
    ///
    /// Measures the round trip, looks at version, persistence, eviction, replication, clock and
    /// rights as far as the store lets it, and takes and releases a lock of its own. It changes
    /// nothing else.
    Doctor {
        /// End with an error for warnings, too
        #[arg(long)]
        strict: bool,
    },
    /// Measure stores side by side, next to the bare store; see `distlock bench --help`
    #[cfg(feature = "bench")]
    #[command(disable_help_flag = true)]
    Bench,
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, of distlock or of one of its commands
    Man {
        /// The command
        command: Option<String>,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct Claim {
    /// The name of the lock: 1 to 255 bytes, no control characters
    #[arg(value_parser = key)]
    pub(crate) key: LockKey,

    /// How long the lock stays taken when nobody renews it, such as 500ms, 5s or 2m
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = humantime::parse_duration)]
    pub(crate) ttl: Duration,

    /// A name for people who look at the lock
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,

    /// Enter as this owner, who may hold the lock already; 32 hexadecimal digits
    ///
    /// Without it DISTLOCK_OWNER is taken, if it was set by a `distlock run` of the same lock or
    /// by hand.
    #[arg(long, value_name = "ID")]
    pub(crate) owner: Option<OwnerId>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) claim: Claim,

    /// How long to wait for the lock, in the order of arrival; without it for ever
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) wait: Option<Duration>,

    /// Do not wait at all
    #[arg(long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,

    /// End the command when it has run so long
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) max_hold: Option<Duration>,

    /// How long the lock stays taken at least, even if the command ends earlier
    ///
    /// It is then held by its lease, for the ttl or this time, whichever is longer.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) min_hold: Option<Duration>,

    /// What to do when the lock is lost
    #[arg(long, value_name = "ACTION", value_enum, default_value_t = OnLost::Kill)]
    pub(crate) on_lost: OnLost,

    /// How long after SIGTERM the command is killed; a tenth of the ttl unless set, at most a third
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) grace: Option<Duration>,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// End the command and everything in its process group before somebody else can get the lock
    Kill,
    /// Say so on stderr and let the command go on
    Warn,
}

fn key(name: &str) -> Result<LockKey, distlock::InvalidKey> {
    LockKey::new(name)
}

/// Prints what clap has to say; returns the exit code.
pub(crate) fn refuse(why: &clap::Error) -> i32 {
    if !why.use_stderr() {
        // Help or version, asked for.
        let _ = why.print();
        return 0;
    }
    let args: Vec<_> = std::env::args_os().take_while(|arg| arg != "--").collect();
    let base = base_of_unreadable(&args);
    if args.iter().any(|arg| arg == "--json") {
        let text = why.render().to_string();
        let first = text.lines().next().unwrap_or_default();
        let message = first.strip_prefix("error: ").unwrap_or(first);
        Failure::new(Kind::Usage, message).report(true, base);
    } else {
        let _ = why.print();
    }
    Kind::Usage.exit_code(base)
}

/// The exit code base where no option sets one.
#[cfg(feature = "bench")]
pub(crate) fn exit_code_base() -> u8 {
    base_of_unreadable(&[])
}

/// The exit code base of a command line that clap cannot read.
fn base_of_unreadable(args: &[OsString]) -> u8 {
    let args = args.iter().map(|arg| arg.to_string_lossy());
    let mut after_option = args.skip_while(|arg| !arg.starts_with("--exit-code-base"));
    let option = after_option
        .next()
        .and_then(|arg| match arg.split_once('=') {
            Some((_, value)) => Some(value.to_owned()),
            None => after_option.next().map(Into::into),
        });
    option
        .or_else(|| std::env::var(EXIT_CODE_BASE).ok())
        .and_then(|text| text.parse().ok())
        .filter(|base| (1..=LARGEST_EXIT_CODE_BASE).contains(base))
        .unwrap_or(DEFAULT_EXIT_CODE_BASE)
}

const EXIT_CODES: &str = "\
Exit codes (those from 200 move with --exit-code-base):
    0  done
  200  the lock is busy, and nobody wanted to wait
  201  the lock did not become free within --wait
  202  the lock was lost; the command was ended
  203  the store cannot be reached, or did not answer in time
  204  the store refuses: missing rights, damaged or foreign data
  205  wrong usage or configuration
  206  release: nobody holds the lock
  207  release: the lock is held with another token
  208  distlock itself failed
  209  doctor: locks cannot be used; with --strict, or a guarantee is weakened";

const RUN_DETAILS: &str = "\
Exit code:
  The command's own; 128 + N when it died of signal N; 127 when it was not found, 126 when it
  could not be executed. distlock's own outcomes have the codes that `distlock help` lists.

Environment of the command:
  The caller's, and DISTLOCK_KEY, DISTLOCK_TOKEN (the fencing token: hand it to the resource with
  every write) and DISTLOCK_OWNER. A nested `distlock run` of the same lock enters it again
  instead of waiting for itself. Inside a lock of another name there is also DISTLOCK_OUTER, by
  which the outer ones are entered again. A store given by --store is not passed on; one in
  DISTLOCK_URL is.

Signals and terminal:
  The command runs in a process group of its own. HUP, INT, QUIT, TERM, USR1, USR2 and WINCH are
  forwarded to it; the lock is kept and renewed until the group has ended. On a terminal the group
  gets the foreground, and Ctrl-C and Ctrl-Z reach it directly. A job that is stopped is not
  renewed: if its lease ends before `fg`, the command is killed, stopped as it is.

When the lock is lost:
  The group gets SIGTERM, after --grace SIGKILL, and is gone before the lease ends. When distlock
  itself is killed, or stopped past the lease, the group is killed by its keeper, a small process
  that is a member of the group. Processes that leave the group are not followed.

When the command ends:
  What is left of its group has --grace to end by itself, then gets SIGTERM and SIGKILL. Then the
  lock is released.";
