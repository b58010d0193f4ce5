//! The scripts: one for each verb, and one for many at once.

use std::time::Duration;

use redis::Script;

/// The scripts of one configuration.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) acquire: Lua,
    pub(crate) release: Lua,
    pub(crate) batch: Lua,
    pub(crate) renew: Lua,
    pub(crate) force_release: Lua,
    pub(crate) inspect: Lua,
}

/// A script and the name that the server knows it by.
#[derive(Debug)]
pub(crate) struct Lua {
    pub(crate) text: String,
    pub(crate) sha: String,
}

macro_rules! lua {
    ($($part:literal),+) => {
        concat!($(include_str!(concat!("lua/", $part))),+)
    };
}

impl Scripts {
    /// The times are part of the text: they differ between applications, not between calls. As
    /// strings, since Lua's numbers are written anew at each use.
    pub(crate) fn new(claim_window: Duration, token_retention: Duration) -> Self {
        let times = format!(
            "local WINDOW, RETENTION, here = '{}', '{}', nil\n",
            millis(claim_window),
            millis(token_retention)
        );
        let script = |text: &str| {
            let text = times.clone() + text;
            Lua {
                sha: Script::new(&text).get_hash().to_owned(),
                text,
            }
        };
        // What a script does when nobody competes comes before the functions of queue.lua, which
        // cost time to make.
        Self {
            acquire: script(lua!("acquire.lua", "queue.lua", "contended.lua")),
            release: script(lua!("release.lua", "queue.lua", "give_up.lua")),
            batch: script(lua!("batch.lua")),
            renew: script(lua!("renew.lua")),
            force_release: script(lua!("queue.lua", "force_release.lua")),
            inspect: script(lua!("inspect.lua")),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis())
        .unwrap_or(u64::MAX)
        .max(1)
}
