//! A wall clock that a test moves while a program runs on it.
//!
//! It is a small library in C that is loaded into the program in front of the C library's own
//! functions, so it works for Redis, for Postgres and for Rust programs, and not for those in Go,
//! which ask the kernel themselves.

use std::{
    fs,
    io::Write,
    os::unix::fs::{FileExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use parking_lot::Mutex;
use tempfile::{NamedTempFile, TempDir};

/// The wall clock of all programs that were started on it.
#[derive(Debug)]
pub struct ShiftedClock {
    file: NamedTempFile,
    millis: Mutex<i64>,
}

impl ShiftedClock {
    /// A clock that shows the right time.
    ///
    /// # Panics
    ///
    /// When the machine has no C compiler.
    pub fn new() -> Self {
        library();
        let file = NamedTempFile::new().expect("a temporary file");
        // A server may run as another user.
        open_to_all(file.path(), 0o644);
        let clock = Self {
            file,
            millis: Mutex::new(0),
        };
        clock.advance(0);
        clock
    }

    /// Moves the clock by `millis`, forward or back, for every program on it at once.
    pub fn advance(&self, millis: i64) {
        let mut shift = self.millis.lock();
        *shift += millis;
        let nanos = (*shift * 1_000_000).to_ne_bytes();
        self.file
            .as_file()
            .write_all_at(&nanos, 0)
            .expect("the clock's file");
    }

    /// By how many milliseconds it is ahead of the machine's clock.
    pub fn ahead(&self) -> i64 {
        *self.millis.lock()
    }

    /// What a program needs in its environment to run on this clock.
    pub fn environment(&self) -> [(&'static str, PathBuf); 2] {
        [
            ("LD_PRELOAD", library().to_owned()),
            ("CLOCK_SHIFT", self.file.path().to_owned()),
        ]
    }

    /// Starts `command` on this clock.
    pub fn apply<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.envs(self.environment())
    }
}

impl Default for ShiftedClock {
    fn default() -> Self {
        Self::new()
    }
}

/// The library, compiled once for each process that needs it.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, library) = LIBRARY.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        open_to_all(folder.path(), 0o755);
        let source = folder.path().join("clock.c");
        let library = folder.path().join("clock.so");
        let mut file = fs::File::create(&source).expect("a source file");
        file.write_all(include_bytes!("clock.c"))
            .expect("a source file");
        let compiler = Command::new("cc")
            .args(["-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o"])
            .args([&library, &source])
            .arg("-ldl")
            .status()
            .expect("cc, the C compiler, runs");
        assert!(compiler.success(), "clock.c cannot be compiled");
        (folder, library)
    });
    library
}

fn open_to_all(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("permissions");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(clock: &ShiftedClock) -> i64 {
        let output = clock
            .apply(Command::new("date").args(["-u", "+%s"]))
            .output()
            .unwrap();
        String::from_utf8(output.stdout)
            .unwrap()
            .trim()
            .parse()
            .unwrap()
    }

    #[test]
    fn programs_see_the_clock_that_was_moved() {
        let clock = ShiftedClock::new();
        let now = seconds(&clock);
        clock.advance(3_600_000);
        let later = seconds(&clock);
        assert!((3600..4000).contains(&(later - now)), "{now} {later}");
        clock.advance(-7_200_000);
        let earlier = seconds(&clock);
        assert!((3000..=3600).contains(&(now - earlier)), "{now} {earlier}");
        assert_eq!(clock.ahead(), -3_600_000);
    }
}
