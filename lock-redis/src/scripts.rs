//! The scripts: one for each verb.

use std::sync::LazyLock;

use redis::Script;

macro_rules! script {
    ($name:ident, $($part:literal),+) => {
        pub(crate) static $name: LazyLock<Lua> =
            LazyLock::new(|| Lua::new(concat!($(include_str!(concat!("lua/", $part))),+)));
    };
}

// What a script does when nobody competes comes before the functions of queue.lua, which cost
// time to make.
script!(ACQUIRE, "acquire.lua", "queue.lua", "contended.lua");
script!(RELEASE, "release.lua", "queue.lua", "give_up.lua");
script!(RENEW, "renew.lua");
script!(FORCE_RELEASE, "queue.lua", "force_release.lua");
script!(INSPECT, "inspect.lua");

/// A script and the name that the server knows it by.
#[derive(Debug)]
pub(crate) struct Lua {
    pub(crate) text: &'static str,
    pub(crate) sha: String,
}

impl Lua {
    fn new(text: &'static str) -> Self {
        Self {
            text,
            sha: Script::new(text).get_hash().to_owned(),
        }
    }
}
