//! The client processes, and what they tell.

use std::{
    collections::{BTreeMap, HashMap},
    io::{BufRead, BufReader, Write},
    process::{ChildStdin, Command, Stdio},
    sync::Arc,
    thread::JoinHandle,
};

use parking_lot::Mutex;

use crate::{
    history::{Event, Hold, now, wall_millis},
    process::Process,
};

/// What the clients have told so far.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// The holds that are over, and those of processes that were killed.
    pub(super) holds: Vec<Hold>,
    /// How often acquires failed how.
    pub(super) refusals: BTreeMap<String, u64>,
    /// How often holds ended how.
    pub(super) endings: BTreeMap<String, u64>,
    /// Holds during which the resource refused.
    pub(super) stale: u64,
    /// Acquires and holds that ended with their process.
    pub(super) killed: u64,
    /// How often a client was about to write when it was to say so.
    pub(super) hesitating: u64,
    /// How often a client's runtime stood still.
    pub(super) blocked: u64,
    /// By how many milliseconds the wall clock that a client told is ahead of ours.
    pub(super) ahead: Option<i64>,
    /// Acquires under way and holds, by process and acquisition.
    open: HashMap<(u32, u64), Open>,
    /// When each lock was last granted.
    pub(super) last_grant: HashMap<u32, u64>,
    /// The longest time from an acquire's call to its grant, in nanoseconds.
    pub(super) longest_wait: u64,
}

#[derive(Debug)]
struct Open {
    key: u32,
    asked: u64,
    granted: Option<(u64, u64, String)>,
}

impl Log {
    fn note(&mut self, process: u32, event: Event) {
        match event {
            Event::Asked { id, key, at } => {
                let open = Open {
                    key,
                    asked: at,
                    granted: None,
                };
                self.open.insert((process, id), open);
            }
            Event::Granted {
                id,
                at,
                token,
                owner,
            } => {
                if let Some(open) = self.open.get_mut(&(process, id)) {
                    open.granted = Some((at, token, owner));
                    self.last_grant.insert(open.key, at);
                    self.longest_wait = self.longest_wait.max(at - open.asked);
                }
            }
            Event::Refused { id, why, .. } => {
                self.open.remove(&(process, id));
                *self.refusals.entry(why).or_default() += 1;
            }
            Event::Ended {
                id,
                held_until,
                at,
                how,
                refused,
            } => {
                let over = if how == "released" { at } else { u64::MAX };
                if let Some(open) = self.open.remove(&(process, id)) {
                    self.holds.extend(open.hold(process, held_until, over));
                }
                self.stale += u64::from(refused > 0);
                *self.endings.entry(how).or_default() += 1;
            }
            Event::Hesitating => self.hesitating += 1,
            Event::Blocked => self.blocked += 1,
            Event::Clock { millis } => self.ahead = Some(millis - wall_millis()),
        }
    }

    /// The process is no more, and what it had begun ended with it.
    fn killed(&mut self, process: u32) {
        let gone: Vec<_> = self.open.extract_if(|(of, _), _| *of == process).collect();
        self.killed += gone.len() as u64;
        for (_, open) in gone {
            self.holds.extend(open.hold(process, 0, u64::MAX));
        }
    }

    /// How many grants there were.
    pub(super) fn grants(&self) -> usize {
        let open = self.open.values().filter(|open| open.granted.is_some());
        self.holds.len() + open.count()
    }

    /// Acquires and holds that nobody has told the end of.
    pub(super) fn unanswered(&self) -> usize {
        self.open.len()
    }
}

impl Open {
    fn hold(self, process: u32, held_until: u64, over: u64) -> Option<Hold> {
        let (granted, token, owner) = self.granted?;
        Some(Hold {
            key: self.key,
            owner,
            token,
            process,
            asked: self.asked,
            granted,
            held_until: held_until.max(granted),
            over,
        })
    }
}

/// A client process, and where its next one comes from.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) process: Process,
    input: ChildStdin,
    reader: Option<JoinHandle<()>>,
    number: u32,
    log: Arc<Mutex<Log>>,
}

impl Client {
    /// Starts `command` as the process of that number, and reads what it tells.
    pub(super) fn start(command: &mut Command, number: u32, log: &Arc<Mutex<Log>>) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::start(command);
        let input = process.child().stdin.take().expect("a pipe to the client");
        let output = process.child().stdout.take().expect("a pipe from it");
        let reader = std::thread::spawn({
            let log = log.clone();
            move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    // The last line of a process that is killed may be cut short.
                    if let Ok(event) = serde_json::from_str(&line) {
                        log.lock().note(number, event);
                    }
                }
            }
        });
        Self {
            process,
            input,
            reader: Some(reader),
            number,
            log: log.clone(),
        }
    }

    /// Gives it an order; a process that has ended does not mind.
    pub(super) fn tell(&mut self, order: &str) {
        let _ = writeln!(self.input, "{order}");
    }

    /// Kills it, and takes note of what it has told until then.
    pub(super) fn kill(&mut self) {
        self.process.kill();
        self.read_to_end();
        self.log.lock().killed(self.number);
    }

    /// Waits for its end after `stop`; whether it ended well, within 30 s.
    pub(super) fn stopped(&mut self) -> bool {
        let begin = now();
        loop {
            match self.process.child().try_wait() {
                Ok(Some(status)) => {
                    self.read_to_end();
                    return status.success();
                }
                Ok(None) if now() - begin < 30_000_000_000 => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                _ => return false,
            }
        }
    }

    fn read_to_end(&mut self) {
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}
