//! From files and variables to settings, and to an error that says where the wrong one is.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fmt, fs,
    path::{Path, PathBuf},
};

use config::{Config, ConfigError, Environment, File, FileFormat, Map, Value, ValueKind};

use super::{
    LockConfig,
    check::{self, Problem},
    keys::{self, KEYS},
};
use crate::{Error, Result};

/// Where settings come from; what is named later wins.
///
/// ```no_run
/// use distlock::LockConfig;
///
/// # fn example() -> distlock::Result<()> {
/// let config = LockConfig::loader()
///     .file("/etc/shop/locks.toml")
///     .optional_file("locks.local.yaml")
///     .environment("SHOP_LOCKS") // SHOP_LOCKS_TTL, SHOP_LOCKS_REDIS__CLAIM_WINDOW
///     .load()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
#[must_use = "nothing is read before `load`"]
pub struct LockConfigLoader {
    sources: Vec<Source>,
}

#[derive(Clone)]
enum Source {
    File {
        path: PathBuf,
        required: bool,
    },
    Variables {
        prefix: String,
        variables: Vec<(OsString, OsString)>,
    },
}

/// What `distlock run` tells its command, which is no setting.
const OF_RUN: [&str; 5] = ["key", "token", "owner", "outer", "exit_code_base"];

impl LockConfigLoader {
    /// A file that has to be there: `.toml`, `.yaml`, `.yml` or `.json`.
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        let (path, required) = (path.into(), true);
        self.sources.push(Source::File { path, required });
        self
    }

    /// A file that may be missing.
    pub fn optional_file(mut self, path: impl Into<PathBuf>) -> Self {
        let (path, required) = (path.into(), false);
        self.sources.push(Source::File { path, required });
        self
    }

    /// The variables that begin with `prefix` and an underscore: the key in capitals, with two
    /// underscores for its dot. Empty ones are not set.
    pub fn environment(self, prefix: impl Into<String>) -> Self {
        self.variables(prefix, env::vars_os())
    }

    /// As [`environment`](Self::environment), with variables that come from elsewhere.
    pub fn variables<T: Into<OsString>>(
        mut self,
        prefix: impl Into<String>,
        variables: impl IntoIterator<Item = (T, T)>,
    ) -> Self {
        let variables = variables.into_iter();
        self.sources.push(Source::Variables {
            prefix: prefix.into(),
            variables: variables
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        });
        self
    }

    /// Reads the sources, and checks every key and every value.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidConfig`], which names the key, what it may be, and the file or variable;
    /// for a file that cannot be read, too. No secret is repeated.
    pub fn load(self) -> Result<LockConfig> {
        let mut merged = Config::builder();
        let mut origins = BTreeMap::new();
        for source in self.sources {
            let Some(values) = source.read()? else {
                continue;
            };
            for key in source.keys(&values)? {
                let origin = source.origin(&key);
                origins.insert(key, origin);
            }
            merged = merged.add_source(Tree(values));
        }
        let merged = merged.build().map_err(|why| refused(&why, &origins))?;
        let settings: LockConfig = merged
            .try_deserialize()
            .map_err(|why| refused(&why, &origins))?;
        check::check(&settings).map_err(|why| with_origin(&why.key, &why.to_string(), &origins))?;
        Ok(settings)
    }
}

impl fmt::Debug for LockConfigLoader {
    /// Without the variables, one of which may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sources = self.sources.iter().map(|source| match source {
            Source::File { path, .. } => path.display().to_string(),
            Source::Variables { prefix, .. } => format!("{prefix}_…"),
        });
        f.debug_list().entries(sources).finish()
    }
}

type Origins = BTreeMap<String, String>;

impl Source {
    fn read(&self) -> Result<Option<Map<String, Value>>> {
        match self {
            Self::File { path, required } => read_file(path, *required),
            Self::Variables { prefix, variables } => read_variables(prefix, variables).map(Some),
        }
    }

    /// The full names of the keys that are set here; an error when one is not known.
    fn keys(&self, values: &Map<String, Value>) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for (name, value) in values {
            match &value.kind {
                ValueKind::Table(section) => {
                    names.extend(section.keys().map(|key| format!("{name}.{key}")));
                    names.push(name.clone());
                }
                _ => names.push(name.clone()),
            }
        }
        let unknown = names
            .iter()
            .find(|name| !is_section(name) && keys::find(name).is_none());
        if let Some(name) = unknown {
            let what = format!("`{name}`: there is no such setting{}", similar(name));
            return Err(invalid(format!("{what} ({})", self.origin(name))));
        }
        for name in &names {
            let section = name.split('.').next().unwrap_or(name);
            if !keys::is_compiled_in(section) {
                let origin = self.origin(name);
                return Err(invalid(format!(
                    "`{name}`: the store is not compiled in; enable the feature `{section}` ({origin})"
                )));
            }
        }
        Ok(names)
    }

    /// Where a key of this source is, for people.
    fn origin(&self, key: &str) -> String {
        match self {
            Self::File { path, .. } => format!("in {}", path.display()),
            Self::Variables { prefix, .. } => {
                let name = key.to_uppercase().replace('.', "__");
                format!("variable {prefix}_{name}")
            }
        }
    }
}

