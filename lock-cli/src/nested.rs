//! A `distlock run` inside another: who owns what further out.

use std::{collections::BTreeMap, env, ffi::OsString};

use distlock::{FencingToken, LockKey, OwnerId};

use crate::failure::{Failure, Kind};

const KEY: &str = "DISTLOCK_KEY";
const TOKEN: &str = "DISTLOCK_TOKEN";
const OWNER: &str = "DISTLOCK_OWNER";
/// The owners of the locks further out than [`KEY`], as a JSON object, when there are any.
const OUTER: &str = "DISTLOCK_OUTER";

/// The locks that the environment says are held around us.
#[derive(Debug, Default)]
pub(crate) struct Around {
    key: Option<String>,
    owner: Option<OwnerId>,
    outer: BTreeMap<String, OwnerId>,
}

impl Around {
    pub(crate) fn from_env() -> Result<Self, Failure> {
        let unusable = |name, why: &dyn std::fmt::Display| {
            Failure::new(
                Kind::Usage,
                format!("the variable {name} cannot be used: {why}"),
            )
        };
        let owner = var(OWNER).map(|id| id.parse()).transpose();
        let outer = var(OUTER)
            .map(|text| serde_json::from_str(&text))
            .transpose();
        Ok(Self {
            key: var(KEY),
            owner: owner.map_err(|why| unusable(OWNER, &why))?,
            outer: outer
                .map_err(|why| unusable(OUTER, &why))?
                .unwrap_or_default(),
        })
    }

    /// Who enters `key`: who holds it around us, or somebody new.
    ///
    /// An owner is not carried over to a lock of another name: two commands under one lock must
    /// still exclude each other there.
    pub(crate) fn owner_of(&self, key: &LockKey) -> OwnerId {
        let inherited = match &self.key {
            Some(around) if around != key.as_str() => self.outer.get(key.as_str()).copied(),
            _ => self.owner,
        };
        inherited.unwrap_or_else(OwnerId::random)
    }

    /// What a command is told that runs under `key`.
    pub(crate) fn environment(
        mut self,
        key: &LockKey,
        token: FencingToken,
        owner: OwnerId,
    ) -> Vec<(&'static str, String)> {
        if let (Some(around), Some(owner)) = (self.key, self.owner) {
            self.outer.insert(around, owner);
        }
        self.outer.remove(key.as_str());
        let mut variables = vec![
            (KEY, key.to_string()),
            (TOKEN, token.to_string()),
            (OWNER, owner.to_string()),
        ];
        if !self.outer.is_empty() {
            variables.push((OUTER, serde_json::json!(self.outer).to_string()));
        }
        variables
    }
}

fn var(name: &str) -> Option<String> {
    env::var_os(name)
        .map(OsString::into_string)
        .and_then(Result::ok)
        .filter(|text| !text.is_empty())
}
