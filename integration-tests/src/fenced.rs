//! A resource that checks fencing tokens: one counter for each key, in a process of its own.
//!
//! Whoever comes with a token hands over the owner it was granted to. A token that is smaller than
//! the largest seen so far is stale; one that is equal but comes from another owner was granted
//! twice. Both are refused. Reading is checked like writing: else a late write could slip in
//! between another holder's first read and write.
//!
//! ```text
//! read  KEY TOKEN OWNER         → value N  | stale TOKEN | equal OWNER
//! write KEY TOKEN OWNER VALUE   → value N  | stale TOKEN | equal OWNER
//! tally                         → JSON of a [`Tally`]
//! ```

use std::{
    collections::HashMap,
    fs::File,
    io::{self, BufRead, BufReader, BufWriter, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

use clap::ValueEnum;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt};

use crate::process::Process;

/// The counters and the tokens.
#[derive(Debug, Default)]
pub struct Resource {
    counters: HashMap<String, Counter>,
    leniency: Leniency,
    tally: Tally,
}

/// A planted bug of the resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Leniency {
    /// It checks.
    #[default]
    None,
    /// It takes an equal token from another owner.
    Equal,
    /// It takes every token.
    Stale,
}

#[derive(Debug, Default)]
struct Counter {
    value: u64,
    token: u64,
    owner: String,
}

/// How often the resource answered how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// Writes that were done.
    pub written: u64,
    /// Reads that were answered.
    pub read: u64,
    /// Writes and reads with a token smaller than the last.
    pub stale: u64,
    /// Of those, writes.
    pub stale_writes: u64,
    /// Writes and reads with the last token and another owner.
    pub equal: u64,
}

/// Why the resource refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A larger token was here before.
    Stale(u64),
    /// The same token was here before, from this owner.
    Equal(String),
}

/// A write that was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The counter.
    pub key: String,
    /// The token it came with.
    pub token: u64,
    /// Who holds that token.
    pub owner: String,
    /// The new value.
    pub value: u64,
}

impl Resource {
    /// A resource with a bug.
    pub fn lenient(leniency: Leniency) -> Self {
        Self {
            leniency,
            ..Self::default()
        }
    }

    /// Reads a counter, or sets it, under a token.
    ///
    /// # Errors
    ///
    /// The token is too old, or somebody else's.
    pub fn access(
        &mut self,
        key: &str,
        token: u64,
        owner: &str,
        write: Option<u64>,
    ) -> Result<u64, Refusal> {
        let counter = self.counters.entry(key.to_owned()).or_default();
        if token < counter.token && self.leniency != Leniency::Stale {
            self.tally.stale += 1;
            self.tally.stale_writes += u64::from(write.is_some());
            return Err(Refusal::Stale(counter.token));
        }
        if token == counter.token && owner != counter.owner && self.leniency == Leniency::None {
            self.tally.equal += 1;
            return Err(Refusal::Equal(counter.owner.clone()));
        }
        counter.token = token;
        owner.clone_into(&mut counter.owner);
        match write {
            Some(value) => {
                counter.value = value;
                self.tally.written += 1;
            }
            None => self.tally.read += 1,
        }
        Ok(counter.value)
    }

    /// How often it answered how.
    pub fn tally(&self) -> Tally {
        self.tally
    }
}

/// Serves a resource on loopback until the standard input ends, and notes each write that was done
/// in `log`; prints its address first.
///
/// # Errors
///
/// When the file or the port cannot be opened.
pub fn serve(log: &Path, leniency: Leniency) -> io::Result<()> {
    let log = BufWriter::new(File::create(log)?);
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    println!("{}", listener.local_addr()?);
    // It ends with whoever started it.
    std::thread::spawn(|| {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        std::process::exit(0);
    });
    let shared = Arc::new(Mutex::new((Resource::lenient(leniency), log)));
    for stream in listener.incoming() {
        let (stream, shared) = (stream?, shared.clone());
        std::thread::spawn(move || answer_all(&stream, &shared));
    }
    Ok(())
}

fn answer_all(stream: &TcpStream, shared: &Mutex<(Resource, impl Write)>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    for line in BufReader::new(stream).lines() {
        let answer = {
            let (resource, log) = &mut *shared.lock();
            answer(&line?, resource, log)?
        };
        (&mut &*stream).write_all(answer.as_bytes())?;
    }
    Ok(())
}