fn read_file(path: &Path, required: bool) -> Result<Option<Map<String, Value>>> {
    let extension = path.extension().and_then(|extension| extension.to_str());
    let format = match extension.unwrap_or_default() {
        "toml" => FileFormat::Toml,
        "yaml" | "yml" => FileFormat::Yaml,
        "json" => FileFormat::Json,
        _ => {
            return Err(invalid(format!(
                "{}: the name has to end in .toml, .yaml, .yml or .json",
                path.display()
            )));
        }
    };
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(why) if why.kind() == std::io::ErrorKind::NotFound && !required => return Ok(None),
        Err(why) => return Err(invalid(format!("{} cannot be read: {why}", path.display()))),
    };
    let values = Config::builder()
        .add_source(File::from_str(&text, format))
        .build()
        .and_then(|config| config.cache.into_table());
    values.map(Some).map_err(|why| {
        let why = without_excerpt(&why.to_string());
        invalid(format!("{} cannot be read: {why}", path.display()))
    })
}

/// A parser that shows the line at fault would show the password in it.
fn without_excerpt(message: &str) -> String {
    let lines = message.lines();
    let plain = lines.filter(|line| !line.contains('|') && !line.trim().is_empty());
    plain.collect::<Vec<_>>().join(": ")
}

fn read_variables(prefix: &str, all: &[(OsString, OsString)]) -> Result<Map<String, Value>> {
    let mut variables = Map::new();
    for (name, value) in all {
        let Some(name) = name.to_str() else { continue };
        let Some(key) = name
            .strip_prefix(prefix)
            .and_then(|rest| rest.strip_prefix('_'))
        else {
            continue;
        };
        if OF_RUN.contains(&key.to_lowercase().as_str()) {
            continue;
        }
        let value = value
            .to_str()
            .ok_or_else(|| invalid(format!("the variable {name} is not UTF-8")))?;
        variables.insert(name.to_owned(), value.to_owned());
    }
    let source = Environment::with_prefix(prefix)
        .prefix_separator("_")
        .separator("__")
        .ignore_empty(true)
        .source(Some(variables));
    Config::builder()
        .add_source(source)
        .build()
        .and_then(|config| config.cache.into_table())
        .map_err(|why| invalid(format!("the variables {prefix}_… cannot be used: {why}")))
}

/// Values that are read already.
#[derive(Clone, Debug)]
struct Tree(Map<String, Value>);

impl config::Source for Tree {
    fn clone_into_box(&self) -> Box<dyn config::Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Value>, ConfigError> {
        Ok(self.0.clone())
    }
}

fn is_section(name: &str) -> bool {
    KEYS.iter().any(|key| key.section() == Some(name))
}

/// The key that was meant, perhaps.
fn similar(name: &str) -> String {
    let last = name.rsplit('.').next().unwrap_or(name);
    let shares = |key: &&keys::Key| {
        let known = key.name.rsplit('.').next().unwrap_or(key.name);
        known == last || known.contains(last) || last.contains(known)
    };
    match KEYS.iter().filter(|_| !last.is_empty()).find(shares) {
        Some(key) => format!("; perhaps `{}` is meant", key.name),
        None => String::new(),
    }
}

/// What the library says of a value of the wrong kind.
fn refused(why: &ConfigError, origins: &Origins) -> Error {
    let (key, what) = match why {
        ConfigError::At { error, key, .. } => (key.clone(), error.to_string()),
        ConfigError::Type {
            unexpected,
            expected,
            key,
            ..
        } => (
            key.clone(),
            format!("it is {unexpected}; it has to be {expected}"),
        ),
        other => (None, other.to_string()),
    };
    match key {
        Some(key) => with_origin(&key, &Problem::new(&key, what).to_string(), origins),
        None => invalid(what),
    }
}

fn with_origin(key: &str, what: &str, origins: &Origins) -> Error {
    invalid(match origins.get(key) {
        Some(origin) => format!("{what} ({origin})"),
        None => what.to_owned(),
    })
}

fn invalid(what: impl Into<String>) -> Error {
    Error::InvalidConfig { what: what.into() }
}