fn answer(line: &str, resource: &mut Resource, log: &mut impl Write) -> io::Result<String> {
    let words: Vec<&str> = line.split(' ').collect();
    let number = |word: &str| word.parse::<u64>().map_err(io::Error::other);
    let answer = match words[..] {
        ["read", key, token, owner] => resource.access(key, number(token)?, owner, None),
        ["write", key, token, owner, value] => {
            let answer = resource.access(key, number(token)?, owner, Some(number(value)?));
            if answer.is_ok() {
                writeln!(log, "{key} {token} {owner} {value}")?;
            }
            answer
        }
        ["tally"] => {
            log.flush()?;
            return Ok(serde_json::to_string(&resource.tally())? + "\n");
        }
        _ => return Err(io::Error::other("not a request")),
    };
    Ok(match answer {
        Ok(value) => format!("value {value}\n"),
        Err(Refusal::Stale(token)) => format!("stale {token}\n"),
        Err(Refusal::Equal(owner)) => format!("equal {owner}\n"),
    })
}

/// A resource in a process of its own.
#[derive(Debug)]
pub struct ResourceProcess {
    _process: Process,
    address: SocketAddr,
}

impl ResourceProcess {
    /// Starts it with `command`, which has to call [`serve`].
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::start(command);
        let output = process.child().stdout.take().expect("a pipe");
        let mut address = String::new();
        BufReader::new(output)
            .read_line(&mut address)
            .expect("the resource says its address");
        Self {
            address: address.trim().parse().expect("an address"),
            _process: process,
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How often it answered how; its log is complete up to here.
    ///
    /// # Errors
    ///
    /// When it does not answer.
    pub fn tally(&self) -> io::Result<Tally> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.write_all(b"tally\n")?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        Ok(serde_json::from_str(&answer)?)
    }
}

/// The writes in the log of a resource.
///
/// # Errors
///
/// When it cannot be read.
pub fn read_log(path: &Path) -> io::Result<Vec<Written>> {
    BufReader::new(File::open(path)?)
        .lines()
        .map(|line| {
            let line = line?;
            match line.split(' ').collect::<Vec<_>>()[..] {
                [key, token, owner, value] => Ok(Written {
                    key: key.to_owned(),
                    token: token.parse().map_err(io::Error::other)?,
                    owner: owner.to_owned(),
                    value: value.parse().map_err(io::Error::other)?,
                }),
                _ => Err(io::Error::other(format!("not a write: {line}"))),
            }
        })
        .collect()
}

/// A connection to a resource.
#[derive(Debug)]
pub struct Connection {
    input: tokio::net::tcp::OwnedWriteHalf,
    output: tokio::io::BufReader<tokio::net::tcp::OwnedReadHalf>,
}

impl Connection {
    /// Connects.
    ///
    /// # Errors
    ///
    /// When nobody listens.
    pub async fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = tokio::net::TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (output, input) = stream.into_split();
        Ok(Self {
            input,
            output: tokio::io::BufReader::new(output),
        })
    }

    /// As [`Resource::access`].
    ///
    /// # Errors
    ///
    /// When the resource is gone.
    pub async fn access(
        &mut self,
        key: &str,
        token: u64,
        owner: &str,
        write: Option<u64>,
    ) -> io::Result<Result<u64, Refusal>> {
        let request = match write {
            Some(value) => format!("write {key} {token} {owner} {value}\n"),
            None => format!("read {key} {token} {owner}\n"),
        };
        self.input.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        self.output.read_line(&mut answer).await?;
        let number = |word: &str| word.parse().map_err(io::Error::other);
        match answer.trim_end().split_once(' ') {
            Some(("value", value)) => Ok(Ok(number(value)?)),
            Some(("stale", token)) => Ok(Err(Refusal::Stale(number(token)?))),
            Some(("equal", owner)) => Ok(Err(Refusal::Equal(owner.to_owned()))),
            _ => Err(io::Error::other("the resource is gone")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A12, A13.
    #[test]
    fn a13_old_tokens_and_equal_ones_of_others_are_refused() {
        let mut resource = Resource::default();
        assert_eq!(resource.access("k", 5, "a", None), Ok(0));
        assert_eq!(resource.access("k", 5, "a", Some(1)), Ok(1));
        assert_eq!(
            resource.access("k", 5, "b", Some(2)),
            Err(Refusal::Equal("a".into()))
        );
        assert_eq!(resource.access("k", 6, "b", None), Ok(1));
        assert_eq!(
            resource.access("k", 5, "a", Some(2)),
            Err(Refusal::Stale(6))
        );
        assert_eq!(resource.access("other", 1, "a", Some(7)), Ok(7));
        let tally = Tally {
            written: 2,
            read: 2,
            stale: 1,
            stale_writes: 1,
            equal: 1,
        };
        assert_eq!(resource.tally(), tally);
    }
}
